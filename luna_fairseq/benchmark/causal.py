"""``causal``: the forms of Luna's causal attention, and softmax attention, on projected heads."""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from luna_fairseq.benchmark.measure import Form, Job, Settings, compare, count_steps
from luna_fairseq.benchmark.options import at_least
from luna_fairseq.benchmark.report import Section
from luna_fairseq.errors import InputError
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights

HELP = "causal attention: Luna's naive and chunk forms beside torch's scaled_dot_product_attention"
NOTES = (
    "Causal attention of projected heads, Luna's pack weights (softplus) included, the projections themselves left",
    "out. naive is the cumulative sum of the outer products of all positions, divided by the position: the way",
    "the definition is usually trained, so it is not timed twice. sdpa is torch's scaled_dot_product_attention with",
    "is_causal, a different function of the same inputs. forward: without gradients; forward+backward: gradients of",
    "every input.",
)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Largest relative RMS difference from the naive form in the same dtype; the sums differ in their order only.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 3e-2, "float16": 4e-3}
# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")


class Inputs(NamedTuple):
    """q, k, v and pack_k [B, H, T, K], as a projection leaves them (a view of [T, B, H K]); pack_q [B, H, L, K]."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_k: Tensor
    pack_q: Tensor


@dataclass(frozen=True)
class Shape:
    """B, H, K, L and the dtype of a run."""

    batch: int
    heads: int
    head_dim: int
    projection_length: int
    dtype: str


def luna(inputs: Inputs, backend: str) -> Tensor:
    weights = pack_weights(inputs.pack_q, inputs.pack_k, "softplus")
    return causal_luna(inputs.q, inputs.k, inputs.v, weights, backend=backend)


def sdpa(inputs: Inputs) -> Tensor:
    return F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, is_causal=True)


# The first is the definition, which the other forms of Luna must equal.
LUNA_FORMS: Dict[str, Callable[[Inputs], Tensor]] = {
    "naive": partial(luna, backend="naive"),
    "chunk": partial(luna, backend="chunk"),
}
PEER_FORMS: Dict[str, Callable[[Inputs], Tensor]] = {"sdpa": sdpa}
PEERS = ("naive", "sdpa")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command."""
    lengths = [32, 128, 512, 1024]
    parser.add_argument(
        "--lengths", type=at_least(1), nargs="+", default=lengths, metavar="T", help=f"(default: {lengths})"
    )
    for name, default, what in (
        ("batch", 4, "sentences"),
        ("heads", 8, "attention heads"),
        ("head-dim", 64, "width of a head"),
        ("projection-length", 16, "l, the length of the packed sequence"),
    ):
        parser.add_argument(
            f"--{name}", type=at_least(1), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32", help="of all inputs (default: float32)")


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """Check, then time, every form at every length.

    Raises:
        InputError: a form of Luna differs from the naive one, nothing is timed then; or torch is older than 2.0
    """
    if not hasattr(F, "scaled_dot_product_attention"):
        raise InputError(f"torch {torch.__version__} has no scaled_dot_product_attention: the peer needs 2.0 or newer")
    shape = Shape(args.batch, args.heads, args.head_dim, args.projection_length, args.dtype)
    for length in (SMALL_LENGTH, *args.lengths):
        check_forms(shape, length, settings)
    results = []
    names = [*LUNA_FORMS, *PEER_FORMS]
    cases = [(length, direction) for length in args.lengths for direction in PASSES]
    with tqdm(total=len(cases) * count_steps(len(names), settings), leave=False) as progress:
        for length, direction in cases:
            forms = [make_form(name, shape, length, direction, settings) for name in names]
            results += compare({"T": length, "pass": direction}, forms, settings, progress)
    sizes = f"B {args.batch}, H {args.heads}, K {args.head_dim}, l {args.projection_length}, {args.dtype}"
    return Section("causal", (*NOTES, sizes), PEERS, results)


def make_inputs(shape: Shape, length: int, settings: Settings) -> Tuple[Inputs, Tensor]:
    """Inputs that want gradients, and the gradient of the output [B, H, T, K]."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def heads(length: int) -> Tensor:
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        size = (length, shape.batch, shape.heads, shape.head_dim)
        x = torch.randn(size, generator=generator, dtype=DTYPES[shape.dtype], device=settings.device)
        return x.permute(1, 2, 0, 3)

    inputs = Inputs(*(heads(n).requires_grad_() for n in (length, length, length, length, shape.projection_length)))
    return inputs, heads(length)


def make_form(name: str, shape: Shape, length: int, direction: str, settings: Settings) -> Form:
    """The form ``name``, warmed up with a single head at the same length: another length may take other code."""
    single = replace(shape, batch=1, heads=1)
    prepared, warm_up = (partial(prepare, name, s, length, direction, settings) for s in (shape, single))
    return Form(name, prepared, warm_up)


def prepare(name: str, shape: Shape, length: int, direction: str, settings: Settings) -> Job:
    """One pass of the form ``name``."""
    inputs, gradient = make_inputs(shape, length, settings)
    form = {**LUNA_FORMS, **PEER_FORMS}[name]
    if direction == "forward":
        return partial(outputs, form, inputs, gradient)
    return partial(outputs_and_gradients, form, inputs, gradient)


def outputs(form: Callable[[Inputs], Tensor], inputs: Inputs, gradient: Tensor) -> Tensor:
    """The output alone. ``gradient`` is only held, so that both passes begin with the same memory."""
    with torch.no_grad():
        return form(inputs)


def outputs_and_gradients(form: Callable[[Inputs], Tensor], inputs: Inputs, gradient: Tensor) -> List[Tensor]:
    """The output and the gradients of all inputs that the form reads (None for others)."""
    output = form(inputs)
    return [output, *torch.autograd.grad(output, list(inputs), gradient, allow_unused=True)]


def check_forms(shape: Shape, length: int, settings: Settings) -> None:
    """Raise InputError when a form of Luna differs from the naive one, in its output or a gradient."""
    inputs, gradient = make_inputs(shape, length, settings)
    (reference, *others) = LUNA_FORMS
    expected = outputs_and_gradients(LUNA_FORMS[reference], inputs, gradient)
    for name in others:
        actual = outputs_and_gradients(LUNA_FORMS[name], inputs, gradient)
        for what, ours, theirs in zip(("output", *Inputs._fields), actual, expected):
            error = relative_rms(ours, theirs)
            if not error <= TOLERANCES[shape.dtype]:
                what = what if what == "output" else f"gradient of {what}"
                raise InputError(
                    f"{name} is not timed because it is wrong: at length {length} its {what} differs from "
                    f"{reference} by {error:.1e} (relative RMS, {shape.dtype} allows {TOLERANCES[shape.dtype]:.0e})"
                )


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over that of the expected values; NaN where either has one."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm()).item()
