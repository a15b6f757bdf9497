"""Luna attention: P packs a context, then a query unpacks what was packed (Luna, section 3.1)."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.anchors import (
    CLOSED_GATE,
    OPEN_GATE,
    AnchorBias,
    Anchors,
    DiagonalPrior,
    LookupGate,
    check_diagonal,
    check_local_parts,
    check_lookup,
    find_anchors,
    placed,
    unpack_strengths,
)
from luna_fairseq.modules.beams import beams_to_positions, hypotheses_each, positions_to_beams
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    split_heads,
)
from luna_fairseq.modules.kept_context import KeptContext
from luna_fairseq.modules.token_reading import keep_looked_up, look_around, look_up
from luna_fairseq.ops.luna import Diagonal, luna_attention, naive_attention


def places_of_all(query: Tensor) -> Tensor:
    """The places of a query [T, B, C] that is all of a target, without padding: 0 .. T - 1 [B, T]."""
    return torch.arange(query.size(0), device=query.device).expand(query.size(1), -1)


class LunaAttention(ProjectingAttention):
    """Y_P = Attn(P, C), Y_X = Attn(X, Y_P), equations 3 to 5. Encoder self-attention and decoder
    cross-attention.

    A layer of one's own passes Y_P + P on to the next one, as it does Y_X + X. Modules are time-first:

    >>> import torch
    >>> from luna_fairseq.modules import LunaAttention
    >>> T, S, L, B, C = 7, 50, 16, 4, 64  # queries, context, rows of P, sentences, width
    >>> attention = LunaAttention(C, num_heads=8)
    >>> query, context, packed = torch.randn(T, B, C), torch.randn(S, B, C), torch.randn(L, B, C)
    >>> lengths = torch.tensor([50, 31, 8, 44])
    >>> left_out = torch.arange(S) >= lengths[:, None]  # [B, S], True: padding, to which nobody attends
    >>> output, packed_context, _ = attention(query, packed, context, context_padding_mask=left_out)
    >>> output.shape == query.shape, packed_context.shape == packed.shape
    (True, True)

    In decoding the context is packed once, and every step reads what was kept of it:

    >>> kept = attention.keep(packed_context)
    >>> first, _ = attention.unpack(query[:1], kept)
    >>> torch.allclose(first, output[:1], atol=1e-5)
    True

    Args:
        embed_dim: C, width of everything
        num_heads: heads of unpack attention
        num_pack_heads: heads of pack attention (default: ``num_heads``)
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for keys and values; otherwise both are one tensor (default: False)
        anchor_strength: give each row of P a place in the context, which draws its pack attention so strongly
            at the start; None for the paper's P (default: None)
        anchored_unpack: with anchors, where the query is the context itself: draw unpack attention, too
            (default: False)
        lookup: with anchors, also read the tokens of so many parts of the context in unpack attention
            (default: 0)
        local_parts: with anchored unpack, let each token of the query also read the tokens of so many parts
            of the context around it; odd (default: 0)
        diagonal: with anchors, where the query writes what the context says, a target: draw unpack attention
            to where the context is read at its pace (default: False)
        share_token_projections: tokens that are read have the keys and values of pack attention, not those of
            projections of their own (default: False)

    Raises:
        InputError: the width is not divisible by a number of heads; a strength that is not positive; a
            negative look-up, an even number of local parts, or these or a diagonal without anchors
    """

    kept_type: Any = KeptContext

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        anchor_strength: Optional[float] = None,
        anchored_unpack: bool = False,
        lookup: int = 0,
        local_parts: int = 0,
        diagonal: bool = False,
        share_token_projections: bool = False,
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
        check_lookup(lookup, anchor_strength is not None)
        check_local_parts(local_parts, anchor_strength is not None and anchored_unpack)
        check_diagonal(diagonal, anchor_strength is not None and not anchored_unpack)
        self.lookup = lookup
        self.local_parts = local_parts
        self.share_token_projections = share_token_projections
        if self.projects_tokens:
            self.token_k_proj, self.token_v_proj = projection(embed_dim), projection(embed_dim)
        self.pack_anchor: Optional[AnchorBias] = None
        self.unpack_anchor: Any = None
        self.lookup_gate: Any = None
        self.diagonal: Any = DiagonalPrior(num_heads) if diagonal else None
        if anchor_strength is not None:
            self.pack_anchor = AnchorBias([anchor_strength] * self.num_pack_heads)
            if anchored_unpack:
                self.unpack_anchor = AnchorBias(unpack_strengths(num_heads))
            if lookup:
                self.lookup_gate = LookupGate(num_heads, OPEN_GATE if diagonal else CLOSED_GATE)

    @property
    def reads_tokens(self) -> bool:
        """Whether unpack attention reads tokens of the context beside the rows of P."""
        return self.lookup > 0 or self.local_parts > 0

    @property
    def projects_tokens(self) -> bool:
        """Whether they have projections of their own."""
        return self.reads_tokens and not self.share_token_projections

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        query_place: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """
        Args:
            query: X [T, B, C]
            packed: P [L, B, C]
            context: what is packed [S, B, C]
            context_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            need_weights: also return weights over the context
            anchors: result of :meth:`find_anchors`, which layers over one context share (default: it is
                called)
            query_place: with a diagonal, the number of each query's token in the target [B, T] (default: 0 ..
                T - 1)

        Returns:
            output Y_X, shaped as X; packed context Y_P [L, B, C]; weights over the context per unpack head
            [H, B, T, S] (unpack weights times the pack heads' mean, and what a look-up read), or None
        """
        if anchors is None:
            anchors = self.find_anchors(context, packed, context_padding_mask, packed_padding_mask)
        if query_place is None and self.diagonal is not None:
            query_place = places_of_all(query)
        packed_context, kept = self.pack_and_keep(
            packed, context, context_padding_mask, need_weights, anchors
        )
        output, weights = self.unpack(query, kept, packed_padding_mask, need_weights, anchors, query_place)
        return output, packed_context, weights

    def find_anchors(
        self,
        context: Tensor,
        packed: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Optional[Anchors]:
        """The places of P's rows in the context; None without anchors. Arguments as in :meth:`forward`."""
        if self.pack_anchor is None and self.diagonal is None:
            return None
        return find_anchors(
            context,
            packed,
            context_padding_mask,
            packed_padding_mask,
            self.num_pack_heads,
            self.lookup > 0,
            self.local_parts,
            self.diagonal is not None,
        )

    def pack_and_keep(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor],
        need_weights: bool,
        anchors: Optional[Anchors],
    ) -> Tuple[Any, Any]:
        """:meth:`pack` and :meth:`keep`: what both read of the context is projected once. Y_P, and what is
        kept."""
        read = self._project("pack", context) if self.reads_tokens and self.share_token_projections else None
        packed_context, pack_weights = self.pack(
            packed, context, context_padding_mask, need_weights, anchors, read
        )
        return packed_context, self.keep(
            packed_context, pack_weights, context, context_padding_mask, anchors, read
        )

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        read: Optional[Tuple[Tensor, Tensor]] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Pack attention: packed [L, B, C], context [S, B, C] -> Y_P [L, B, C] and weights [B, H, L, S] or
        None. ``read``: its keys and values of the context [S, B, C], where they are at hand."""
        pack_q = packed_heads(self.pack_q_proj, packed, self.num_pack_heads)
        key, value = _split(read or self._project("pack", context), self.num_pack_heads)
        bias = None if self.pack_anchor is None else self.pack_anchor(placed(anchors).pack)
        output, weights = self._attend(pack_q, key, value, context_padding_mask, need_weights, bias)
        return merge_heads(output), weights

    def keep(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        context_padding_mask: Optional[Tensor] = None,
        anchors: Optional[Anchors] = None,
        read: Optional[Tuple[Tensor, Tensor]] = None,
    ) -> KeptContext:
        """What :meth:`unpack` reads of the two results of :meth:`pack`, and of its arguments where tokens are
        read."""
        key, value = _split(self._project("unpack", packed_context), self.num_heads)
        kept = KeptContext(key, value, None if pack_weights is None else pack_weights.mean(dim=1))
        if self.diagonal is not None:
            kept = kept._replace(row_place=placed(anchors).row_place)
        if context is None or not self.reads_tokens:
            return kept
        if self.projects_tokens:
            read = self.token_k_proj(context), self.token_v_proj(context)
        token_key, token_value = _split(read or self._project("pack", context), self.num_heads)
        if self.local_parts:
            return kept._replace(token_key=token_key, token_value=token_value)
        return keep_looked_up(kept, token_key, token_value, placed(anchors))

    def unpack(
        self,
        query: Tensor,
        kept: KeptContext,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        anchors: Optional[Anchors] = None,
        query_place: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Unpack attention, with masks and results as in :meth:`forward`.

        Args:
            query: X [T, B, C], or n hypotheses in a row of each of the B sentences that were packed [T, B n,
                C]
            kept: what :meth:`keep` returned
            query_place: with a diagonal, the number of each query's token in the target [B n, T]

        Raises:
            InputError: no places where there is a diagonal; hypotheses that cannot belong to the sentences of
                the context, as many to each; weights are asked for where those of pack attention were not
                kept
        """
        beams = hypotheses_each(query.size(1), kept.key.size(0))
        unpack_q = beams_to_positions(split_heads(self.unpack_q_proj(query), self.num_heads), beams)
        of_rows = None
        if need_weights:
            if kept.pack_weights is None:
                raise InputError("weights over the context were asked for after a first step without them")
            of_rows = kept.pack_weights.unsqueeze(1)  # [B, 1, L, S]
        diagonal = self._diagonal(query, query_place, beams, kept.row_place, packed_padding_mask)
        output, weights = self._read(unpack_q, kept, packed_padding_mask, of_rows, anchors, diagonal)
        if weights is not None:
            weights = positions_to_beams(weights, beams).transpose(0, 1)  # [H, B, T, S]
        return self.out_proj(merge_heads(positions_to_beams(output, beams))), weights

    def _read(
        self,
        q: Tensor,
        kept: KeptContext,
        mask: Optional[Tensor],
        of_rows: Optional[Tensor],
        anchors: Optional[Anchors],
        diagonal: Optional[Diagonal],
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Output [B, H, T, K], and where those of the rows are given the weights [B, H, T, S]."""
        dropout = dropout_probability(self.dropout_module)
        if self.lookup_gate is not None:
            return look_up(q, kept, self.lookup_gate(), self.lookup, mask, dropout, diagonal, of_rows)
        if self.local_parts:
            strength = self.unpack_anchor.strength()
            return look_around(q, kept, placed(anchors).window, strength, dropout, of_rows)
        bias = None if self.unpack_anchor is None else self.unpack_anchor(placed(anchors).unpack)
        if diagonal is not None:
            bias = diagonal.bias()
        output, weights = self._attend(q, kept.key, kept.value, mask, of_rows is not None, bias)
        return output, None if of_rows is None else weights @ of_rows

    def _diagonal(
        self,
        query: Tensor,
        query_place: Optional[Tensor],
        beams: int,
        key_place: Optional[Tensor],
        left_out: Optional[Tensor],
    ) -> Optional[Diagonal]:
        if self.diagonal is None:
            return None
        if query_place is None:
            raise InputError("attention with a diagonal needs the places of the query's tokens: query_place")
        of_sentences = beams_to_positions(query_place[:, None, :, None], beams).flatten(1)
        return self.diagonal(of_sentences, key_place, left_out)

    def _project(self, step: str, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Keys and values, shaped as ``x``; one tensor where they are tied."""
        if self.untie_kv:
            return getattr(self, f"{step}_k_proj")(x), getattr(self, f"{step}_v_proj")(x)
        key = getattr(self, f"{step}_kv_proj")(x)
        return key, key

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Optional[Tensor],
        need_weights: bool,
        bias: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        dropout = dropout_probability(self.dropout_module)
        if need_weights:
            return naive_attention(q, k, v, mask, dropout, bias)
        return luna_attention(q, k, v, mask, dropout, bias), None


def _split(key_value: Tuple[Tensor, Tensor], num_heads: int) -> Tuple[Tensor, Tensor]:
    """The heads of keys and values [.., C]: [B, H, .., K]; one tensor where they are one."""
    key, value = key_value
    heads = split_heads(key, num_heads)
    return heads, heads if value is key else split_heads(value, num_heads)
