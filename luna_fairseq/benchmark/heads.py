"""Forms of an attention on projected heads: random inputs, both passes over them, and what ``causal`` and
``attention`` have in common."""

from functools import partial
from typing import Any, ClassVar, Dict, List, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.task import DTYPES, Case, Job, Row, Task, choice, numbers, require_equal

# Largest relative RMS difference from the definition in float64: rounding alone.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}
# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Up to here the forms run that keep a matrix for every position, by default.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}
# What forms take, by name: [B, H, ..] or [B, ..]. Some want gradients, and "gradient" is that of the output.
Inputs = Dict[str, Tensor]


def outputs(row: Row, inputs: Inputs) -> Tensor:
    """The output alone."""
    with torch.no_grad():
        return row.make(inputs)


def outputs_and_gradients(row: Row, inputs: Inputs) -> Dict[str, Optional[Tensor]]:
    """The output, and the gradients of all inputs that the form reads (None for others), by name."""
    output, leaves = row.make(inputs), {name: x for name, x in inputs.items() if x.requires_grad}
    gradients = torch.autograd.grad(output, [*leaves.values()], inputs["gradient"], allow_unused=True)
    return {"output": output, **{f"gradient of {name}": x for name, x in zip(leaves, gradients)}}


class AttentionTask(Task):
    """Both passes over every form of an attention at every length.

    Attributes:
        kinds: what is compared at every length and l
    """

    kinds: ClassVar[List[Case]] = [{}]
    length = "T"
    options = {
        **numbers(lengths=[32, 128, 512, 1024], batch=4, heads=8, head_dim=64),
        **numbers(projection_length=[16], max_naive_length=None),
        "--dtype": choice(*DTYPES),
    }

    def of_lengths(self, *lengths: int) -> List[Case]:
        """What is compared at every length, but for the pass."""
        ells, kinds = self.args.projection_length, self.kinds
        return [{"l": L, **kind, "T": T} for L in ells for kind in kinds for T in lengths]

    def cases(self) -> List[Case]:
        return [{**case, "pass": which} for case in self.of_lengths(*self.args.lengths) for which in PASSES]

    def random(self, **lengths: int) -> Inputs:
        """[B, H, length, K] for every length, as a projection leaves them: a view of [length, B, H, K]."""
        args = self.args
        generator = torch.Generator(args.device).manual_seed(args.seed)
        options: Any = {"generator": generator, "dtype": DTYPES[args.dtype], "device": args.device}
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        sizes = {name: (length, args.batch, args.heads, args.head_dim) for name, length in lengths.items()}
        heads = {name: torch.randn(size, **options).permute(1, 2, 0, 3) for name, size in sizes.items()}
        return {name: x.requires_grad_(name != "gradient") for name, x in heads.items()}

    def problem(self, case: Case) -> Inputs:
        """The inputs."""
        raise NotImplementedError

    def limit(self) -> int:
        """Longest sequence of the forms that keep a matrix for every position."""
        return self.args.max_naive_length or LONGEST_NAIVE[torch.device(self.args.device).type]

    def why_not(self, row: Row, case: Case) -> str:
        if row.limited and case["T"] > self.limit():
            return f"at lengths beyond --max-naive-length {self.limit()}"
        return super().why_not(row, case)

    def job(self, row: Row, case: Case) -> Job:
        both = case["pass"] != PASSES[0]
        return partial(outputs_and_gradients if both else outputs, row, self.problem(case))

    def check(self, row: Row) -> float:
        """Output and gradients must be those of the definition in float64; beyond the definition's longest
        sequence, those of the last head."""
        cases = self.of_lengths(SMALL_LENGTH, *self.args.lengths)
        here = [case for case in cases if row.equals and not self.why_not(row, case)]
        return max((self.error(row, case) for case in here), default=0.0)

    def error(self, row: Row, case: Case) -> float:
        """See :meth:`check`."""
        inputs = self.problem(case)
        definition = self.table[row.equals]
        part = slice(-1 if definition.limited and case["T"] > self.limit() else None, None)
        doubled = {}
        for name, x in inputs.items():
            cut = x[part, part].detach().double() if x.is_floating_point() else x[part]
            doubled[name] = cut.requires_grad_(x.requires_grad)
        expected = outputs_and_gradients(definition, doubled)
        actual = outputs_and_gradients(row, inputs)
        errors = [0.0]
        for what, theirs in expected.items():
            if theirs is not None:
                where = f"at length {case['T']} its {what} differs from {row.equals} in {self.args.dtype}"
                found = actual[what]
                ours = theirs * float("nan") if found is None else found[part, part]
                errors.append(require_equal(where, ours, theirs, TOLERANCES[self.args.dtype]))
        return max(errors)


def why_no_sdpa(*unused: Any) -> str:
    """Why scaled_dot_product_attention does not run in this torch, or nothing."""
    there = hasattr(F, "scaled_dot_product_attention")
    return "" if there else f"torch {torch.__version__} has no scaled_dot_product_attention"
