"""Selection of the faster backend of causal Luna attention, for ``backend="auto"``.

The backend is triton if it supports the inputs, agrees with chunk on random inputs, and is at least as fast.
Otherwise the backend is chunk.
"""

import logging
from functools import lru_cache

import torch

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.comparison import draw_sample, find_disagreement, measure_milliseconds
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

logger = logging.getLogger(__name__)
# Sequence length for the comparison of results. It gives several chunks, the last of which is not full.
COMPARED_LENGTH = 100
# Batch size, number of heads and sequence length for the comparison of speed. A pass takes milliseconds on a
# GPU.
TIMED_SHAPE = (2, 8, 1024)


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def choose_backend(
    device: torch.device, dtype: torch.dtype, K: int, L: int, has_decay: bool = False, is_tied: bool = False
) -> str:
    """Measure both training backends, and return the faster one, "chunk" or "triton".

    Both backends run on random inputs and are timed. If triton does not support the inputs, fails, or
    disagrees with the results of chunk, the backend is chunk. The choice is logged, and cached for each
    combination of arguments.

    Args:
        device: device of the inputs.
        dtype: dtype of queries, keys and values.
        K: head width.
        L: packed length, the number of rows of the packed sequence P.
        has_decay: True if earlier positions decay exponentially (default: False).
        is_tied: True if keys and values are the same tensor (default: False).

    Returns:
        The name of the backend.
    """
    subject = f"causal Luna attention on {device}"
    reason = why_not_triton(device, dtype, K, L)
    if reason:
        log_once(logging.INFO, f"{subject}: chunk; not triton, because {reason}")
        return "chunk"
    try:
        sample = draw_sample(2, 2, COMPARED_LENGTH, K, L, device, dtype, has_decay, is_tied)
        reason = find_disagreement(triton_causal_luna, sample)
        if not reason:
            # Triton's interpreter on a CPU is slow, so a smaller sample is used.
            shape = TIMED_SHAPE if device.type == "cuda" else (2, 2, COMPARED_LENGTH)
            sample = draw_sample(*shape, K, L, device, dtype, has_decay, is_tied)
            triton_time = measure_milliseconds(triton_causal_luna, sample)
            chunk_time = measure_milliseconds(chunk_causal_luna, sample)
    except Exception as error:  # a compiler may raise anything on a device that it does not know
        reason = f"it fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if reason:
        log_once(logging.WARNING, f"{subject}: chunk; triton is supported, but {reason}")
        return "chunk"
    faster = "triton" if triton_time <= chunk_time else "chunk"
    case = f"heads of {K}, l {L}, {str(dtype).split('.')[-1]}"
    times = f"triton {triton_time:.2f} ms, chunk {chunk_time:.2f} ms"
    log_once(logging.INFO, f"{subject}: {faster} ({case}: {times})")
    return faster


@lru_cache(maxsize=None)
def log_once(level: int, message: str) -> None:
    """Log a message, unless it has already been logged.

    Args:
        level: log level, such as ``logging.INFO``.
        message: text of the message.
    """
    logger.log(level, message)
