"""Times of interleaved repetitions by torch.utils.benchmark, and the peak memory of each form in a process of
its own."""

import multiprocessing
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import torch
from torch.utils.benchmark import Timer

from luna_fairseq.errors import InputError

# A sample lasts at least so long [s]: the clock and a passing interrupt then weigh little.
SHORTEST_SAMPLE = 0.02
# Modules that the process from which the memory children are forked has imported already
# (torch imports the last on the first use of some operations).
PRELOAD = ["luna_fairseq", "luna_fairseq.benchmark.measure", "torch.fx.experimental.symbolic_shapes"]

Job = Callable[[], Any]
# What a comparison's forms have in common, by the table's column names.
Case = Dict[str, Any]
# What was measured of a form in a case, as JSON: seconds, bytes, ratios of speeds.
Record = Dict[str, Any]


class Form(NamedTuple):
    """A way of doing a job that others do too: ``prepare`` makes inputs and gives the job, ``warm_up`` one of
    next to no size, through the same code. Both are picklable: memory is measured in another process."""

    name: str
    prepare: Callable[[], Job]
    warm_up: Callable[[], Job]


@dataclass(frozen=True)
class Settings:
    """How to measure: samples of each form (at least 2), torch's threads on the CPU, ``cpu`` or ``cuda:N``,
    and the seed of inputs, parameters and dropout."""

    repetitions: int
    threads: int
    device: str
    seed: int

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one."""
        return self.device.startswith("cuda")


def compare(
    case: Case,
    forms: Sequence[Form],
    peers: Sequence[str],
    settings: Settings,
    begin: Callable[[str], Any] = lambda name: None,
    failed: Callable[..., None] = lambda name, error: None,
) -> List[Record]:
    """The records of forms in a case that they have in common: the memory of each first, then rounds of A B
    C, A B C, ... ``begin`` is told the name of each form before its first job, ``failed`` also why one has no
    record."""
    extra: Dict[str, int] = {}
    timers: Dict[str, Timer] = {}
    for form in forms:
        begin(form.name)
        try:
            extra[form.name] = extra_bytes(form, settings)
            job = form.prepare()
            job()
        except (InputError, RuntimeError) as error:
            failed(form.name, error)
            continue
        timers[form.name] = Timer("job()", globals={"job": job}, num_threads=settings.threads)
    begin("")
    samples: Dict[str, List[Any]] = {name: [] for name in timers}
    for _ in range(settings.repetitions):
        for name, timer in timers.items():
            # It warms up before every sample: another form has been at work.
            samples[name].append(timer.blocked_autorange(min_run_time=SHORTEST_SAMPLE))
    seconds = {name: [sample.median for sample in each] for name, each in samples.items()}
    return [
        {
            "case": case,
            "form": name,
            "seconds": {**spread(seconds[name]), "samples": seconds[name]},
            "calls_per_sample": samples[name][0].number_per_run,
            "speed_ratio": {
                # Repetition by repetition: what slows a round slows both.
                peer: spread([theirs / ours for ours, theirs in zip(seconds[name], seconds[peer])])
                for peer in peers
                if peer in seconds
            },
            "extra_bytes": extra[name],
        }
        for name in timers
    ]


def spread(values: Sequence[float]) -> Dict[str, float]:
    """Median and quartiles of at least two values."""
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def extra_bytes(form: Form, settings: Settings) -> int:
    """Peak memory of one job beyond inputs and parameters, in a fresh process: a peak cannot be taken back.

    On the CPU it is the growth of the peak resident set. On a GPU it is that of torch's allocator, whose peak
    can be taken back: there it is this process.

    Raises:
        InputError: it needs more memory than there is
    """
    try:
        if settings.on_gpu:
            return extra_bytes_here(form, settings)
        # Forked from a server that has only imported: exec() would hand on this process's own peak.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            return pool.submit(extra_bytes_here, form, settings).result()
    except (BrokenProcessPool, MemoryError, torch.cuda.OutOfMemoryError):
        if settings.on_gpu:
            torch.cuda.empty_cache()
        raise InputError("it ran out of memory: ask for smaller sizes") from None


def extra_bytes_here(form: Form, settings: Settings) -> int:
    """Peak memory of one job beyond what this process has taken before it."""
    torch.set_num_threads(settings.threads)
    # The code of libraries, their threads and work space are taken once; they are no form's own.
    form.warm_up()()
    job = form.prepare()
    if settings.on_gpu:
        torch.cuda.reset_peak_memory_stats(settings.device)
    before = peak_bytes(settings)
    job()
    return peak_bytes(settings) - before


def peak_bytes(settings: Settings) -> int:
    """Highest memory use of this process so far."""
    if settings.on_gpu:
        torch.cuda.synchronize(settings.device)
        return torch.cuda.max_memory_allocated(settings.device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
