"""Times of interleaved repetitions by torch.utils.benchmark, and what a job allocates by torch.profiler."""

import itertools
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

import torch
from torch.profiler import ProfilerActivity
from torch.utils.benchmark import Timer

from luna_fairseq.errors import InputError

# A sample lasts at least so long [s]: the clock and a passing interrupt then weigh little.
SHORTEST_SAMPLE = 0.02

Job = Callable[[], Any]
# What a comparison's rows have in common, by the table's column names.
Case = Dict[str, Any]
# What was measured of a row in a case, as JSON: seconds, bytes, ratios of speeds.
Record = Dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How to measure: samples of each row (at least 2), torch's threads on the CPU, ``cpu`` or ``cuda:N``,
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
    prepare: Mapping[str, Callable[[], Job]],
    peers: Sequence[str],
    settings: Settings,
    begin: Callable[[str], Any] = lambda name: None,
    failed: Callable[..., None] = lambda name, error: None,
) -> List[Record]:
    """The records of rows in a case that they have in common: the memory of each first, then rounds of A B
    C, A B C, ...

    Args:
        case: what they have in common.
        prepare: by row, what makes inputs and gives the job.
        peers: rows of whose speed all others are multiples.
        settings: how to measure.
        begin: is told the name of each row before its first job.
        failed: is told the row that has no record, and why.
    """
    extra: Dict[str, int] = {}
    timers: Dict[str, Timer] = {}
    for name, make in prepare.items():
        begin(name)
        try:
            make()()  # takes what is taken once: the work space of libraries
            job = make()
            extra[name] = extra_bytes(job, settings)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            failed(name, InputError("it ran out of memory: ask for smaller sizes"))
        except Exception as error:
            failed(name, error)
        else:
            timers[name] = Timer("job()", globals={"job": job}, num_threads=settings.threads)
    samples: Dict[str, List[Any]] = {name: [] for name in timers}
    for i in range(settings.repetitions):
        for name, timer in timers.items():
            if i == 0:
                begin(name)
            # It warms up before every sample: another row has been at work.
            samples[name].append(timer.blocked_autorange(min_run_time=SHORTEST_SAMPLE))
        begin("")
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


def extra_bytes(job: Job, settings: Settings) -> int:
    """Most bytes of torch's allocator that the first call of a job holds beyond what was there before it."""
    if settings.on_gpu:
        torch.cuda.synchronize(settings.device)
        before = torch.cuda.memory_allocated(settings.device)
        torch.cuda.reset_peak_memory_stats(settings.device)
        job()
        torch.cuda.synchronize(settings.device)
        return torch.cuda.max_memory_allocated(settings.device) - before
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    found = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    found.sort(key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us())
    return max(itertools.accumulate((event.nbytes() for event in found), initial=0))
