"""Measurements of time, memory and floating-point operations with torch's own tools."""

import itertools
import math
import statistics
from argparse import Namespace
from typing import Any, Callable, Dict, List, Mapping, Sequence

import torch
from torch.profiler import ProfilerActivity
from torch.utils.benchmark import Timer

from luna_fairseq.benchmark.task import Case, Job, Record, Section

# Shortest sample in seconds. In longer samples, the clock's resolution and interrupts matter little.
SHORTEST_SAMPLE = 0.02
# Linear layers of prepared models on a CPU: weights in the order of oneDNN, and 8-bit weights.
LINEAR_OPERATORS = (
    ("mkldnn", "_linear_pointwise"),
    ("quantized", "linear_with_input_q_dq_qweight_dq_output_fp32"),
    ("quantized", "linear_dynamic"),
    ("onednn", "qlinear_pointwise"),
)


def compare(case: Case, prepare: Mapping[str, Callable[[], Job]], section: Section, args: Namespace) -> None:
    """Measure the time and memory of several implementations, and append the results to ``section``.

    ``case`` is the setting, such as the sequence length. ``prepare`` maps the name of an implementation to a
    function that prepares its inputs and returns the job to measure.

    Memory is measured first. The implementations are then timed in turn (A B C, A B C, ...), so that other
    load on the machine affects all of them equally.
    """
    extra: Dict[str, int] = {}
    timers: Dict[str, Timer] = {}
    for name, make in prepare.items():
        with section.recording_errors(name):
            # The first call allocates memory that later calls reuse, such as the workspace of libraries.
            make()()
            job = make()
            extra[name] = extra_bytes(job, args.device)
            timers[name] = Timer("job()", globals={"job": job}, num_threads=args.threads)
    samples: Dict[str, List[Any]] = {name: [] for name in timers}
    for _ in range(args.repetitions):
        for name, timer in timers.items():
            section.set_running(name)
            # blocked_autorange warms up before every sample, because another row has run in between.
            samples[name].append(timer.blocked_autorange(min_run_time=SHORTEST_SAMPLE))
    seconds = {name: [sample.median for sample in each] for name, each in samples.items()}
    for name, ours in seconds.items():
        record: Record = {"case": case, "form": name, "seconds": {**spread(ours), "samples": ours}}
        # A sample is the median of blocks of number_per_run calls.
        record["calls_per_sample"] = min(x.number_per_run * len(x.raw_times) for x in samples[name])
        # Both times of a ratio are from the same repetition, because a busy machine slows both rows.
        ratios = {peer: [b / a for a, b in zip(ours, seconds.get(peer, []))] for peer in section.peers}
        record["speed_ratio"] = {peer: spread(each) for peer, each in ratios.items() if each}
        record["extra_bytes"] = extra[name]
        if section.rate:
            number = case["sentences"] * (case["T"] if section.rate == "tokens" else 1)
            record[f"{section.rate}_per_second"] = number / record["seconds"]["median"]
        section.results.append(record)
    section.set_running("")


def spread(values: Sequence[float]) -> Dict[str, float]:
    """Return the quartiles of at least two numbers as a dictionary with the keys "q1", "median" and "q3"."""
    return dict(zip(("q1", "median", "q3"), statistics.quantiles(values, n=4, method="inclusive")))


def extra_bytes(job: Job, device: str) -> int:
    """Return the extra memory of a job in bytes: peak usage during the job minus usage before it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        job()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us())
    return max(itertools.accumulate((event.nbytes() for event in events), initial=0))


def count_linear_flops(x: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """Return the FLOPs of a linear layer, given the shapes of its input ``x`` and of its output."""
    return 2 * math.prod(x) * out_shape[-1]


def cpu_flop_formulas() -> Dict[Any, Any]:
    """Return functions that count the FLOPs of attention and linear layers on a CPU, keyed by operator.

    ``FlopCounterMode`` has no formulas for these operators and would count 0.
    """
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    formulas: Dict[Any, Any] = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda *shapes, **_: sdpa_flop_count(*shapes[:3])
        ),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    for library, name in LINEAR_OPERATORS:
        operator = getattr(getattr(torch.ops, library), name, None)
        if operator is not None:
            formulas[operator] = count_linear_flops
    return formulas


def is_product(operator: str) -> bool:
    """Return True if an operator, such as "aten::addmm", computes matrix products or attention."""
    return any(part in operator for part in ("mm", "attention", *(name for _, name in LINEAR_OPERATORS)))


def profile(job: Job, record: Record, device: str) -> Record:
    """Profile a job. Return its FLOPs, speed, memory and operator calls as a table row, keyed by column.

    ``record`` holds the case, the name and the measured time of the job. FLOPs are counted for matrix
    products and attention, including masked positions, but not for Triton kernels. The profiler measures the
    time and memory of operators on the CPU. On a GPU, their columns are omitted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False, custom_mapping=cpu_flop_formulas()) as counter:
        job()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    events: Any = [event for event in profiler.events() if "::" in event.name]
    flops, seconds = counter.get_total_flops(), record["seconds"]["median"]
    row = {**record["case"], "row": record["form"]}
    row.update({"GFLOP of products": flops / 1e9, "GFLOP/s": flops / seconds / 1e9})
    if not device.startswith("cuda"):
        products = [event for event in events if is_product(event.name)]
        product_time, total_time = (
            sum(event.self_cpu_time_total for event in each) for each in (products, events)
        )
        row["part of the time in products"] = product_time / total_time
        row["MiB written"] = sum(max(0, event.self_cpu_memory_usage) for event in events) / 2**20
    row["calls"] = sum("::" not in getattr(event.cpu_parent, "name", "") for event in events)
    return row
