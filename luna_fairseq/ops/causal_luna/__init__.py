"""Luna's causal attention (section 3.3) in three forms: naive (the definition), chunk (training), recurrent (decoding)."""

from typing import Optional

from torch import Tensor

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.naive import naive_causal_luna
from luna_fairseq.ops.causal_luna.pack_activation import PACK_ACTIVATIONS, pack_weights
from luna_fairseq.ops.causal_luna.recurrent import recurrent_causal_luna
from luna_fairseq.ops.causal_luna.state import CausalLunaState

BACKENDS = ("auto", "naive", "chunk")


def causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Causal Luna attention over a whole sequence, by the form that ``backend`` names; ``auto`` takes ``chunk``.

    Shapes as in :func:`naive_causal_luna`: q, k, v [B, H, T, K], pack_weights [B, H, T, L]; returns [B, H, T, K].

    Raises:
        ValueError: unknown backend
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown Luna backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "naive":
        return naive_causal_luna(q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout)[0]
    return chunk_causal_luna(q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout)


__all__ = [
    "BACKENDS",
    "PACK_ACTIVATIONS",
    "CausalLunaState",
    "causal_luna",
    "chunk_causal_luna",
    "naive_causal_luna",
    "pack_weights",
    "recurrent_causal_luna",
]
