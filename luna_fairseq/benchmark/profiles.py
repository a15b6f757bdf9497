"""Where the time of a job goes on a CPU: matrix products and what they could be done in, beside all else."""

import math
import textwrap
from typing import Any, Dict, List, Sequence

import torch
from torch.profiler import ProfilerActivity

from luna_fairseq.benchmark.gpu.machine import product_rate
from luna_fairseq.benchmark.measure import Form, Result, spread
from luna_fairseq.benchmark.task import NOTES_WIDTH
from luna_fairseq.errors import InputError

# Side of the square product whose rate is the roof.
SIDE = 1024
# Of products, the first of the two factors among the inputs.
PRODUCTS = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}
# Of torch's fused attention, the queries among the inputs, the products of T x S x K that it takes, and the
# input that says whether it is causal.
FUSED = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 2, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (1, 5, 7),
}
HEADER = ["form", "ms", "GFLOP of products", "ms at the roof", "products: part", "MiB written", "calls"]
NOTES = """By torch's profiler, of one job: operations in matrix products, torch's fused attention among them;
how long they alone would take at the rate of a product of two square matrices of {side} ({rate:.0f} GFLOP/s);
the part of the time that is spent in them; memory that results are written to; operations that torch was
asked for."""

Profile = Dict[str, Any]


def roof() -> float:
    """Operations a second of a large matrix product on this CPU."""
    return product_rate("cpu", torch.float32, SIDE)


def profile(form: Form) -> Profile:
    """Operations, bytes and times of one job of a form, in a second one, as the first takes memory and
    compiles."""
    job = form.prepare()
    job()
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    ) as profiler:
        job()
    events = [event for event in profiler.events() if event.name.startswith("aten::")]
    inside = [event for event in events if event.name in PRODUCTS or event.name in FUSED]
    return {
        "form": form.name,
        "operations": sum(map(operations, inside)),
        "part": seconds(inside) / seconds(events),
        "bytes_written": sum(max(0, event.self_cpu_memory_usage) for event in events),
        "calls": sum(event.cpu_parent is None or not is_operation(event.cpu_parent) for event in events),
    }


def is_operation(event: Any) -> bool:
    """Whether the profiler's event is an operation of torch."""
    return event.name.startswith("aten::")


def seconds(events: Sequence[Any]) -> float:
    """Time in the events themselves, not in those that they call."""
    return sum(event.self_cpu_time_total for event in events) / 1e6


def operations(event: Any) -> int:
    """Multiplications and additions of a product or a fused attention, by the shapes of its inputs."""
    if event.name in PRODUCTS:
        a, b = event.input_shapes[PRODUCTS[event.name] :][:2]
        return 2 * math.prod(a) * b[-1]
    first, products, causal = FUSED[event.name]
    q, k = event.input_shapes[first : first + 2]
    whole = 2 * products * math.prod(q) * k[-2]
    return whole // 2 if event.concrete_inputs[causal] else whole


def of_case(results: Sequence[Result], forms: Sequence[Form], rate: float) -> List[Profile]:
    """What :func:`profile` says of each form, with the time that was measured and the least that its products
    can take."""
    seconds_of = {result.form: spread(result.seconds).median for result in results}
    case = results[0].case
    found = []
    for form in forms:
        counted = profile(form)
        at_roof = counted["operations"] / rate
        found.append({"case": case, "seconds": seconds_of[form.name], "seconds_at_roof": at_roof, **counted})
    return found


def notes(rate: float) -> List[str]:
    """What the columns of :func:`table` mean."""
    return textwrap.wrap(NOTES.format(side=SIDE, rate=rate / 1e9).replace("\n", " "), NOTES_WIDTH)


def table(profiles: Sequence[Profile]) -> str:
    """A line for each form of a case."""
    rows = [
        [
            each["form"],
            f"{1e3 * each['seconds']:,.2f}",
            f"{each['operations'] / 1e9:,.2f}",
            f"{1e3 * each['seconds_at_roof']:,.2f}",
            f"{each['part']:.2f}",
            f"{each['bytes_written'] / 2**20:,.0f}",
            f"{each['calls']:,}",
        ]
        for each in profiles
    ]
    widths = [max(map(len, column)) for column in zip(HEADER, *rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [HEADER, *rows]]
    return "\n".join(lines) + "\n"


def check_device(device: str) -> None:
    """Raise InputError for a device whose time is not spent in calls that the CPU makes one by one."""
    if device != "cpu":
        raise InputError("--profile is for the CPU: for a GPU there is scripts/measure_gpu.sh")
