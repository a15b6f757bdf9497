"""Which training pairs are too long or too unequal, counted in pieces, as Moses' corpus cleaning does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass(frozen=True)
class LengthFilter:
    """
    Attributes:
        max_length: most pieces on a side; None: any number.
        max_ratio: how many times as many pieces one side may have; None: any number of times.
    """

    max_length: Optional[int] = None
    max_ratio: Optional[float] = None

    def kept(self, source: np.ndarray, target: np.ndarray, dropped: Counter) -> np.ndarray:
        """Which of the pairs may stay [B].

        Args:
            source, target: lengths of the two sides [B].
            dropped: reason -> number of pairs, which those that are to go are added to.
        """
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        kept = np.ones(len(source), dtype=bool)
        reasons = {"an empty side": shorter == 0}
        if self.max_length is not None:
            reasons[f"more than {self.max_length} pieces"] = longer > self.max_length
        if self.max_ratio is not None:
            reasons[f"lengths in a ratio above {self.max_ratio:g}"] = longer > self.max_ratio * shorter
        for reason, applies in reasons.items():
            if (kept & applies).any():
                dropped[reason] += int((kept & applies).sum())
            kept &= ~applies
        return kept
