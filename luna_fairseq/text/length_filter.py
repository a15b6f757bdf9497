"""Which training pairs are too long or too unequal, counted in pieces, as Moses' corpus cleaning does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence


@dataclass(frozen=True)
class LengthFilter:
    """
    Attributes:
        max_length: most pieces on a side; None: any number.
        max_ratio: how many times as many pieces one side may have; None: any number of times.
    """

    max_length: Optional[int] = None
    max_ratio: Optional[float] = None

    def reason(self, source: Sequence[str], target: Sequence[str]) -> Optional[str]:
        """Why this pair is to be dropped, or None if it may stay."""
        shorter, longer = sorted((len(source), len(target)))
        if not shorter:
            return "an empty side"
        if self.max_length is not None and longer > self.max_length:
            return f"more than {self.max_length} pieces"
        if self.max_ratio is not None and longer > self.max_ratio * shorter:
            return f"lengths in a ratio above {self.max_ratio:g}"
        return None
