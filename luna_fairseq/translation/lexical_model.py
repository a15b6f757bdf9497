"""IBM model 1: translation probabilities between subwords (Brown et al., 1993).

In this model, each target subword is the translation of one source subword of its sentence, and all source
subwords are equally likely. Target subwords that translate no source subword are linked to the
end-of-sentence symbol, in place of the empty word of the original model.
"""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Tuple

import numpy as np

ITERATIONS = 5


class LexicalModel(NamedTuple):
    """Translation probabilities of IBM model 1 for all subwords that co-occur in a sentence pair.

    The N pairs of a source and a target subword are sorted by source, then by decreasing probability.

    Attributes:
        sources: dictionary indices of the source subwords, [N], in increasing order.
        targets: dictionary indices of the target subwords, [N].
        probabilities: probabilities of the target subwords given the source subwords, [N].
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray

    def best(self, source: int, most: int) -> np.ndarray:
        """Return the indices of up to ``most`` translations of a source subword, the most probable first."""
        start, end = np.searchsorted(self.sources, [source, source + 1])
        return self.targets[start : min(end, start + most)]


def train_lexical_model(pairs: Iterable[Tuple[np.ndarray, np.ndarray]], target_size: int) -> LexicalModel:
    """Estimate IBM model 1 with five iterations of expectation maximization.

    ``pairs`` are sentence pairs as arrays of dictionary indices. The source includes the end-of-sentence
    symbol, the target does not. ``target_size`` is the size of the target dictionary.

    A subword that occurs several times in a source sentence counts once. A pair of m distinct source subwords
    and n target subwords takes about 40 m n bytes of memory. In the example, ``best(5, 1)`` is the most
    probable translation of subword 5.

    Example:
        >>> pairs = [([5, 6, 2], [7, 8]), ([5, 2], [7])]
        >>> model = train_lexical_model([(np.array(s), np.array(t)) for s, t in pairs], target_size=9)
        >>> model.best(5, 1).tolist(), model.best(6, 1).tolist()
        ([7], [8])
    """
    keys: List[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    counts: List[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    for source, target in pairs:
        source = np.unique(source).astype(np.int64)
        # All links of the first target piece, then all links of the second one.
        keys.append((source * target_size + target[:, None]).ravel())
        counts.append(np.full(len(target), len(source)))
    pair, link = np.unique(np.concatenate(keys), return_inverse=True)
    del keys
    numbers = np.concatenate(counts)
    word = np.repeat(np.arange(len(numbers)), numbers)  # the target word of each link
    sources, targets = pair // target_size, pair % target_size
    probabilities = np.ones(len(pair))
    for _ in range(ITERATIONS):
        weights = probabilities[link]
        weights /= np.bincount(word, weights)[word]
        expected = np.bincount(link, weights, minlength=len(pair))
        probabilities = expected / np.bincount(sources, expected)[sources]
    order = np.lexsort((targets, -probabilities, sources))
    return LexicalModel(sources[order], targets[order], probabilities[order])
