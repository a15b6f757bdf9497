"""Generated data sets of Long Range Arena.

Several processes generate the examples. The examples do not depend on the number of processes.
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


def listops(
    seed: int, sizes: Dict[str, int], bounds: Tuple[int, int], workers: int
) -> Iterator[Tuple[str, List[List[int]], int]]:
    """Generate distinct ListOps expressions.

    Args:
        seed: random seed.
        sizes: number of expressions in each split.
        bounds: minimum and maximum number of tokens, both exclusive.
        workers: number of processes.

    Yields:
        Split, a list with one sequence of vocabulary indices (``listops.VOCABULARY``), and the value of the
        expression.

    Raises:
        InputError: No expressions, or too few distinct ones, have a length within the bounds.
    """
    if not 2 <= bounds[0] < bounds[1] - 2:
        raise InputError(
            f"--min-length {bounds[0]} --max-length {bounds[1]}: expected 2 <= min-length < max-length - 2"
        )
    indices = {symbol: index for index, symbol in enumerate(VOCABULARY)}
    draw = partial(draw_example, min_length=bounds[0], max_length=bounds[1])

    def to_bytes(tokens: List[str]) -> bytes:
        return " ".join(tokens).encode("ascii")

    for split, tokens, value in _generate_distinct(draw, f"listops-{seed}", to_bytes, sizes, workers):
        yield split, [[indices[token] for token in tokens]], value


def pathfinder(seed: int, sizes: Dict[str, int], workers: int) -> Iterator[Tuple[str, np.ndarray, int]]:
    """Generate distinct Pathfinder images.

    Args:
        seed: random seed.
        sizes: number of images in each split.
        workers: number of processes.

    Returns:
        Iterator over split, image (uint8 [32, 32]), and label: 1 if one path joins the two dots, otherwise 0.
    """
    draw = pathfinder_images.draw_example
    return _generate_distinct(draw, f"pathfinder-{seed}", np.ndarray.tobytes, sizes, workers)


def _draw_chunks(draw: Callable[[str], Tuple[Any, int]], seed: str, chunks: List[range]) -> List[Any]:
    """Draw the examples of each chunk of numbers.

    Args:
        draw: function from the seed of an example to the example, a pair of content and label.
        seed: prefix of the seeds. The number of the example is appended to it.
        chunks: numbers of the examples in each chunk.

    Returns:
        List of the examples of each chunk.
    """
    return [[draw(f"{seed}-{number}") for number in chunk] for chunk in chunks]


def _generate_distinct(
    draw: Callable[[str], Tuple[Any, int]],
    seed: str,
    to_bytes: Callable[[Any], bytes],
    sizes: Dict[str, int],
    workers: int,
) -> Iterator[Tuple[str, Any, int]]:
    """Generate distinct examples, one split after the other.

    Args:
        draw: function from a seed to an example and its label.
        seed: prefix of the seeds; example number n is drawn with ``f"{seed}-{n}"``.
        to_bytes: function that returns the content of an example. Two examples with equal content are equal.
        sizes: number of examples in each split.
        workers: number of processes.

    Raises:
        InputError: Too few distinct examples were found.
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
        "longer ones"
    )
