"""Generated splits of Long Range Arena: drawn by several processes, and the same whatever their number."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.lra import pathfinder as drawing
from luna_fairseq.lra.listops import VOCABULARY, draw_example
from luna_fairseq.text.batches import map_batches

# The small splits come first, so that they stay the same whatever the size of the training set.
ORDER = ("test", "valid", "train")
# More rounds of drawing than this mean that there are hardly any new examples left.
ROUNDS = 20
CHUNK = 100


def listops(
    seed: int, sizes: Dict[str, int], bounds: Tuple[int, int], workers: int
) -> Iterator[Tuple[str, List[List[int]], int]]:
    """Expressions as places in the vocabulary, with their values; none occurs twice.

    Args:
        seed: of all.
        sizes: split -> number of expressions.
        bounds: of the number of tokens, exclusive.
        workers: processes.

    Raises:
        InputError: bounds between which there are no expressions, or not enough.
    """
    if not 2 <= bounds[0] < bounds[1] - 2:
        raise InputError(
            f"--min-length {bounds[0]} --max-length {bounds[1]}: expected 2 <= min-length < max-length - 2"
        )
    places = {symbol: place for place, symbol in enumerate(VOCABULARY)}
    draw = partial(draw_example, min_length=bounds[0], max_length=bounds[1])

    def written(tokens: List[str]) -> bytes:
        return " ".join(tokens).encode("ascii")

    for split, tokens, value in _distinct(draw, f"listops-{seed}", written, sizes, workers):
        yield split, [[places[token] for token in tokens]], value


def pathfinder(seed: int, sizes: Dict[str, int], workers: int) -> Iterator[Tuple[str, np.ndarray, int]]:
    """Images of 32 x 32 pixels, with 1 where the dots are ends of one path; none occurs twice.

    Args:
        seed: of all.
        sizes: split -> number of images.
        workers: processes.
    """
    return _distinct(drawing.draw_example, f"pathfinder-{seed}", np.ndarray.tobytes, sizes, workers)


def _drawn(draw: Callable[[str], Tuple[Any, int]], seed: str, chunks: List[range]) -> List[Any]:
    return [[draw(f"{seed}-{number}") for number in chunk] for chunk in chunks]


def _distinct(
    draw: Callable[[str], Tuple[Any, int]],
    seed: str,
    identity: Callable[[Any], bytes],
    sizes: Dict[str, int],
    workers: int,
) -> Iterator[Tuple[str, Any, int]]:
    """As many examples as asked for, split by split, that are drawn with seeds which begin with ``seed`` and
    whose contents ``identity`` tells apart."""
    splits = chain.from_iterable([split] * sizes[split] for split in ORDER)
    wanted, drawn = sum(sizes.values()), 0
    seen: Set[bytes] = set()
    for _ in range(ROUNDS):
        missing = range(drawn, drawn + wanted - len(seen))
        drawn = missing.stop
        chunks = [missing[start : start + CHUNK] for start in range(0, len(missing), CHUNK)]
        for batch in map_batches(partial(_drawn, draw, seed), chunks, workers, batch=1):
            for example, label in batch:
                key = hashlib.blake2b(identity(example), digest_size=16).digest()
                if key not in seen:
                    seen.add(key)
                    yield next(splits), example, label
        if len(seen) == wanted:
            return
    raise InputError(
        f"of {drawn:,} that were drawn, only {len(seen):,} are different: ask for fewer, or longer ones"
    )
