"""Times of interleaved repetitions, and the peak memory of each form in a process of its own."""

import math
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

import torch
from tqdm import tqdm

from luna_fairseq.errors import InputError

# A sample lasts at least so long [s]: the clock and a passing interrupt then weigh little.
SHORTEST_SAMPLE = 0.02
OUT_OF_MEMORY = "{} ran out of memory: ask for smaller sizes"
# Modules that the process from which the memory children are forked has imported already
# (torch imports the last on the first use of some operations).
PRELOAD = ["luna_fairseq", "luna_fairseq.benchmark.measure", "torch.fx.experimental.symbolic_shapes"]

Job = Callable[[], Any]


class Form(NamedTuple):
    """One way of doing a job that other forms do too.

    Attributes:
        name: as the table shows it
        prepare: makes inputs and returns the job
        warm_up: the same for a job of next to no size, through the same code

    Both functions must be picklable: the memory is measured in another process.
    """

    name: str
    prepare: Callable[[], Job]
    warm_up: Callable[[], Job]


# What a comparison's forms have in common, by the table's column names.
Case = Dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        repetitions: samples of each form, at least 2
        threads: of torch, for operations on the CPU
        device: ``cpu``, ``cuda`` or ``cuda:N``
        seed: of inputs, parameters and dropout
    """

    repetitions: int
    threads: int
    device: str
    seed: int


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    q1: float
    q3: float


@dataclass(frozen=True)
class Result:
    """What was measured of one form in one case.

    Attributes:
        case: what the forms of a comparison have in common, by the table's column names
        form: name of the form
        seconds: of one job, a sample per repetition
        calls: jobs in a sample
        extra_bytes: peak memory of a job beyond its inputs and parameters
        count: how much one job does, where its rate is shown
    """

    case: Case
    form: str
    seconds: List[float]
    calls: int
    extra_bytes: int
    count: int = 0


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least two values."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)


def speed_ratio(result: Result, peer: Result) -> Spread:
    """How many times as fast as the peer, repetition by repetition: what slows a round slows both."""
    return spread([theirs / ours for ours, theirs in zip(result.seconds, peer.seconds)])


def compare(
    case: Case, forms: Sequence[Form], count: int, settings: Settings, progress: tqdm
) -> Iterator[List[Result]]:
    """Measure forms against each other: memory first, a child each, then rounds of A B C, A B C, ... after a
    warm-up.

    Args:
        case: what they have in common
        forms: at least one
        count: how much one job does
        settings: how to measure
        progress: a step is a form's memory, its warm-up, and each of its samples

    Yields:
        after every round but the first, the results so far

    Raises:
        InputError: a form needs more memory than there is
    """
    label = ", ".join(f"{name} {value}" for name, value in case.items())
    extra_bytes = {}
    for form in forms:
        progress.set_description(f"{label}: memory of {form.name}")
        extra_bytes[form.name] = measure_extra_bytes(form, settings)
        progress.update()
    jobs = {form.name: form.prepare() for form in forms}
    calls = {}
    for name, job in jobs.items():
        progress.set_description(f"{label}: warm-up of {name}")
        time_calls(job, 1, settings.device)
        calls[name] = max(1, math.ceil(SHORTEST_SAMPLE / time_calls(job, 1, settings.device)))
        progress.update()
    seconds: Dict[str, List[float]] = {name: [] for name in jobs}
    progress.set_description(label)
    for _ in range(settings.repetitions):
        for name, job in jobs.items():
            seconds[name].append(time_calls(job, calls[name], settings.device))
            progress.update()
        if len(seconds[name]) > 1:
            yield [
                Result(case, name, list(seconds[name]), calls[name], extra_bytes[name], count)
                for name in jobs
            ]


def time_calls(job: Job, calls: int, device: str) -> float:
    """Mean seconds of one of ``calls`` consecutive jobs."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        job()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measure_extra_bytes(form: Form, settings: Settings) -> int:
    """Peak memory of one job beyond inputs and parameters, in a fresh process: a peak cannot be taken back.

    On the CPU it is the growth of the peak resident set. On a GPU it is that of torch's allocator, whose peak
    can be taken back: there it is this process.
    """
    if settings.device.startswith("cuda"):
        try:
            return extra_bytes_here(form, settings)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise InputError(OUT_OF_MEMORY.format(form.name)) from None
    # Forked from a server that has only imported: exec() would hand on this process's own peak.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            return pool.submit(extra_bytes_here, form, settings).result()
    except (BrokenProcessPool, MemoryError):
        raise InputError(OUT_OF_MEMORY.format(form.name)) from None


def extra_bytes_here(form: Form, settings: Settings) -> int:
    """Peak memory of one job beyond what this process has taken before it."""
    torch.set_num_threads(settings.threads)
    # The code of libraries, their threads and work space are taken once; they are no form's own.
    form.warm_up()()
    job = form.prepare()
    if settings.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(settings.device)
    before = peak_bytes(settings.device)
    job()
    return peak_bytes(settings.device) - before


def peak_bytes(device: str) -> int:
    """Highest memory use of this process so far."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
