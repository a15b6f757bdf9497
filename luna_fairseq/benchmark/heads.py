"""Forms of an attention on projected heads: random inputs, both passes over them, and what ``causal`` and
``attention`` have in common."""

import argparse
from functools import partial
from typing import Any, ClassVar, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.measure import Case, Job
from luna_fairseq.benchmark.task import DTYPES, Row, Task, add_numbers, require_equal

# Largest relative RMS difference from the definition in float64: rounding alone.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Up to here the forms run that keep a matrix for every position, by default.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
# A named tuple of tensors, some of which want gradients.
Inputs = Any


def outputs(row: Row, inputs: Inputs, gradient: Tensor) -> Tensor:
    """The output alone. ``gradient`` is only held, so that both passes begin with the same memory."""
    with torch.no_grad():
        return row.make(inputs)


def outputs_and_gradients(row: Row, inputs: Inputs, gradient: Tensor) -> List[Optional[Tensor]]:
    """The output, and the gradients of all inputs that the form reads (None for others)."""
    output = row.make(inputs)
    return [output, *torch.autograd.grad(output, list(leaves(inputs).values()), gradient, allow_unused=True)]


def leaves(inputs: Inputs) -> Dict[str, Tensor]:
    """The inputs that want gradients, by name; a tensor that is two of them once."""
    found: Dict[str, Tensor] = {}
    for name, x in zip(inputs._fields, inputs):
        if isinstance(x, Tensor) and x.requires_grad and not any(x is y for y in found.values()):
            found[name] = x
    return found


class AttentionTask(Task):
    """Both passes over every form of an attention at every length.

    Attributes:
        table: its rows
    """

    table: ClassVar[Dict[str, Row]]
    length = "T"

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Lengths, shape and dtype."""
        add_numbers(parser, lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64)
        add_numbers(parser, projection_length=[16], max_naive_length=None)
        parser.add_argument("--dtype", choices=list(DTYPES), default="float32", help="default: float32")

    def rows(self) -> Dict[str, Row]:
        return self.table

    def kinds(self) -> List[Case]:
        """What is compared at every length beside both passes."""
        return [{"l": length} for length in self.args.projection_length]

    def cases(self) -> List[Case]:
        lengths = self.args.lengths
        return [{**kind, "T": T, "pass": which} for kind in self.kinds() for T in lengths for which in PASSES]

    def random(self, *lengths: int) -> List[Tensor]:
        """[B, H, length, K] for every length, as a projection leaves them: a view of [length, B, H, K]."""
        args, device = self.args, self.settings.device
        generator = torch.Generator(device).manual_seed(self.settings.seed)
        options: Any = {"generator": generator, "dtype": DTYPES[args.dtype], "device": device}
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        sizes = [(length, args.batch, args.heads, args.head_dim) for length in lengths]
        return [torch.randn(size, **options).permute(1, 2, 0, 3) for size in sizes]

    def problem(self, case: Case) -> Tuple[Inputs, Tensor]:
        """Inputs, and the gradient of the output [B, H, T, K]."""
        raise NotImplementedError

    def limit(self) -> int:
        """Longest sequence of the forms that keep a matrix for every position."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.settings.device).type]

    def why_not(self, row: Row, case: Case) -> str:
        if row.limited and case["T"] > self.limit():
            return f"at lengths beyond --max-naive-length {self.limit()}"
        return row.why_not(self.args, case, self.settings.device) if row.why_not else ""

    def job(self, row: Row, case: Case) -> Job:
        both = case["pass"] != PASSES[0]
        return partial(outputs_and_gradients if both else outputs, row, *self.problem(case))

    def check(self, row: Row) -> float:
        """Output and gradients must be those of the definition in float64; beyond the definition's longest
        sequence, those of the last head."""
        cases = [{**kind, "T": T} for kind in self.kinds() for T in (SMALL_LENGTH, *self.args.lengths)]
        here = [case for case in cases if row.equals and not self.why_not(row, case)]
        return max((self.error(row, case) for case in here), default=0.0)

    def error(self, row: Row, case: Case) -> float:
        """See :meth:`check`."""
        inputs, gradient = self.problem(case)
        part = slice(-1 if self.table[row.equals].limited and case["T"] > self.limit() else None, None)
        expected = outputs_and_gradients(
            self.table[row.equals], doubled(inputs, part), gradient[part, part].double()
        )
        actual = outputs_and_gradients(row, inputs, gradient)
        errors = [0.0]
        for what, ours, theirs in zip(("output", *leaves(inputs)), actual, expected):
            if theirs is not None:
                what = what if what == "output" else f"gradient of {what}"
                where = f"at length {case['T']} its {what} differs from {row.equals} in {self.args.dtype}"
                ours = theirs * float("nan") if ours is None else ours[part, part]
                errors.append(require_equal(where, ours, theirs, TOLERANCES[self.args.dtype]))
        return max(errors)

    def describe(self) -> str:
        args = self.args
        tied = ", tied" if getattr(args, "tied", False) else ""
        return f"B {args.batch}, H {args.heads}, K {args.head_dim}, {args.dtype}{tied}"


def doubled(inputs: Inputs, part: slice) -> Inputs:
    """The inputs of a part of the sentences and of their heads in float64; what was one tensor stays one."""
    parts: Dict[int, Any] = {}
    for x in inputs:
        if isinstance(x, Tensor) and id(x) not in parts:
            cut = x[part, part].double() if x.is_floating_point() else x[part]
            parts[id(x)] = cut.detach().requires_grad_(x.requires_grad)
    return inputs._replace(**{name: parts.get(id(x), x) for name, x in zip(inputs._fields, inputs)})


def why_no_sdpa(*unused: Any) -> str:
    """Why scaled_dot_product_attention does not run in this torch, or nothing."""
    there = hasattr(F, "scaled_dot_product_attention")
    return "" if there else f"torch {torch.__version__} has no scaled_dot_product_attention"
