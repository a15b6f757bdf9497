"""Luna attention: P packs a context, then a query unpacks what was packed (Luna, section 3.1)."""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.beams import beams_to_positions, hypotheses_each, positions_to_beams
from luna_fairseq.modules.heads import (
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    split_heads,
)
from luna_fairseq.ops.luna import luna_attention, naive_attention


class KeptContext(NamedTuple):
    """What unpack attention reads of a packed context: a context that stays the same is packed once, and this is kept.

    Attributes:
        key, value: [B, H, L, K], projected from Y_P; one tensor where they are tied
        pack_weights: mean over the pack heads [B, L, S], or None where weights are not wanted
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "KeptContext":
        """That of the ``sentences`` [B'], in their order."""
        key = self.key.index_select(0, sentences)
        value = key if self.value is self.key else self.value.index_select(0, sentences)
        weights = self.pack_weights
        return KeptContext(key, value, None if weights is None else weights.index_select(0, sentences))


class LunaAttention(nn.Module):
    """Y_P = Attn(P, C), Y_X = Attn(X, Y_P), equations 4 and 5. Encoder self-attention and decoder cross-attention.

    A layer of one's own passes Y_P + P on to the next one, as it does Y_X + X. Modules are time-first::

        import torch
        from luna_fairseq.modules import LunaAttention

        T, S, L, B, C = 7, 50, 16, 4, 512  # queries, context, rows of P, sentences, width
        attention = LunaAttention(C, num_heads=8)
        query, context, packed = torch.randn(T, B, C), torch.randn(S, B, C), torch.randn(L, B, C)
        lengths = torch.tensor([50, 31, 8, 44])
        left_out = torch.arange(S) >= lengths[:, None]  # [B, S], True: this position is padding, nobody attends to it
        output, packed_context, _ = attention(query, packed, context, context_padding_mask=left_out)
        assert output.shape == query.shape and packed_context.shape == packed.shape

        # Decoding: the context is packed once, and every step reads what was kept of it.
        kept = attention.keep(packed_context)
        first, _ = attention.unpack(query[:1], kept)

    Args:
        embed_dim: C, width of everything
        num_heads: heads of unpack attention
        num_pack_heads: heads of pack attention (default: ``num_heads``)
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for keys and values; otherwise both are one tensor (default: False)

    Raises:
        InputError: the width is not divisible by a number of heads
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_pack_heads = num_pack_heads or num_heads
        check_heads(embed_dim, self.num_heads, "attention heads")
        check_heads(embed_dim, self.num_pack_heads, "projected attention heads")
        self.untie_kv = untie_kv
        self.dropout_module: nn.Module = nn.Dropout(dropout)

        self.pack_q_proj = projection(embed_dim)
        self.unpack_q_proj = projection(embed_dim)
        for step in ("pack", "unpack"):
            for name in ("k", "v") if untie_kv else ("kv",):
                self.add_module(f"{step}_{name}_proj", projection(embed_dim))
        self.out_proj = output_projection(embed_dim)

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """
        Args:
            query: X [T, B, C]
            packed: P [L, B, C]
            context: what is packed [S, B, C]
            context_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            need_weights: also return weights over the context

        Returns:
            output Y_X, shaped as X; packed context Y_P [L, B, C]; weights over the context per unpack head [H, B, T, S]
            (unpack weights times the pack heads' mean), or None
        """
        packed_context, pack_weights = self.pack(packed, context, context_padding_mask, need_weights)
        kept = self.keep(packed_context, pack_weights)
        output, weights = self.unpack(query, kept, packed_padding_mask, need_weights)
        return output, packed_context, weights

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Pack attention: packed [L, B, C], context [S, B, C] -> Y_P [L, B, C] and weights [B, H, L, S] or None."""
        pack_q = packed_heads(self.pack_q_proj, packed, self.num_pack_heads)
        key, value = self._key_value("pack", context, self.num_pack_heads)
        output, weights = self._attend(pack_q, key, value, context_padding_mask, need_weights)
        return merge_heads(output), weights

    def keep(self, packed_context: Tensor, pack_weights: Optional[Tensor] = None) -> KeptContext:
        """What :meth:`unpack` reads of the two results of :meth:`pack`."""
        key, value = self._key_value("unpack", packed_context, self.num_heads)
        return KeptContext(key, value, None if pack_weights is None else pack_weights.mean(dim=1))

    def unpack(
        self,
        query: Tensor,
        kept: KeptContext,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Unpack attention, with masks and results as in :meth:`forward`.

        Args:
            query: X [T, B, C], or n hypotheses in a row of each of the B sentences that were packed [T, B n, C]
            kept: what :meth:`keep` returned

        Raises:
            InputError: hypotheses that cannot belong to the sentences of the context, as many to each; weights are
                asked for where those of pack attention were not kept
        """
        beams = hypotheses_each(query.size(1), kept.key.size(0))
        unpack_q = beams_to_positions(split_heads(self.unpack_q_proj(query), self.num_heads), beams)
        output, weights = self._attend(unpack_q, kept.key, kept.value, packed_padding_mask, need_weights)
        if need_weights:
            if kept.pack_weights is None:
                raise InputError("weights over the context were asked for after a first step without them")
            weights = weights @ kept.pack_weights.unsqueeze(1)  # [B, H, T, L] [B, 1, L, S]
            weights = positions_to_beams(weights, beams).transpose(0, 1)  # [H, B, T, S]
        return self.out_proj(merge_heads(positions_to_beams(output, beams))), weights

    def _key_value(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        if self.untie_kv:
            key, value = getattr(self, f"{step}_k_proj")(x), getattr(self, f"{step}_v_proj")(x)
            return split_heads(key, num_heads), split_heads(value, num_heads)
        key = split_heads(getattr(self, f"{step}_kv_proj")(x), num_heads)
        return key, key

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        dropout = dropout_probability(self.dropout_module)
        if need_weights:
            return naive_attention(q, k, v, mask, dropout)
        return luna_attention(q, k, v, mask, dropout), None
