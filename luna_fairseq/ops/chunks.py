"""Helpers that split a sequence into chunks, for chunkwise causal attention."""

import math
from typing import Any, List, Optional, Tuple, TypeVar

from torch import Tensor

Parts = TypeVar("Parts", bound=Tuple[Any, ...])
# Smallest and largest number of positions in a chunk. On a CPU, shorter chunks are too little work for one
# operation, and longer chunks no longer fit into the cache. On a GPU, fewer and larger operations are better.
CPU_CHUNK, GPU_CHUNK = (32, 64), (256, 256)
# With at most this many heads in the batch, only the larger chunk provides enough work for one operation.
FEW_HEADS = 16


def chunk_size(x: Tensor, width: int) -> int:
    """Choose the number of positions in a chunk for x [N, T, M], with M features at T positions of N heads.

    The whole sequence is one chunk (the result is T) if there would be at most two chunks.

    Earlier chunks are summarized in a state of M rows and ``width`` columns per head. In a chunk of c
    positions, each position costs c * (M + width) operations within the chunk, M * width operations with the
    state, and M * width / c for loading and storing the state. The size c = sqrt(M * width) balances these
    costs.
    """
    N, T, M = x.shape
    smallest, largest = GPU_CHUNK if x.is_cuda else CPU_CHUNK
    if N <= FEW_HEADS:
        smallest = largest
    size = min(max(2 ** round(math.log2(M * width) / 2), smallest), largest)
    return T if T <= 2 * size else size


def chunk_slices(T: int, size: int) -> List[slice]:
    """Split T positions into slices of ``size`` consecutive positions. Only the last slice may be shorter.

    If T is 0, the list contains one empty slice.

    Example:
        >>> chunk_slices(10, size=4)
        [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    # The number of full chunks is the only length here, so torch.compile recompiles once per number of chunks
    # and not for each T.
    full = [slice(i * size, (i + 1) * size) for i in range((T - 1) // max(1, size))]
    return [*full, slice(len(full) * size, T)]


def write_chunk(results: Optional[Parts], parts: Parts, span: slice, T: int) -> Parts:
    """Copy the results of one chunk into ``results``, which cover all T positions, and return ``results``.

    ``parts``, the results of the c positions ``span``, is a named tuple of tensors [N, c, D] or None, for N
    heads and any width D. If ``results`` is None, tensors [N, T, D] are allocated. T is their outermost
    dimension in memory, so that later projections need no copy. If the chunk is the whole sequence, return
    ``parts``.
    """
    if span.stop - span.start == T:
        return parts
    if results is None:
        parts_class: Any = type(parts)
        results = parts_class(
            *[None if x is None else x.new_empty(T, x.size(0), x.size(2)).transpose(0, 1) for x in parts]
        )
    for result, part in zip(results, parts):
        if result is not None:
            result[:, span] = part
    return results
