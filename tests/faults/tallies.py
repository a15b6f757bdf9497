"""Counts of the campaign's outcomes, and the tables of these counts."""

from collections import Counter
from typing import Dict, List, Tuple

import torch

# Outcomes: the command refused its input, its result equals an undisturbed one, it failed, or nothing can
# notice the fault.
REFUSED, EQUAL, FAILED, UNPROTECTED = "refused", "equal", "failed", "unprotected"
OUTCOMES = [REFUSED, EQUAL, FAILED, UNPROTECTED]
# Before torch 2.6, torch.load executes any pickle unless it is told not to.
PICKLES_CHECKED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


class Tally:
    """Counts of outcomes, in the order in which the faults first occurred.

    Attributes:
        counts: (fault, command) -> counter of outcomes
    """

    def __init__(self) -> None:
        self.counts: Dict[Tuple[str, str], Counter] = {}

    def note(self, fault: str, command: str, outcome: str, detail: str = "") -> None:
        """Count one outcome, and print a failure with its ``detail``."""
        self.counts.setdefault((fault, command), Counter())[outcome] += 1
        if outcome == FAILED:
            print(f"failed: {fault}, {command}: {detail}", flush=True)

    @property
    def failed(self) -> int:
        """Return the number of failures."""
        return sum(count[FAILED] for count in self.counts.values())

    def by_command(self) -> str:
        """Return the Markdown table of all counts, with their sum as the last line."""
        total: Counter = sum(self.counts.values(), Counter())
        lines = [[*names, *_cells(count)] for names, count in {**self.counts, ("all", ""): total}.items()]
        return _table(["fault", "command", "times", *OUTCOMES], lines)

    def by_fault(self) -> str:
        """Return the Markdown table of the counts of each fault, summed over the commands."""
        sums: Dict[str, Counter] = {}
        for (fault, _), count in self.counts.items():
            sums.setdefault(fault, Counter()).update(count)
        return _table(["fault", "times", *OUTCOMES], [[fault, *_cells(n)] for fault, n in sums.items()])


def _cells(count: Counter) -> List[str]:
    """Return the sum of ``count`` and the number of each outcome, with a dash for 0."""
    return [str(sum(count.values())), *(str(count[name] or "-") for name in OUTCOMES)]


def _table(head: List[str], lines: List[List[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines]) + "\n"
