"""Helpers that split a sequence into chunks, for chunkwise causal attention."""

import math
from typing import List, Optional, Sequence

from torch import Tensor

# Smallest and largest number of positions in a chunk. On a CPU, shorter chunks are too little work for one
# operation, and longer chunks no longer fit into the cache. On a GPU, fewer and larger operations are better.
CPU_CHUNK, GPU_CHUNK = (32, 64), (256, 256)
# With at most this many heads in the batch, only the larger chunk provides enough work for one operation.
FEW_HEADS = 16


def chunk_size(x: Tensor, width: int) -> int:
    """Choose the number of positions in a chunk for chunkwise causal attention.

    Earlier chunks are summarized in a state, a matrix of M rows and ``width`` columns per head. In a chunk of
    c positions, each position costs c (M + width) operations within the chunk. It also costs M width
    operations with the state, and its share M width / c of the memory traffic for the state. A chunk of c =
    sqrt(M width) positions balances these costs. The size is limited to a range that suits the device.

    Args:
        x: input [N, T, M], used for its shape and device: N heads in the batch, and T positions of width M.
        width: number of columns of the state.

    Returns:
        The chunk size, or T if the sequence would have at most two chunks.
    """
    N, T, M = x.shape
    smallest, largest = GPU_CHUNK if x.is_cuda else CPU_CHUNK
    if N <= FEW_HEADS:
        smallest = largest
    size = min(max(2 ** round(math.log2(M * width) / 2), smallest), largest)
    return T if T <= 2 * size else size


def chunk_slices(T: int, size: int) -> List[slice]:
    """Split a sequence into chunks, and return the position slice of each chunk.

    Args:
        T: sequence length.
        size: chunk size. Only the last chunk may be shorter.

    Returns:
        Consecutive slices that cover 0 to T. An empty sequence has one empty chunk.

    Example:
        >>> chunk_slices(10, size=4)
        [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    # The number of full chunks is the only length here, so torch.compile recompiles once per number of chunks
    # and not for each T.
    full = [slice(i * size, (i + 1) * size) for i in range((T - 1) // max(1, size))]
    return [*full, slice(len(full) * size, T)]


def write_chunk(
    results: List[Optional[Tensor]], parts: Sequence[Optional[Tensor]], span: slice, T: int
) -> List[Optional[Tensor]]:
    """Copy the results of one chunk into the result tensors of the whole sequence.

    The result tensors are allocated at the first call. Their memory layout is [T, N, D], so the subsequent
    projections need no copy.

    Shapes: N heads in the batch, T positions, c positions in the chunk, and D values per position.

    Args:
        results: results [N, T, D] of the sequence, updated in place (an empty list at the first call).
        parts: results [N, c, D] of the chunk, each None if not computed.
        span: positions of the chunk.
        T: sequence length.

    Returns:
        The results of the sequence. If the chunk is the whole sequence, these are ``parts`` themselves.
    """
    if span.stop - span.start == T:
        return list(parts)
    if not results:
        results = [None if x is None else x.new_empty(T, x.size(0), x.size(2)).transpose(0, 1) for x in parts]
    for result, part in zip(results, parts):
        if result is not None:
            result[:, span] = part
    return results
