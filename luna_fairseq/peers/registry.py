"""Registry of the attention mechanisms from other papers ("peers"): classes keyed by name."""

from typing import Any, Dict, Type

from luna_fairseq.modules.heads import check_choice
from luna_fairseq.peers.abc import BoundedMemoryAttention
from luna_fairseq.peers.attention import OPTIONS, PeerAttention
from luna_fairseq.peers.bigbird import BigBirdAttention
from luna_fairseq.peers.conv_linformer import ConvLinformerAttention
from luna_fairseq.peers.flare import FlareAttention
from luna_fairseq.peers.linear import LinearAttention
from luna_fairseq.peers.linformer import LinformerAttention
from luna_fairseq.peers.local import LocalAttention
from luna_fairseq.peers.longformer import LongformerAttention
from luna_fairseq.peers.performer import PerformerAttention
from luna_fairseq.peers.reformer import ReformerAttention
from luna_fairseq.peers.rfa import RandomFeatureAttention
from luna_fairseq.peers.sinkhorn import SinkhornAttention
from luna_fairseq.peers.softmax import SoftmaxAttention
from luna_fairseq.peers.sparse import SparseAttention
from luna_fairseq.peers.synthesizer import SynthesizerAttention

# Attention classes, keyed by name.
ATTENTIONS: Dict[str, Type[PeerAttention]] = {
    attention.name: attention
    for attention in (
        SoftmaxAttention,
        LinearAttention,
        PerformerAttention,
        RandomFeatureAttention,
        BoundedMemoryAttention,
        LinformerAttention,
        ConvLinformerAttention,
        LocalAttention,
        SparseAttention,
        LongformerAttention,
        BigBirdAttention,
        ReformerAttention,
        SinkhornAttention,
        SynthesizerAttention,
        FlareAttention,
    )
}


def build_attention(
    name: str, embed_dim: int, num_heads: int, role: str, options: Any, **kwargs: Any
) -> PeerAttention:
    """Build the attention mechanism with the given name.

    Args:
        name: name of the mechanism in ``ATTENTIONS``, such as "performer".
        embed_dim: width of queries, keys, values and output.
        num_heads: number of heads.
        role: "bidirectional", "causal" or "cross".
        options: a :class:`luna_fairseq.peers.PeerOptions`, or an object with the same attributes.
        kwargs: additional arguments of :class:`PeerAttention`, such as ``max_positions`` and ``dropout``.

    Raises:
        InputError: No attention mechanism has this name, or the mechanism does not support this role.

    Example:
        >>> import torch
        >>> from luna_fairseq.peers import PeerOptions
        >>> attention = build_attention("local", 16, 4, "causal", PeerOptions(local_window=3))
        >>> x = torch.randn(10, 2, 16)
        >>> attention(x)[0].shape
        torch.Size([10, 2, 16])
    """
    check_choice(OPTIONS[role], name, ATTENTIONS)
    return ATTENTIONS[name](embed_dim, num_heads, role, options, **kwargs)
