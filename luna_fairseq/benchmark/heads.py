"""Projected heads: random inputs of an attention, and the two passes over a form of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.measure import Job, Settings
from luna_fairseq.benchmark.options import DTYPES

# Largest relative RMS difference from the definition in the same dtype; the sums differ in their order only.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 3e-2, "float16": 4e-3}
# A gradient of smaller RMS is none (as through a softmax over one value); that of the output has an RMS of 1.
ZERO = 1e-7


@dataclass(frozen=True)
class Shape:
    """B, H, K, L and dtype of a run; ``tied``: keys are values, ``padded``: every second sentence is half
    padding.
    """

    batch: int
    heads: int
    head_dim: int
    projection_length: int
    dtype: str
    tied: bool = False
    padded: bool = False

    def __str__(self) -> str:
        return f"B {self.batch}, H {self.heads}, K {self.head_dim}, {self.dtype}" + (
            ", tied" if self.tied else ""
        )


# A named tuple of tensors, some of which want gradients.
Inputs = Any
Function = Callable[[Inputs], Tensor]
# Inputs, and the gradient of the output [B, H, T, K].
Problem = Tuple[Inputs, Tensor]


def random_heads(lengths: Sequence[int], shape: Shape, settings: Settings) -> List[Tensor]:
    """[B, H, length, K] for every length, as a projection leaves them: a view of [length, B, H K]."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def heads(length: int) -> Tensor:
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        size = (length, shape.batch, shape.heads, shape.head_dim)
        x = torch.randn(size, generator=generator, dtype=DTYPES[shape.dtype], device=settings.device)
        return x.permute(1, 2, 0, 3)

    return [heads(length) for length in lengths]


def one_pass(function: Function, problem: Problem, direction: str) -> Job:
    """``forward``, without gradients, or ``forward+backward``, with those of every input."""
    return partial(outputs if direction == "forward" else outputs_and_gradients, function, *problem)


def outputs(function: Function, inputs: Inputs, gradient: Tensor) -> Tensor:
    """The output alone. ``gradient`` is only held, so that both passes begin with the same memory."""
    with torch.no_grad():
        return function(inputs)


def outputs_and_gradients(function: Function, inputs: Inputs, gradient: Tensor) -> List[Optional[Tensor]]:
    """The output, and the gradients of all inputs that the function reads (None for others)."""
    output = function(inputs)
    return [output, *torch.autograd.grad(output, list(leaves(inputs).values()), gradient, allow_unused=True)]


def leaves(inputs: Inputs) -> Dict[str, Tensor]:
    """The inputs that want gradients, by name; a tensor that is two of them once."""
    found: Dict[str, Tensor] = {}
    for name, x in zip(inputs._fields, inputs):
        if x is not None and x.requires_grad and not any(x is y for y in found.values()):
            found[name] = x
    return found


def last_head(inputs: Inputs) -> Inputs:
    """The inputs of the last head of the last sentence; what was one tensor stays one."""
    parts: Dict[int, Optional[Tensor]] = {id(None): None}
    for x in inputs:
        if id(x) not in parts:
            part = x[-1:, -1:] if x.is_floating_point() else x[-1:]
            parts[id(x)] = part.detach().requires_grad_(x.requires_grad)
    return inputs._replace(**{name: parts[id(x)] for name, x in zip(inputs._fields, inputs)})


def check_equal(
    functions: Dict[str, Function],
    reference: str,
    definition: Function,
    problem: Problem,
    dtype: str,
    whole: bool,
) -> None:
    """Raise InputError when the output or a gradient of one of ``functions`` differs from the definition's.

    Args:
        functions: forms by name
        reference: name of the definition
        definition: what they must equal
        problem: inputs and gradient of the output
        dtype: of the inputs
        whole: compare all heads; else the last head of the last sentence, for whose sake alone the definition
            runs
    """
    inputs, gradient = problem
    if whole:
        expected = outputs_and_gradients(definition, inputs, gradient)
    else:
        expected = outputs_and_gradients(definition, last_head(inputs), gradient[-1:, -1:])
    for name, function in functions.items():
        actual = outputs_and_gradients(function, inputs, gradient)
        for what, ours, theirs in zip(("output", *leaves(inputs)), actual, expected):
            if ours is None and theirs is None:
                continue
            what = what if what == "output" else f"gradient of {what}"
            error = float("nan") if ours is None else difference(ours if whole else ours[-1:, -1:], theirs)
            where = f"at length {gradient.size(2)} its {what} differs from {reference} in {dtype}"
            require_equal(name, where, error, TOLERANCES[dtype])


def difference(actual: Tensor, expected: Tensor) -> float:
    """:func:`relative_rms`; the RMS itself where the expected values are zero but for rounding."""
    if expected.double().pow(2).mean().sqrt() < ZERO:
        return (actual.double() - expected.double()).pow(2).mean().sqrt().item()
    return relative_rms(actual, expected)
