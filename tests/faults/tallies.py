"""What the campaign counts, and the table that it prints and writes."""

from collections import Counter
from typing import Dict, List, Tuple

import torch

# How a command that met a fault may end; anything else is a failure.
REFUSED, EQUAL, FAILED, OPEN = "one line", "equal", "failed", "open"
HEAD = ["fault", "in", "times", REFUSED, EQUAL, FAILED, OPEN]
# Before torch 2.6, torch.load executes any pickle unless it is told not to.
PICKLES_CHECKED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


class Tally:
    """Counts of outcomes, in the order in which the kinds were met."""

    def __init__(self) -> None:
        self.counts: Dict[Tuple[str, str], Counter] = {}

    def note(self, kind: str, what: str, outcome: str, detail: str = "") -> None:
        """Count one. A failure is printed with its detail."""
        self.counts.setdefault((kind, what), Counter())[outcome] += 1
        if outcome == FAILED:
            print(f"failed: {kind}, {what}: {detail}", flush=True)

    @property
    def failed(self) -> int:
        return sum(count[FAILED] for count in self.counts.values())

    def markdown(self) -> str:
        """The table, the sum last."""
        total: Counter = sum(self.counts.values(), Counter())
        rows = [[*names, *_numbers(count)] for names, count in {**self.counts, ("all", ""): total}.items()]
        return "\n".join(f"| {' | '.join(row)} |" for row in [HEAD, ["---"] * len(HEAD), *rows]) + "\n"


def _numbers(count: Counter) -> List[str]:
    return [str(sum(count.values())), *(str(count[name] or "-") for name in HEAD[3:])]
