"""What the machine is, and the rates that it really reaches: the roof of every roofline here."""

import platform
import time
from typing import Any, Callable, Dict, Iterator

import torch

from luna_fairseq.costs.gpus import GPUS, Gpu

TRIES = 5


def describe(device: str, side: int, numbers: int) -> Iterator[Dict[str, Any]]:
    """One row: names, versions, and the best of a few matrix products and copies.

    Args:
        device: ``cuda`` or ``cpu``
        side: of the square matrices
        numbers: float32 numbers that are copied
    """
    row: Dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "capability": None,
        "torch": torch.__version__,
        "triton": triton_version(),
        "python": platform.python_version(),
    }
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        row.update(
            device=found.name,
            capability=10 * found.major + found.minor,
            memory=found.total_memory,
            sms=found.multi_processor_count,
            cuda=torch.version.cuda,
        )
    rates = {"float32": product_rate(device, torch.float32, side)}
    torch.set_float32_matmul_precision("high")
    rates["tf32"] = product_rate(device, torch.float32, side)
    torch.set_float32_matmul_precision("highest")
    half = half_type(row["capability"])
    rates["half"] = product_rate(device, getattr(torch, half), side) if device == "cuda" else rates["float32"]
    yield {**row, "half": half, "flops": rates, "bandwidth": copy_rate(device, numbers)}


def half_type(capability: Any) -> str:
    """The 16-bit type that the GPU's tensor cores take."""
    return "float16" if capability is not None and capability < 80 else "bfloat16"


def product_rate(device: str, dtype: torch.dtype, side: int) -> float:
    """Operations a second of a square matrix product."""
    x = torch.randn(side, side, device=device, dtype=dtype)
    return 2 * side**3 / best_seconds(lambda: x @ x, device)


def copy_rate(device: str, numbers: int) -> float:
    """Bytes a second, read and written, of a copy."""
    x = torch.zeros(numbers, device=device)
    y = torch.empty_like(x)
    return 8 * numbers / best_seconds(lambda: y.copy_(x), device)


def best_seconds(work: Callable[[], Any], device: str) -> float:
    """The shortest of a few."""
    seconds = []
    for _ in range(TRIES + 1):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def triton_version() -> str:
    """Of the installed one, or ``none``."""
    try:
        import triton
    except ImportError:
        return "none"
    return triton.__version__


def measured_gpu(row: Dict[str, Any]) -> Gpu:
    """The machine as the roofline takes it: rates as :func:`describe` measured them."""
    return Gpu(
        row["device"], row["capability"] or 0, row.get("memory", 0.0), row["bandwidth"], row["flops"],
        row["half"], row.get("sms", 0), 0, 0, 0.0, 0.0,
    )  # fmt: skip


def datasheet(row: Dict[str, Any]) -> Dict[str, float]:
    """What its maker says of the same GPU, where it is one that is listed."""
    for name, gpu in GPUS.items():
        if name in row["device"].lower():
            return {"bandwidth": gpu.bandwidth, **gpu.flops}
    return {}
