"""What the backend ``auto`` stands for: triton where it suits, has shown that it is right, and is faster;
chunk everywhere else."""

import logging
from functools import lru_cache

import torch

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.comparison import disagreement, milliseconds, sample
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

logger = logging.getLogger(__name__)
# Positions of the numbers that are compared: several chunks, the last one not full.
SAMPLE = 100
# Batch, heads and positions of those that both forms are timed on: milliseconds on a GPU.
TIMED = (2, 8, 1024)


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def choose_backend(
    device: torch.device, dtype: torch.dtype, K: int, L: int, forgets: bool = False, tied: bool = False
) -> str:
    """``chunk`` or ``triton``, for heads of K and L rows of P, with and without decay, and values that are
    the keys.

    Both forms are compared on a few random numbers, output and gradients, and timed, once for each set of
    arguments; the choice is logged.
    """
    where = f"causal Luna attention on {device}"
    reason = why_not_triton(device, dtype, K, L)
    if reason:
        log_once(logging.INFO, f"{where}: chunk; not triton, because {reason}")
        return "chunk"
    try:
        reason = disagreement(triton_causal_luna, sample(2, 2, SAMPLE, K, L, device, dtype, forgets, tied))
        if not reason:
            size = TIMED if device.type == "cuda" else (2, 2, SAMPLE)  # the interpreter is slow
            timed = sample(*size, K, L, device, dtype, forgets, tied)
            ours, theirs = (milliseconds(form, timed) for form in (triton_causal_luna, chunk_causal_luna))
    except Exception as error:  # whatever a compiler that meets a new device may raise
        reason = f"it fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if reason:
        log_once(logging.WARNING, f"{where}: chunk; triton would suit, but {reason}")
        return "chunk"
    faster = "triton" if ours <= theirs else "chunk"
    of = f"heads of {K}, l {L}, {str(dtype).split('.')[-1]}"
    log_once(logging.INFO, f"{where}: {faster} ({of}: triton {ours:.2f} ms, chunk {theirs:.2f} ms)")
    return faster


@lru_cache(maxsize=None)
def log_once(level: int, message: str) -> None:
    """Log what is the same for all layers, and mostly for all shapes."""
    logger.log(level, message)
