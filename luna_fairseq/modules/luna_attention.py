"""Luna attention: P packs a context, then a query unpacks what was packed (Luna, section 3.1)."""

from typing import Any, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.decoding_state import CrossAttentionCache
from luna_fairseq.modules.heads import (
    beams_to_positions,
    check_heads,
    dropout_probability,
    hypotheses_each,
    merge_heads,
    output_projection,
    packed_heads,
    positions_to_beams,
    projection,
    split_heads,
)
from luna_fairseq.modules.pack_statistics import PackReportingAttention
from luna_fairseq.modules.sentences import Masks, Sentences
from luna_fairseq.ops.attention import luna_attention, naive_attention


class LunaAttention(PackReportingAttention):
    """Y_P = Attn(P, C), Y_X = Attn(X, Y_P), equations 3 to 5. Encoder self-attention and decoder
    cross-attention.

    Another attention may override :meth:`pack_bias` and :meth:`unpack_bias`, and :meth:`read`, which may read
    further keys and values in the same softmax, with what :meth:`cache` keeps for it.

    Args:
        embed_dim: C, width of everything
        num_heads: heads of unpack attention
        num_pack_heads: heads of pack attention (default: ``num_heads``)
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for keys and values; otherwise both are one tensor (default: False)

    Raises:
        InputError: the width is not divisible by a number of heads
    """

    cache_type: Any = CrossAttentionCache
    packs = True  # P, whose next one a layer then normalises

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
        self.dropout_module = nn.Dropout(dropout)
        of_keys = ("k", "v") if untie_kv else ("kv",)
        names = "pack_q", "unpack_q", *(f"{step}_{name}" for step in ("pack", "unpack") for name in of_keys)
        for name in names:
            linear = projection(embed_dim)
            if self.has_projection(name):
                self.add_module(f"{name}_proj", linear)
        self.out_proj = output_projection(embed_dim)

    def has_projection(self, name: str) -> bool:
        """Whether there is the projection pack_q, unpack_kv and so on."""
        return True

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Masks = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """
        Args:
            query: X [T, B, C]
            packed: P [L, B, C]
            context: what is packed [S, B, C]
            context_padding_mask: [B, S], True at padding; or :class:`Sentences`, as layers give it, which has
                both masks
            packed_padding_mask: [B, L], True at rows of P that are left out; not beside :class:`Sentences`
            need_weights: also return weights over the context

        Raises:
            InputError: ``packed_padding_mask`` beside :class:`Sentences`

        Returns:
            output Y_X, shaped as X; packed context Y_P [L, B, C]; weights over the context per unpack head
            [H, B, T, S] (unpack weights times the pack heads' mean), or None
        """
        sentences = Sentences.of(context_padding_mask, packed_padding_mask)
        packed_context, pack_weights = self.pack(packed, context, sentences, need_weights)
        cache = self.cache(packed_context, pack_weights, context, sentences)
        output, weights = self.unpack(query, cache, sentences, need_weights)
        return output, packed_context, weights

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Masks = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Pack attention: packed [L, B, C], context [S, B, C] and its mask as in :meth:`forward` -> Y_P [L,
        B, C] and weights [B, H, L, S] or None."""
        sentences = Sentences.of(context_padding_mask)
        q = packed_heads(self.pack_q_proj, packed, self.num_pack_heads)
        k, v = self.keys_and_values("pack", context, self.num_pack_heads)
        bias = self.pack_bias(packed, context, sentences)
        inputs = q, k, v, sentences.padding_mask, dropout_probability(self.dropout_module), bias
        output, weights = naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)
        return merge_heads(output), weights

    def pack_bias(self, packed: Tensor, context: Tensor, sentences: Sentences) -> Optional[Tensor]:
        """What is added to pack attention's logits [B, H, L, S]: nothing."""
        return None

    def cache(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        sentences: Optional[Sentences] = None,
    ) -> Any:
        """What :meth:`unpack` reads, of the two results of :meth:`pack` and of its arguments."""
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        return CrossAttentionCache(key, value, None if pack_weights is None else pack_weights.mean(dim=1))

    def unpack(
        self, query: Tensor, cache: Any, sentences: Optional[Sentences] = None, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Unpack attention, with results as in :meth:`forward`.

        Args:
            query: X [T, B, C], or n hypotheses in a row of each of the B sentences that were packed [T, B n,
                C]
            cache: what :meth:`cache` returned
            sentences: for the rows of P that are left out
            need_weights: also return weights over the context

        Raises:
            InputError: not as many hypotheses of each sentence of the context; weights are asked for where
                those of pack attention are not in the cache
        """
        beams = hypotheses_each(query.size(1), cache.key.size(0))
        q = beams_to_positions(split_heads(self.unpack_q_proj(query), self.num_heads), beams)
        output, weights = self.read(q, cache, sentences or Sentences(), need_weights)
        if weights is not None:
            weights = positions_to_beams(weights, beams).transpose(0, 1)  # [H, B, T, S]
        return self.out_proj(merge_heads(positions_to_beams(output, beams))), weights

    def read(
        self, q: Tensor, cache: Any, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Output [B, H, T, K] for the heads of the queries [B, H, T, K], and where they are wanted their
        weights over the context [B, H, T, S]."""
        bias = self.unpack_bias(q, cache, sentences)
        dropout = dropout_probability(self.dropout_module)
        inputs = q, cache.key, cache.value, sentences.packed_padding_mask, dropout, bias
        if not need_weights:
            return luna_attention(*inputs), None
        output, weights = naive_attention(*inputs)
        return output, weights @ self.pack_weights_of(cache)

    def unpack_bias(self, q: Tensor, cache: Any, sentences: Sentences) -> Optional[Tensor]:
        """What is added to unpack attention's logits [B, H, T, L]: nothing."""
        return None

    def pack_weights_of(self, cache: Any) -> Tensor:
        """The weights of the rows of P over the context [B, 1, L, S]. Raises InputError where they are not
        kept."""
        if cache.pack_weights is None:
            raise InputError("weights over the context were asked for after a first step without them")
        return cache.pack_weights.unsqueeze(1)

    def keys_and_values(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        """The heads of keys and values of ``x`` [S, B, C]: [B, H, S, K]; one tensor where they are tied."""
        if not self.untie_kv:
            key = split_heads(getattr(self, f"{step}_kv_proj")(x), num_heads)
            return key, key
        key, value = getattr(self, f"{step}_k_proj")(x), getattr(self, f"{step}_v_proj")(x)
        return split_heads(key, num_heads), split_heads(value, num_heads)
