"""Generation of ListOps expressions and Pathfinder images in multiple processes.

The examples depend on the seed, but not on the number of processes.
"""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import chain
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.lra import pathfinder as pathfinder_images
from luna_fairseq.lra.listops import VOCABULARY, draw_example
from luna_fairseq.text.batches import map_batches

# The small splits come first, so that they do not depend on the size of the training set.
SPLIT_ORDER = ("test", "valid", "train")
# If this many rounds do not find enough distinct examples, hardly any others exist.
MAX_ROUNDS = 20
CHUNK_SIZE = 100


def generate_listops(
    seed: int, sizes: Dict[str, int], bounds: Tuple[int, int], workers: int
) -> Iterator[Tuple[str, List[List[int]], int]]:
    """Generate distinct ListOps expressions, nested operations on digits, in ``workers`` processes.

    ``sizes`` maps each split to its number of expressions. ``bounds`` are exclusive bounds on their length.

    Yields:
        Name of the split, a list with one sequence of vocabulary indices, and the value of the expression.
    """
    if not 2 <= bounds[0] < bounds[1] - 2:
        raise InputError(
            f"--min-length {bounds[0]} --max-length {bounds[1]}: expected 2 <= min-length < max-length - 2."
        )
    indices = {symbol: index for index, symbol in enumerate(VOCABULARY)}
    draw = partial(draw_example, min_length=bounds[0], max_length=bounds[1])

    def to_bytes(tokens: List[str]) -> bytes:
        return " ".join(tokens).encode("ascii")

    for split, tokens, value in _generate_distinct(draw, f"listops-{seed}", to_bytes, sizes, workers):
        yield split, [[indices[token] for token in tokens]], value


def generate_pathfinder(
    seed: int, sizes: Dict[str, int], workers: int
) -> Iterator[Tuple[str, np.ndarray, int]]:
    """Generate distinct Pathfinder images, as tuples (split, image as uint8 [32, 32], label).

    The label is 1 if a path connects the two dots, and 0 otherwise. ``sizes`` is the image count per split.
    """
    draw = pathfinder_images.draw_example
    return _generate_distinct(draw, f"pathfinder-{seed}", np.ndarray.tobytes, sizes, workers)


def _draw_chunks(draw: Callable[[str], Tuple[Any, int]], seed: str, chunks: List[range]) -> List[Any]:
    """Draw one example for each number n in each range, with the seed ``f"{seed}-{n}"``.

    Return one list of (example, label) pairs per range. ``draw`` maps a seed to such a pair.
    """
    return [[draw(f"{seed}-{number}") for number in chunk] for chunk in chunks]


def _generate_distinct(
    draw: Callable[[str], Tuple[Any, int]],
    seed: str,
    to_bytes: Callable[[Any], bytes],
    sizes: Dict[str, int],
    workers: int,
) -> Iterator[Tuple[str, Any, int]]:
    """Generate distinct examples, first for the test split, then for validation and training.

    Args:
        draw: function that maps a seed to an example and its label.
        seed: prefix of the seeds.
        to_bytes: function that serializes an example. Examples with equal bytes are duplicates.
        sizes: number of examples per split.
        workers: number of processes.

    Yields:
        Name of the split, example, and label.
    """
    splits = chain.from_iterable([split] * sizes[split] for split in SPLIT_ORDER)
    total, drawn = sum(sizes.values()), 0
    seen: Set[bytes] = set()
    for _ in range(MAX_ROUNDS):
        numbers = range(drawn, drawn + total - len(seen))
        drawn = numbers.stop
        chunks = [numbers[start : start + CHUNK_SIZE] for start in range(0, len(numbers), CHUNK_SIZE)]
        for batch in map_batches(partial(_draw_chunks, draw, seed), chunks, workers, batch=1):
            for example, label in batch:
                key = hashlib.blake2b(to_bytes(example), digest_size=16).digest()
                if key not in seen:
                    seen.add(key)
                    yield next(splits), example, label
        if len(seen) == total:
            return
    raise InputError(
        f"only {len(seen):,} of {drawn:,} generated examples are different. Ask for fewer examples, or for "
        "longer ones."
    )
