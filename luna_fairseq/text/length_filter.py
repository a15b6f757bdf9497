"""Filter of training pairs by length and length ratio, as in the corpus cleaning of Moses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass(frozen=True)
class LengthFilter:
    """Filter of training pairs by length in subwords, and by the ratio of the two lengths.

    A limit of None is not applied.
    """

    max_length: Optional[int] = None
    max_ratio: Optional[float] = None

    def passes(self, source: np.ndarray, target: np.ndarray, dropped: Counter) -> np.ndarray:
        """Return a mask [B], True for pairs that pass, given the lengths [B] of the two sides.

        Pairs with an empty side never pass. ``dropped``, updated in place, counts dropped pairs by reason.
        """
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        mask = np.ones(len(source), dtype=bool)
        reasons = {"an empty side": shorter == 0}
        if self.max_length is not None:
            reasons[f"more than {self.max_length} pieces"] = longer > self.max_length
        if self.max_ratio is not None:
            reasons[f"lengths in a ratio above {self.max_ratio:g}"] = longer > self.max_ratio * shorter
        for reason, applies in reasons.items():
            if (mask & applies).any():
                dropped[reason] += int((mask & applies).sum())
            mask &= ~applies
        return mask
