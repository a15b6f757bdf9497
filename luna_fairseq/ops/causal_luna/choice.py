"""What the backend ``auto`` stands for: triton where it suits, has shown that it is right, and is faster;
chunk everywhere else."""

import logging
from functools import lru_cache
from typing import Optional

import torch
from torch import Tensor

from luna_fairseq.ops.attention import in_a_graph
from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.comparison import disagreement, milliseconds, sample
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

logger = logging.getLogger(__name__)
# Positions of the numbers that are compared: several chunks, the last one not full.
SAMPLE = 100
# Batch, heads and positions of those that both forms are timed on: milliseconds on a GPU.
TIMED = (2, 8, 1024)


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, log_decay: Optional[Tensor] = None
) -> str:
    """``chunk`` or ``triton``, for q, k, v [B, H, T, K] and pack_weights [B, H, T, L], with log_decay [H]
    where there is decay.

    The first time that a device, type, K, and L up to the next power of two, is met, whether it forgets, and
    whether ``v`` is ``k``, both forms are compared on a few random numbers, output and gradients, and timed;
    the choice is logged.
    """
    if in_a_graph() or not q.dtype == k.dtype == v.dtype:
        return "chunk"
    L = 1 << (pack_weights.size(-1) - 1).bit_length()  # the next power of two
    return choice(q.device, q.dtype, q.size(-1), L, log_decay is not None, v is k)


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def choice(
    device: torch.device, dtype: torch.dtype, K: int, L: int, forgets: bool = False, tied: bool = False
) -> str:
    """The backend for heads of K and L rows of P."""
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
