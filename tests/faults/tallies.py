"""Count how the commands of the campaign end, and format the counts as a table."""

from collections import Counter
from typing import Dict, List

import torch

# Outcomes: the command refused its input, its result equals an undisturbed one, it failed, or nothing can
# notice the fault.
REFUSED, EQUAL, FAILED, UNPROTECTED = "refused", "equal", "failed", "unprotected"
OUTCOMES = [REFUSED, EQUAL, FAILED, UNPROTECTED]
# Before torch 2.6, torch.load executes any pickle unless it is told not to.
PICKLES_CHECKED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


class Tally:
    """Counter of outcomes, in the order in which the faults first occurred.

    Attributes:
        counts: dictionary from a fault to a counter of outcomes.
    """

    def __init__(self) -> None:
        self.counts: Dict[str, Counter] = {}

    def note(self, fault: str, command: str, outcome: str, detail: str = "") -> None:
        """Count an outcome. If it is a failure, print it with its ``command`` and ``detail``."""
        self.counts.setdefault(fault, Counter())[outcome] += 1
        if outcome == FAILED:
            print(f"failed: {fault}, {command}: {detail}", flush=True)

    @property
    def failed(self) -> int:
        """Number of failures."""
        return sum(count[FAILED] for count in self.counts.values())

    def by_fault(self) -> str:
        """Return a Markdown table of the counts by fault, with the total as the last line."""
        total: Counter = sum(self.counts.values(), Counter())
        lines = [[fault, *_cells(count)] for fault, count in {**self.counts, "all": total}.items()]
        head = ["fault", "times", *OUTCOMES]
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines]) + "\n"


def _cells(count: Counter) -> List[str]:
    """Return the cells of a line: the total, and the number of each outcome ("-" for 0)."""
    return [str(sum(count.values())), *(str(count[name] or "-") for name in OUTCOMES)]
