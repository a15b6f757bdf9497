"""Luna's causal attention (section 3.3) in four forms: naive (the definition), chunk and triton (training),
recurrent (decoding)."""

from typing import Optional

from torch import Tensor

from luna_fairseq.ops.attention import in_a_graph
from luna_fairseq.ops.causal_luna.choice import choose_backend
from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.inputs import PACK_ACTIVATIONS, pack_weights
from luna_fairseq.ops.causal_luna.naive import naive_causal_luna
from luna_fairseq.ops.causal_luna.recurrent import recurrent_causal_luna
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton_here

BACKENDS = ("auto", "naive", "chunk", "triton")


def causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    backend: str = "auto",
    log_decay: Optional[Tensor] = None,
) -> Tensor:
    """Causal Luna attention over a whole sequence, by the form that ``backend`` names; ``auto`` takes what
    :func:`fastest_backend` says.

    Arguments as of :func:`naive_causal_luna`: q, k, v [B, H, T, K], pack_weights [B, H, T, L]; returns [B, H,
    T, K].

    Raises:
        ValueError: unknown backend, or one that does not take these inputs on this device
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown Luna backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    inputs = q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout
    if backend == "auto":
        backend = fastest_backend(q, k, v, pack_weights, log_decay)
    if backend == "naive":
        return naive_causal_luna(*inputs, log_decay)[0]
    if backend == "chunk":
        return chunk_causal_luna(*inputs, log_decay=log_decay)
    return triton_causal_luna(*inputs, log_decay)


def fastest_backend(
    q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, log_decay: Optional[Tensor] = None
) -> str:
    """``chunk`` or ``triton``, for q, k, v [B, H, T, K] and pack_weights [B, H, T, L]."""
    if in_a_graph() or not q.dtype == k.dtype == v.dtype:
        return "chunk"
    L = 1 << (pack_weights.size(-1) - 1).bit_length()  # the next power of two: one choice for all below
    return choose_backend(q.device, q.dtype, q.size(-1), L, log_decay is not None, v is k)


__all__ = ["BACKENDS", "PACK_ACTIVATIONS", "CausalLunaState", "causal_luna", "chunk_causal_luna"]
__all__ += ["naive_causal_luna", "pack_weights", "recurrent_causal_luna", "triton_causal_luna"]
__all__ += ["why_not_triton_here"]
