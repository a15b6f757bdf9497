"""``complexity``: how time and memory of a layer grow with its length n and its width d."""

import argparse
import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.benchmark import pack_and_unpack
from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.exponents import FEWEST, Theory
from luna_fairseq.benchmark.heads import Shape
from luna_fairseq.benchmark.measure import Case, Job, Settings
from luna_fairseq.benchmark.options import at_least
from luna_fairseq.benchmark.task import Task
from luna_fairseq.errors import InputError
from luna_fairseq.peers import PeerOptions, build_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL

KERNEL = 3  # of the convolution
SMALL = 64  # longest sequence at which a layer is compared with its definition


class Size(NamedTuple):
    """Of a layer: B, n, d, H, l."""

    batch: int
    n: int
    d: int
    heads: int
    projection_length: int


class Built(NamedTuple):
    """A layer with its inputs.

    Attributes:
        compute: gives the output
        definition: gives what it should be, if there is another way
        leaves: inputs and parameters that want gradients
    """

    compute: Callable[[], Tensor]
    definition: Optional[Callable[[], Tensor]]
    leaves: List[Tensor]


@dataclass(frozen=True)
class Layer:
    """A row.

    Attributes:
        build: makes the layer of a size
        theory: what it should cost
        peer, optional: as of all rows
    """

    build: Callable[[Size, Settings], Built]
    theory: Theory
    peer: bool = False
    optional: bool = False


def sequence(size: Size, settings: Settings) -> Tensor:
    """[n, B, d]."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    return torch.randn(size.n, size.batch, size.d, generator=generator, device=settings.device)


def recurrent(size: Size, settings: Settings) -> Built:
    """torch's LSTM."""
    x, lstm = sequence(size, settings).requires_grad_(), nn.LSTM(size.d, size.d).to(settings.device)
    return Built(lambda: lstm(x)[0], None, [x, *lstm.parameters()])


