"""Choice of Triton by the backend ``auto``, and the comparison that the Triton kernels must pass."""

from functools import lru_cache
from typing import FrozenSet, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import is_recording_graph
from luna_fairseq.ops.causal_luna.comparison import draw_sample, find_disagreement
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

# Compute capabilities, such as (9, 0), on which the Triton kernels were measured to be faster than parallel.
FASTER_WITH_TRITON: FrozenSet[Tuple[int, int]] = frozenset()
# Sequence length for the comparison of results. It gives several chunks, the last of which is not full.
COMPARED_LENGTH = 100


def prefers_parallel(q: Tensor, *others: Tensor) -> bool:
    """Return True on a GPU in eager mode, where the backend ``auto`` is parallel unless it is triton.

    Return False on a CPU and while torch records a graph.
    """
    return q.is_cuda and not is_recording_graph()


def prefers_triton(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor) -> bool:
    """Return True if the backend ``auto`` is triton for these inputs, and False otherwise.

    It is triton on the GPUs of ``FASTER_WITH_TRITON`` in eager mode, for inputs that the kernels support.
    """
    if not prefers_parallel(q) or torch.version.cuda is None:
        return False
    if torch.cuda.get_device_capability(q.device) not in FASTER_WITH_TRITON:
        return False
    return supports_triton(q, k, v, pack_weights)


def supports_triton(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor) -> bool:
    """Return True if the Triton kernels can compute these inputs on this machine, and False otherwise."""
    reason = why_not_triton(q.device, q.dtype, q.size(-1), pack_weights.size(-1))
    return not reason and q.dtype == k.dtype == v.dtype


def check_triton_results(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, has_decay: bool) -> None:
    """Compare the Triton kernels with the chunkwise implementation before their first use, on random inputs.

    Comparisons are repeated for another device, dtype, head width or packed length (rounded up to a power of
    two). Raises InputError if the kernels fail or their results differ.
    """
    if not is_recording_graph() and q.numel() and supports_triton(q, k, v, pack_weights):
        L = 1 << (pack_weights.size(-1) - 1).bit_length()
        _compare_once(q.device, q.dtype, q.size(-1), L, has_decay, v is k)


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def _compare_once(
    device: torch.device, dtype: torch.dtype, K: int, L: int, has_decay: bool, is_tied: bool
) -> None:
    try:
        sample = draw_sample(2, 2, COMPARED_LENGTH, K, L, device, dtype, has_decay, is_tied)
        reason = find_disagreement(triton_causal_luna, sample)
    except Exception as error:  # a compiler may raise anything on a device that it does not know
        line = str(error).strip().partition("\n")[0]
        raise InputError(
            f"Luna backend triton fails on {device} with {type(error).__name__}: {line}. Use chunk"
        ) from error
    if reason:
        raise InputError(f"Luna backend triton is wrong on {device}: {reason}. Use chunk")
