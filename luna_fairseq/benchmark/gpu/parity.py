"""The Triton kernels against the chunkwise form in float64: the output and every gradient."""

import time
from typing import Any, Dict, Iterator, List, NamedTuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna import chunk_causal_luna
from luna_fairseq.ops.causal_luna import triton as form
from luna_fairseq.ops.causal_luna.choice import RATES, RATES_TOLERANCE

NAMES = ("output", *(f"gradient of {x}" for x in ("q", "k", "v", "the pack weights", "the rates")))
# Relative RMS on a GPU. The interpreter cuts half-precision results off where a GPU rounds them: twice that.
TOLERANCES = {"float32": 1e-5, "bfloat16": 6e-3, "float16": 2e-3}
BATCH, HEADS = 2, 2


class Case(NamedTuple):
    """T positions, head width K, L rows of P; ``masks``: none, or padding on both sides and of P; ``decay``:
    it forgets."""

    T: int
    K: int
    L: int
    dtype: str
    masks: bool = False
    decay: bool = False

    def __str__(self) -> str:
        kinds = f"{', masked' if self.masks else ''}{', decay' if self.decay else ''}"
        return f"T {self.T}, K {self.K}, l {self.L}, {self.dtype}{kinds}"


# The sizes that models have, then everything odd, then the widest and longest.
SHAPES = [
    (1024, 64, 16), (4096, 64, 16), (16384, 64, 16), (30, 64, 16), (4096, 64, 32), (1000, 64, 16),
    (2048, 64, 128), (4096, 128, 16), (1, 64, 16), (2, 16, 8), (3, 32, 16), (17, 40, 8), (31, 24, 5),
    (33, 80, 33), (65, 96, 64), (127, 128, 100), (257, 64, 256), (1023, 48, 16), (4097, 16, 8),
    (16383, 64, 16), (16384, 128, 16), (777, 112, 200), (2048, 64, 256), (1024, 128, 256), (16384, 64, 128),
]  # fmt: skip
SMALL_SHAPES = [(19, 16, 8), (33, 24, 5)]


def cases(small: bool, half: str) -> List[Case]:
    """All that are compared, the most important first."""
    shapes = SMALL_SHAPES if small else SHAPES
    in_float16 = [] if small or half == "float16" else shapes
    return [
        *(Case(*shape, half, i % 2 == 1, decay=i % 3 == 1) for i, shape in enumerate(shapes)),
        *(Case(*shape, "float32", i % 2 == 0, decay=i % 3 == 1) for i, shape in enumerate(shapes)),
        *(Case(*shape, "float16", i % 3 == 0, decay=i % 2 == 1) for i, shape in enumerate(in_float16)),
    ]


def compare(case: Case, device: str, planted: bool = False) -> Iterator[Dict[str, Any]]:
    """A row with the relative RMS error of the output and of every gradient.

    Args:
        case: what is compared
        device: ``cuda``, or ``cpu`` in Triton's interpreter
        planted: the kernels' sums over segments are left out, which must be found
    """
    if planted:
        plant()
    inputs, options, gradient = problem(case, device)
    start = time.perf_counter()
    actual = passes(with_rates(form.triton_causal_luna, options), inputs, gradient)
    seconds = time.perf_counter() - start
    doubles = [x.double() for x in inputs]
    expected = passes(with_rates(chunk_causal_luna, options), doubles, gradient.double())
    errors = {name: relative_rms(a, e) for name, a, e in zip(NAMES, actual, expected)}
    plan = form.make_plan(BATCH * HEADS, case.T, case.K, case.L, inputs[0].element_size())
    tolerance = TOLERANCES[case.dtype] * (2 if form.interpreted() else 1)
    allowed = {name: tolerance * (RATES_TOLERANCE if name == NAMES[-1] else 1) for name in errors}
    # The one that is most of what it may be, or is no number.
    worst = max(errors, key=lambda name: errors[name] / allowed[name] if errors[name] >= 0 else float("inf"))
    yield {
        **case._asdict(),
        "errors": errors,
        "worst": errors[worst] if errors[worst] >= 0 else float("inf"),
        "tolerance": allowed[worst],
        "equal": all(error <= allowed[name] for name, error in errors.items()),
        "plan": plan._asdict(),
        "seconds": seconds,
    }


def plant() -> None:
    """Make the kernels wrong: many segments, whose sums stay where they are."""
    form.PROGRAMS = 10**6
    form.scan = lambda *args, **options: None


def with_rates(function: Any, options: Dict[str, Any]) -> Any:
    """``function`` of q, k, v, pack weights, and rates where there are any."""
    return lambda q, k, v, a, *rates: function(q, k, v, a, **options, rates=rates[0] if rates else None)


def problem(case: Case, device: str) -> Any:
    """Inputs as projections leave them, masks as keyword arguments, the gradient of the output."""
    generator = torch.Generator().manual_seed(case.T + case.K + case.L)
    dtype = getattr(torch, case.dtype)

    def heads() -> Tensor:
        x = torch.randn(case.T, BATCH, HEADS, case.K, generator=generator)
        return x.to(device, dtype).permute(1, 2, 0, 3)

    q, k, v, gradient = (heads() for _ in range(4))
    weights = (torch.rand(BATCH, HEADS, case.T, case.L, generator=generator) * 2).to(device)
    options = {}
    if case.masks:
        position, row = torch.arange(case.T)[None, :], torch.arange(case.L)[None, :]
        padding = torch.stack([position[0] < case.T // 3, position[0] >= case.T - case.T // 4])
        packed = row >= torch.tensor([[max(1, case.L - 2)], [case.L]])
        options = {"key_padding_mask": padding.to(device), "packed_padding_mask": packed.to(device)}
    rates = [torch.tensor(RATES, device=device)] if case.decay else []
    return [q, k, v, weights, *rates], options, gradient


def passes(function: Any, inputs: List[Tensor], gradient: Tensor) -> List[Tensor]:
    """The output, and the gradients of all inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    found = torch.autograd.grad(output, leaves, gradient.to(output.dtype))
    return [output.detach(), *found]


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """RMS of the difference over that of the expected values."""
    difference = (actual.double() - expected.double()).norm()
    return (difference / expected.double().norm().clamp(min=1e-30)).item()
