"""The least time of some work: its operations and its bytes, each at the machine's full rate."""

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping

from luna_fairseq.costs.gpus import Gpu

# How torch's types are multiplied: float32 without tf32, as torch does unless it is told to.
RATES = {"float32": "float32", "tf32": "tf32", "float16": "half", "bfloat16": "half"}


@dataclass(frozen=True)
class Work:
    """What has to be done.

    Attributes:
        flops: operations (a product and its sum are two) by the type of their operands
        bytes: that go between the GPU and its memory, when all is read and written once
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        kinds = {**self.flops, **other.flops}
        return Work(
            {kind: self.flops.get(kind, 0.0) + other.flops.get(kind, 0.0) for kind in kinds},
            self.bytes + other.bytes,
        )

    def __mul__(self, times: float) -> "Work":
        return Work({kind: times * n for kind, n in self.flops.items()}, times * self.bytes)


@dataclass(frozen=True)
class Bound:
    """What bounds a piece of work.

    Attributes:
        seconds: of the longer of both
        by: ``operations`` or ``bytes``
    """

    seconds: float
    by: str


def bound(work: Work, gpu: Gpu) -> Bound:
    """The least time of ``work`` where operations and bytes overlap fully."""
    of_operations = sum(n / gpu.flops[RATES[kind]] for kind, n in work.flops.items())
    of_bytes = work.bytes / gpu.bandwidth
    return Bound(max(of_operations, of_bytes), "operations" if of_operations > of_bytes else "bytes")


def beside(work: Work, gpu: Gpu, seconds: float) -> Dict[str, Any]:
    """What stands beside a measured figure, as JSON values; ``share`` is of what the bound allows."""
    least = bound(work, gpu)
    return {
        "flops": sum(work.flops.values()),
        "bytes": work.bytes,
        "bound": least.by,
        "least_seconds": least.seconds,
        "share": least.seconds / seconds,
    }
