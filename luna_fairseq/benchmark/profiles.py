"""Where the time of a job goes: by torch's flop counter and profiler."""

from typing import Any, Dict

import torch
from torch.profiler import ProfilerActivity

from luna_fairseq.benchmark.measure import Job, Record


def of_cpu() -> Dict[Any, Any]:
    """Formulas for fused attention on a CPU, which torch's counter leaves out."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return {
        forward: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        backward: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
    }


def profile(job: Job, record: Record) -> Record:
    """Operations in products of a row's job (causal attention counts whole, Triton's kernels not at all),
    the part of its time in them, bytes that results take, and calls; after a job that takes memory and
    compiles."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, custom_mapping=of_cpu()) as counter:
        job()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    events: Any = [event for event in profiler.events() if event.name.startswith("aten::")]
    products = [event for event in events if "mm" in event.name or "attention" in event.name]
    own, outer = (sum(event.self_cpu_time_total for event in each) for each in (products, events))
    flops, seconds = counter.get_total_flops(), record["seconds"]["median"]
    return {
        **record["case"],
        "row": record["form"],
        "GFLOP of products": flops / 1e9,
        "GFLOP/s": flops / seconds / 1e9,
        "part of the time in products": own / outer,
        "MiB written": sum(max(0, event.self_cpu_memory_usage) for event in events) / 2**20,
        "calls": sum("aten::" not in getattr(event.cpu_parent, "name", "") for event in events),
    }
