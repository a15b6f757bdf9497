"""How chunkwise forms cut a sequence: into chunks that are large enough for an operation and small enough for
a cache."""

import math
from typing import List, Sequence

from torch import Tensor

# Fewer positions than the first are too little work for one operation on a CPU, and fewer than the second
# where the heads are few; more no longer stay in its cache. A GPU would rather do more than start more
# operations.
CPU_CHUNK, GPU_CHUNK = (32, 64), (256, 256)
FEW_HEADS = 16


def chunk_size(x: Tensor, width: int) -> int:
    """Positions in a chunk, for x [N, T, M] and a state of M x ``width``: all of them in a sentence of one or
    two chunks.

    With c positions in a chunk, one of them costs c (M + width) in products within the chunk, and M width
    with the state, of which it has a share of M width / c in memory: c near sqrt(M width) balances them.
    """
    N, T, M = x.shape
    smallest, largest = GPU_CHUNK if x.is_cuda else CPU_CHUNK
    if N <= FEW_HEADS:
        smallest = largest
    size = min(max(2 ** round(math.log2(M * width) / 2), smallest), largest)
    return T if T <= 2 * size else size


def spans(T: int, size: int) -> List[slice]:
    """The positions of every chunk, in order of time."""
    # Whole chunks and a rest: torch.compile then compiles for a number of chunks, not for each length.
    whole = [slice(i * size, (i + 1) * size) for i in range((T - 1) // max(1, size))]
    return [*whole, slice(len(whole) * size, T)]


def put(results: List[Tensor], parts: Sequence[Tensor], span: slice, T: int) -> List[Tensor]:
    """Write a chunk's parts [N, c, *] into the results [N, T, *]; a single chunk's parts are the results.

    The results are laid out as [T, N, *], which is how projections have them and take them without a copy.
    """
    if span.stop - span.start == T:
        return list(parts)
    results = results or [x.new_empty(T, x.size(0), x.size(2)).transpose(0, 1) for x in parts]
    for result, part in zip(results, parts):
        result[:, span] = part
    return results
