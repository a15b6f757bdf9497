"""Where the time of a job goes: by torch's flop counter and profiler."""

from typing import Any, Dict, Sequence

import torch
from torch.profiler import ProfilerActivity

from luna_fairseq.benchmark.measure import Form, Record
from luna_fairseq.benchmark.page import MIB, short, table

# Operations that are products, by a part of their names.
PRODUCTS = ("mm", "attention")


def of_cpu() -> Dict[Any, Any]:
    """Formulas for fused attention on a CPU, which torch's counter leaves out."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *args, **_: sdpa_flop_count(*args[:3]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *args, **_: (
            sdpa_backward_flop_count(*args[:4])
        ),
    }


def profile(form: Form, record: Record) -> Dict[str, Any]:
    """Operations, bytes and times of a form's job, after a first one, which takes memory and compiles.

    The counter counts causal attention whole, and no Triton kernel.
    """
    from torch.utils.flop_counter import FlopCounterMode

    job = form.prepare()
    with FlopCounterMode(display=False, custom_mapping=of_cpu()) as counter:
        job()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    events: Any = [event for event in profiler.events() if event.name.startswith("aten::")]
    inside = [event for event in events if any(name in event.name for name in PRODUCTS)]
    own, outer = (sum(event.self_cpu_time_total for event in each) for each in (inside, events))
    return {
        "case": record["case"],
        "form": form.name,
        "seconds": record["seconds"]["median"],
        "operations": counter.get_total_flops(),
        "part": own / outer,
        "bytes_written": sum(max(0, event.self_cpu_memory_usage) for event in events),
        "calls": sum("aten::" not in getattr(event.cpu_parent, "name", "") for event in events),
    }


def table_of(profiles: Sequence[Dict[str, Any]]) -> str:
    """A line for each form of a case."""
    header = [
        "row",
        "ms",
        "GFLOP of products",
        "GFLOP/s",
        "part of the time in products",
        "MiB written",
        "calls",
    ]
    rows = []
    for each in profiles:
        flops, seconds = each["operations"] / 1e9, each["seconds"]
        numbers = (1e3 * seconds, flops, flops / seconds, each["part"], each["bytes_written"] / MIB)
        rows.append([each["form"], *map(short, numbers), f"{each['calls']:,}"])
    return table(header, rows)
