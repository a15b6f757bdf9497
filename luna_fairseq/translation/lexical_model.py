"""IBM model 1: probabilities of single pieces as translations of single pieces.

Brown et al., "The Mathematics of Statistical Machine Translation", 1993. Every target piece is the
translation of one source piece of its sentence, and all source pieces are equally likely to be this piece.
The end symbol of the source stands for pieces without a counterpart.
"""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Tuple

import numpy as np

ITERATIONS = 5


class LexicalModel(NamedTuple):
    """Pairs of pieces that occur in a pair of sentences, best translations of each source piece first.

    Attributes:
        sources: index [N] of the source piece of each pair, increasing.
        targets: index [N] of the target piece of each pair.
        probabilities: probability [N] of the target piece, given the source piece.
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray

    def best(self, source: int, most: int) -> np.ndarray:
        """Return the most probable translations of a source piece.

        Args:
            source: index of the source piece.
            most: largest number of translations.
        """
        start, end = np.searchsorted(self.sources, [source, source + 1])
        return self.targets[start : min(end, start + most)]


def train_lexical_model(pairs: Iterable[Tuple[np.ndarray, np.ndarray]], target_size: int) -> LexicalModel:
    """Estimate the probabilities by expectation maximisation.

    Repetitions of a piece in a source sentence count once. Memory grows with the sum over the sentences of
    source pieces times target pieces: about 40 bytes for each product.

    Args:
        pairs: pairs of source and target pieces, the source with its end symbol.
        target_size: size of the target dictionary.

    Returns:
        Model with the probabilities of the translations.

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