def convolution(size: Size, settings: Settings) -> Built:
    """torch's convolution along the length."""
    x = sequence(size, settings).permute(1, 2, 0).contiguous().requires_grad_()
    conv = nn.Conv1d(size.d, size.d, KERNEL, padding=KERNEL // 2).to(settings.device)
    return Built(lambda: conv(x), None, [x, *conv.parameters()])


def attention(size: Size, settings: Settings, name: str, root: str = "") -> Built:
    """A peer's attention on projected heads; the option ``root`` is the root of the length."""
    options = PeerOptions()
    if root:
        setattr(options, root, max(1, round(math.sqrt(size.n))))
    torch.manual_seed(settings.seed)
    module = build_attention(name, size.d, size.heads, BIDIRECTIONAL, options, max_positions=size.n)
    module.to(settings.device)
    with torch.no_grad():
        parts = [part.contiguous() for part in module.project(sequence(size, settings))]
    parts = [part.requires_grad_() for part in parts]
    attend, define = (partial(form, *parts, padding=None) for form in (module.attend, module.define))
    return Built(attend, define, [*parts, *module.parameters()])


def luna(size: Size, settings: Settings, form: Callable[..., Tensor]) -> Built:
    """Pack and unpack attention on projected heads."""
    shape = Shape(size.batch, size.heads, size.d // size.heads, size.projection_length, "float32")
    inputs, _ = pack_and_unpack.make_inputs(shape, size.n, settings)
    leaves = [x for x in inputs if x is not None and x.requires_grad]
    return Built(partial(form, inputs), partial(form, inputs, pack_and_unpack.naive), leaves)


def linear_in_n(operations: str, d: float = 1.0) -> Theory:
    """That of an attention whose cost grows with n."""
    return Theory(operations, (1, d), (1, 1), "1", "1")


LAYERS: Dict[str, Layer] = {
    "recurrent": Layer(recurrent, Theory("n d^2", (1, 2), (1, 1), "n", "n")),
    "convolution": Layer(convolution, Theory("k n d^2", (1, 2), (1, 1), "1", "log_k n")),
    "softmax": Layer(
        partial(attention, name="softmax"), Theory("n^2 d", (2, 1), (1, 1), "1", "1"), peer=True
    ),
    "restricted": Layer(partial(attention, name="local"), Theory("r n d", (1, 1), (1, 1), "1", "n / r")),
    "sparse": Layer(
        partial(attention, name="sparse", root="sparse_stride"),
        Theory("n sqrt(n) d", (1.5, 1), (1.5, 1), "1", "1"),
    ),
    "reformer": Layer(
        partial(attention, name="reformer"), Theory("n log(n) d", (1, 1), (1, 1), "log n", "1 in a bucket")
    ),
    "linformer": Layer(partial(attention, name="linformer"), linear_in_n("n k d")),
    "linear": Layer(partial(attention, name="linear"), linear_in_n("n d^2", d=2.0)),
    "luna": Layer(partial(luna, form=pack_and_unpack.pack_and_unpack), linear_in_n("n l d")),
    "luna-anchored": Layer(partial(luna, form=pack_and_unpack.anchored), linear_in_n("n l d")),
}


class Complexity(Task):
    """``complexity``."""

    name = "complexity"
    help = "how time and memory of a layer grow with its length and its width"
    notes = """
    Forward and backward of one layer, float32, against its length n and against its width d, and the
    exponents of growth that fit, with their standard errors, beside those of theory (a logarithm counts for
    0). Attention is measured on projected heads, without its projections, which cost n d^2 in all; recurrent
    is torch's LSTM, convolution has a kernel of 3, restricted a window of 64 positions on either side, sparse
    a stride of the root of n, linformer 128 keys. Softmax attention is torch's fused one, whose memory grows
    with n. Before anything is timed, attentions were compared with their definitions.
    """
    length = "size"
    panels = ("against",)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Sizes."""

        def add(name: str, default: Any, what: str) -> None:
            many = {"nargs": "+"} if isinstance(default, list) else {}
            text = " ".join(map(str, default)) if many else default
            parser.add_argument(
                name,
                type=at_least(1),
                default=default,
                metavar="N",
                help=f"{what} (default: {text})",
                **many,  # type: ignore[arg-type]
            )

        add("--lengths", [256, 512, 1024, 2048, 4096], "values of n")
        add("--width", 256, "d while n varies")
        add("--widths", [128, 256, 512, 1024], "values of d")
        add("--length", 1024, "n while d varies")
        add("--batch", 1, "sequences")
        add("--heads", 8, "attention heads")
        add("--projection-length", 16, "Luna's l")

    def __init__(self, args: argparse.Namespace, settings: Settings):
        super().__init__(args, settings)
        for option, values in (("--lengths", args.lengths), ("--widths", args.widths)):
            if len(set(values)) < FEWEST:
                raise InputError(
                    f"{option} {' '.join(map(str, values))}: an exponent needs {FEWEST} values or more"
                )
        for width in (args.width, *args.widths):
            if width % args.heads:
                raise InputError(f"a width of {width} is not divisible by --heads {args.heads}: change one")
        self.single = False

    def rows(self) -> Dict[str, Layer]:
        return LAYERS

    def theory(self) -> Dict[str, Theory]:
        return {name: row.theory for name, row in LAYERS.items()}

    def cases(self) -> List[Case]:
        args = self.args
        lengths = [{"against": f"n, d = {args.width}", "size": n} for n in sorted(set(args.lengths))]
        widths = [{"against": f"d, n = {args.length}", "size": d} for d in sorted(set(args.widths))]
        return [*lengths, *widths]

    def size(self, case: Case) -> Size:
        """Of a case."""
        args = self.args
        by_length = case["against"].startswith("n")
        n, d = (case["size"], args.width) if by_length else (args.length, case["size"])
        return Size(1 if self.single else args.batch, n, d, args.heads, args.projection_length)

    def check(self, rows: Dict[str, Layer]) -> None:
        """Every attention must give what its definition gives."""
        for case in self.cases():
            size = self.size(case)
            size = size._replace(n=min(size.n, SMALL))
            for name, row in rows.items():
                built = row.build(size, self.settings)
                if built.definition is not None:
                    error = relative_rms(built.compute(), built.definition())
                    require_equal(
                        name, f"with {size.n} x {size.d} its output differs from its definition", error
                    )

    def build(self, row: Layer, case: Case) -> Tuple[Built, Tensor]:
        built = row.build(self.size(case), self.settings)
        with torch.no_grad():
            return built, torch.ones_like(built.compute())

    def step(self, row: Layer, built: Tuple[Built, Tensor], case: Case) -> Job:
        return partial(pass_forward_and_back, *built)

    def tiny(self, case: Case) -> Tuple["Complexity", Case]:
        """One sequence of the same length: another may take other code."""
        small = copy.copy(self)
        small.single = True
        return small, case

    def describe(self) -> str:
        args = self.args
        return f"B {args.batch}, H {args.heads}, l {args.projection_length}, float32"


def pass_forward_and_back(built: Built, gradient: Tensor) -> Tuple[Optional[Tensor], ...]:
    """The gradients of all inputs and parameters."""
    return torch.autograd.grad(built.compute(), built.leaves, gradient, allow_unused=True)
