"""Projected heads for the attention commands: random inputs, the two passes over a form, and what counts as equal."""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.benchmark.measure import Form, Job, Settings
from luna_fairseq.benchmark.options import DTYPES, at_least
from luna_fairseq.errors import InputError

# Largest relative RMS difference from the definition in the same dtype; the sums differ in their order only.
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 3e-2, "float16": 4e-3}
# A gradient of smaller RMS is none (as through a softmax over one value); that of the output has an RMS of 1.
ZERO = 1e-7
# Checked besides the lengths that are timed.
SMALL_LENGTH = 7
PASSES = ("forward", "forward+backward")
# Up to here the forms run that keep a matrix for every position, by default.
LONGEST_NAIVE = {"cpu": 1024, "cuda": 4096}


@dataclass(frozen=True)
class Shape:
    """B, H, K, L and dtype of a run; ``tied``: keys are values, ``padded``: every second sentence is half padding."""

    batch: int
    heads: int
    head_dim: int
    projection_length: int
    dtype: str
    tied: bool = False
    padded: bool = False

    def __str__(self) -> str:
        return f"B {self.batch}, H {self.heads}, K {self.head_dim}, {self.dtype}" + (", tied" if self.tied else "")


# A named tuple of tensors, some of which want gradients.
Inputs = Any
Function = Callable[[Inputs], Tensor]
# Inputs, and the gradient of the output [B, H, T, K].
MakeInputs = Callable[[Shape, int, Settings], Tuple[Inputs, Tensor]]


def add_shape_options(parser: argparse.ArgumentParser, naive: str) -> None:
    """Lengths, shape and dtype; ``naive`` names the forms that need a matrix for every position."""
    add = parser.add_argument
    lengths = [32, 128, 512, 1024]
    add("--lengths", type=at_least(1), nargs="+", default=lengths, metavar="T", help=f"(default: {lengths})")
    for name, default, what in (
        ("batch", 4, "sentences"),
        ("heads", 8, "attention heads"),
        ("head-dim", 64, "width of a head"),
    ):
        add(f"--{name}", type=at_least(1), default=default, metavar="N", help=f"{what} (default: {default})")
    add(
        "--projection-length",
        type=at_least(1),
        nargs="+",
        default=[16],
        metavar="L",
        help="l, the length of the packed sequence, several allowed (default: 16)",
    )
    add("--dtype", choices=list(DTYPES), default="float32", help="of all inputs (default: float32)")
    add(
        "--max-naive-length",
        type=at_least(1),
        default=None,
        metavar="T",
        help=f"longest sequence of {naive} (default: {LONGEST_NAIVE['cpu']}, on a GPU {LONGEST_NAIVE['cuda']})",
    )


def longest_naive(args: argparse.Namespace, settings: Settings) -> int:
    """``--max-naive-length``, or its default for the device."""
    return args.max_naive_length or LONGEST_NAIVE[torch.device(settings.device).type]


def random_heads(lengths: Sequence[int], shape: Shape, settings: Settings) -> List[Tensor]:
    """[B, H, length, K] for every length, as a projection leaves them: a view of [length, B, H K]."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)

    def heads(length: int) -> Tensor:
        # Nothing is made that is not kept: freed memory would hide as much of what the job takes.
        size = (length, shape.batch, shape.heads, shape.head_dim)
        x = torch.randn(size, generator=generator, dtype=DTYPES[shape.dtype], device=settings.device)
        return x.permute(1, 2, 0, 3)

    return [heads(length) for length in lengths]


def make_form(
    name: str,
    function: Function,
    make_inputs: MakeInputs,
    shape: Shape,
    length: int,
    direction: str,
    settings: Settings,
) -> Form:
    """One pass of ``function``, warmed up with a single head at the same length: another may take other code."""
    single = replace(shape, batch=1, heads=1)
    prepared, warm_up = (
        partial(prepare, function, make_inputs, s, length, direction, settings) for s in (shape, single)
    )
    return Form(name, prepared, warm_up)


def prepare(
    function: Function, make_inputs: MakeInputs, shape: Shape, length: int, direction: str, settings: Settings
) -> Job:
    """The job of :func:`make_form`."""
    inputs, gradient = make_inputs(shape, length, settings)
    return partial(outputs if direction == "forward" else outputs_and_gradients, function, inputs, gradient)


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
    problem: Tuple[Inputs, Tensor],
    dtype: str,
    whole: bool = True,
) -> None:
    """Raise InputError when the output or a gradient of one of ``functions`` differs from the definition's.

    Args:
        functions: forms by name
        reference: name of the definition
        definition: what they must equal
        problem: inputs and gradient of the output
        dtype: of the inputs
        whole: compare all heads; else the last head of the last sentence, for whose sake alone the definition runs
    """
    inputs, gradient = problem
    length = gradient.size(2)
    if whole:
        expected = outputs_and_gradients(definition, inputs, gradient)
    else:
        expected = outputs_and_gradients(definition, last_head(inputs), gradient[-1:, -1:])
    for name, function in functions.items():
        actual = outputs_and_gradients(function, inputs, gradient)
        for what, ours, theirs in zip(("output", *leaves(inputs)), actual, expected):
            if ours is None and theirs is None:
                continue
            error = float("nan") if ours is None else difference(ours if whole else ours[-1:, -1:], theirs)
            if not error <= TOLERANCES[dtype]:
                what = what if what == "output" else f"gradient of {what}"
                raise InputError(
                    f"{name} is not timed because it is wrong: at length {length} its {what} differs from "
                    f"{reference} by {error:.1e} (relative RMS, {dtype} allows {TOLERANCES[dtype]:.0e})"
                )


def difference(actual: Tensor, expected: Tensor) -> float:
    """:func:`relative_rms`; the RMS itself where the expected values are zero but for rounding."""
    if expected.double().pow(2).mean().sqrt() < ZERO:
        return (actual.double() - expected.double()).pow(2).mean().sqrt().item()
    return relative_rms(actual, expected)


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over that of the expected values; NaN where either has one."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm()).item()
