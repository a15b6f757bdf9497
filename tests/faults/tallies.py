"""What the campaign counts, and the table that it prints and writes."""

import os
import platform
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Dict, List, Tuple

import torch
from warmed import ROOT

# How a command that met a fault may end; anything else is a failure.
REFUSED, EQUAL, FAILED, OPEN = "one line", "equal", "failed", "open"
# Before torch 2.6, torch.load executes any pickle unless it is told not to.
PICKLES_CHECKED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
HEAD = """# Faults, counted

`make faults` does to the commands what happens to them in practice, in processes of their own, and compares
what is then there with the result of an undisturbed run, bit for bit: weights, optimizer and position in the
data of checkpoints, and every other file by its SHA-256. *One line* means: the command ended with a status
other than 0 and one line that says what is wrong, wrote nothing by halves, and executed nothing that it read.
*Equal* means: the same bits as without the fault, for a command that was ended after it was started again.
Anything else is counted as *failed*, or as *open* where nothing is there that could notice it: data of
fairseq-preprocess has no checksums, as data that our own commands prepare has, and torch before 2.6 executes
what a checkpoint's pickle says: open no checkpoint of a stranger with it.
"""
PLANTED = """
That each kind of check can fail is tested: with `--plant` the same campaign runs with a defect put into the
commands (a last byte lost in a resumed run, checksums not looked at, tracebacks instead of lines, unpickling
of anything, and so on), and has to end with failures: `tests/faults/test_faults.py`.
"""


class Tally:
    """Counts of outcomes, in the order in which the kinds were met."""

    def __init__(self) -> None:
        self.counts: Dict[Tuple[str, str], Counter] = {}
        self.seconds: Counter = Counter()
        self._last = time.monotonic()

    def note(self, kind: str, what: str, outcome: str, detail: str = "") -> None:
        """Count one; the time since the last one is its time. A failure is printed with its detail."""
        now = time.monotonic()
        self.counts.setdefault((kind, what), Counter())[outcome] += 1
        self.seconds[kind, what] += now - self._last
        self._last = now
        if outcome == FAILED:
            print(f"failed: {kind}, {what}: {detail}", flush=True)

    def start_clock(self) -> None:
        """What took time until now belongs to no row."""
        self._last = time.monotonic()

    @property
    def failed(self) -> int:
        return sum(count[FAILED] for count in self.counts.values())

    def rows(self) -> List[List[str]]:
        """Of the table, the sum last."""
        rows, total = [], Counter()
        for (kind, what), count in self.counts.items():
            total.update(count)
            rows.append([kind, what, *_numbers(count), f"{self.seconds[kind, what]:.0f}"])
        return [*rows, ["all", "", *_numbers(total), f"{sum(self.seconds.values()):.0f}"]]

    def markdown(self) -> str:
        head = ["fault", "in", "times", REFUSED, EQUAL, FAILED, OPEN, "seconds"]
        rows = [head, ["---"] * len(head), *self.rows()]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _numbers(count: Counter) -> List[str]:
    return [str(sum(count.values())), *(str(count[name] or "-") for name in (REFUSED, EQUAL, FAILED, OPEN))]


def page(tally: Tally, command: str) -> str:
    """The table with what it was measured by."""
    return f"{HEAD}\n{tally.markdown()}\n{_circumstances(command)}{PLANTED}"


def _circumstances(command: str) -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    return (
        f"`{command}`, commit {commit}, {os.cpu_count()} cores of {_processor()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}; seconds are of the wall clock.\n"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
