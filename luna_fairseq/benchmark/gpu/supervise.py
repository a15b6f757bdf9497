"""Jobs in processes of their own: what they yield is kept, whatever becomes of them."""

import json
import logging
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

Row = Dict[str, Any]
# Imported once, in the process that all others are forked from, where they can be (the second needs fairseq);
# nothing here may touch a GPU.
PRELOAD = ["luna_fairseq.benchmark.gpu.parity", "luna_fairseq.benchmark.__main__"]
POLL = 0.1
OUT_OF_TIME = "cut off: the time was up"


class Job(NamedTuple):
    """A piece of work.

    Attributes:
        key: its name, one in its section
        work: yields rows; picklable
    """

    key: str
    work: Callable[[], Iterator[Row]]


@dataclass(frozen=True)
class Section:
    """Jobs of a kind.

    Attributes:
        name, title, notes: for the page
        jobs: the most important first
        processes: that work at once; 1 where times are measured
        seconds: the most that all jobs may take together
        seconds_each: the most that one may take
    """

    name: str
    title: str
    notes: str
    jobs: Sequence[Job]
    processes: int = 1
    seconds: float = 120.0
    seconds_each: float = 120.0


@dataclass
class Outcome:
    """What became of a section.

    Attributes:
        rows: in the order in which they came, each with its job's key
        done: keys of the jobs that ended well
        failed: key -> why
        left_out: keys of the jobs that were not begun for want of time
    """

    rows: List[Row] = field(default_factory=list)
    done: List[str] = field(default_factory=list)
    failed: Dict[str, str] = field(default_factory=dict)
    left_out: List[str] = field(default_factory=list)


class Worker:
    """A process with a list of jobs, and the file that it writes to.

    Args:
        jobs: to be done in this order
        path: of the file
    """

    def __init__(self, jobs: Sequence[Job], path: Path):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.jobs = list(jobs)
        self.path = path
        self.read = 0
        self.current = ""
        self.since = time.monotonic()
        # Not a daemon, which could not start the processes that a compiler wants.
        self.process = context.Process(target=work_through, args=(self.jobs, path))
        self.process.start()

    def collect(self, outcome: Outcome) -> bool:
        """Move what was written since the last time into ``outcome``; whether there was anything."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as file:
            file.seek(self.read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            self.note(json.loads(line), outcome)
        return bool(whole)

    def note(self, event: Row, outcome: Outcome) -> None:
        """One event of the file."""
        key = event["job"]
        if event["what"] == "row":
            outcome.rows.append({"job": key, **event["row"]})
        elif event["what"] == "begin":
            self.current, self.since = key, time.monotonic()
            self.jobs = self.jobs[1:]
        else:
            self.current = ""
            if event["what"] == "end":
                outcome.done.append(key)
            else:
                outcome.failed[key] = event["error"]

    def end(self, outcome: Outcome, why: str) -> None:
        """Kill the process if it still runs; the job that it had begun has failed."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.collect(outcome)
        if self.current:
            outcome.failed[self.current] = why or how_it_ended(self.process.exitcode)
            self.current = ""


def run_section(section: Section, until: float, folder: Path, changed: Callable[[Outcome], None]) -> Outcome:
    """Run a section.

    Args:
        section: whose jobs are to be done
        until: value of time.monotonic() at which it ends in any case
        folder: for its processes' files
        changed: called whenever there is more to know

    Returns:
        what became of it
    """
    outcome = Outcome()
    until = min(until, time.monotonic() + section.seconds)
    count = max(1, min(section.processes, len(section.jobs)))
    names = (folder / f"{section.name}-{n}.jsonl" for n in range(10**6))
    workers = [Worker(section.jobs[n::count], next(names)) for n in range(count)]
    try:
        while workers:
            time.sleep(POLL)
            now = time.monotonic()
            for worker in list(workers):
                if worker.collect(outcome):
                    changed(outcome)
                hangs = worker.current and now - worker.since > section.seconds_each
                if worker.process.is_alive() and not hangs and now < until:
                    continue
                workers.remove(worker)
                slow = f"ended after {section.seconds_each:.0f} s" if hangs else ""
                worker.end(outcome, OUT_OF_TIME if now >= until else slow)
                if worker.jobs and now < until:
                    workers.append(Worker(worker.jobs, next(names)))
                else:
                    outcome.left_out += [job.key for job in worker.jobs]
                changed(outcome)
    finally:
        for worker in workers:
            worker.end(outcome, OUT_OF_TIME)
    return outcome


def work_through(jobs: Sequence[Job], path: Path) -> None:
    """Do jobs one after the other, writing down each event; what a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    logging.disable(logging.INFO)
    with path.open("a", encoding="utf-8") as file:

        def write(what: str, job: Job, **more: Any) -> None:
            file.write(json.dumps({"what": what, "job": job.key, **more}) + "\n")
            file.flush()

        for job in jobs:
            write("begin", job)
            try:
                for row in job.work():
                    write("row", job, row=row)
            except Exception as error:
                write("failed", job, error=one_line(error))
                if gpu_is_lost():
                    os._exit(1)
            else:
                write("end", job)


def one_line(error: BaseException) -> str:
    """What went wrong, without torch's advice on debugging."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def gpu_is_lost() -> bool:
    """Whether an error has left the GPU's context unusable, so that all that follows would fail too."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except Exception:
        return True
    torch.cuda.empty_cache()
    return False


def how_it_ended(status: Any) -> str:
    """An exit status in words."""
    if isinstance(status, int) and status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"
