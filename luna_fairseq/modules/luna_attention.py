"""Luna attention: P packs a context, then a query unpacks what was packed (Luna, section 3.1)."""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.heads import (
    ProjectingAttention,
    check_heads,
    dropout_probability,
    fold_rows,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    rows_per_sentence,
    split_heads,
    unfold_rows,
)
from luna_fairseq.modules.memory import PackedMemory
from luna_fairseq.ops.attention import luna_attention, naive_attention


class AttentionWeights(NamedTuple):
    """Weights of one call.

    Attributes:
        pack: weights of the rows of P over the context [B, H, L, S]; None if P is not packed
        unpack: weights of the queries over the rows of P [B, H, T, L]; None if the rows are not read
        read: weights of the queries over the context [B, H, T, S], through the rows and beside them
    """

    pack: Optional[Tensor]
    unpack: Optional[Tensor]
    read: Tensor


class LunaAttention(ProjectingAttention):
    """Y_P = Attn(P, C), Y_X = Attn(X, Y_P), equations 3 to 5. Encoder self-attention and decoder
    cross-attention.

    Another attention of the same slot may override :meth:`pack_bias` and :meth:`unpack_bias`, or
    :meth:`remember` and :meth:`read`, which keep and read further keys and values.

    Args:
        embed_dim: C, width of everything
        num_heads: heads of unpack attention
        num_pack_heads: heads of pack attention (default: ``num_heads``)
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for keys and values; otherwise both are one tensor (default: False)

    Raises:
        InputError: the width is not divisible by a number of heads

    Attributes:
        watcher: function that gets (attention, query, packed, context, source, geometry) of every call of
            :meth:`forward`, for reports that ask for :meth:`weights` (default: None)
    """

    packs = True  # there is a next P, which the layer normalises

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
        self.watcher: Optional[Callable[..., None]] = None
        self.dropout_module = nn.Dropout(dropout)
        of_keys = ("k", "v") if untie_kv else ("kv",)
        names = "pack_q", "unpack_q", *(f"{step}_{name}" for step in ("pack", "unpack") for name in of_keys)
        for name in names:
            linear = projection(embed_dim)
            if self.has_projection(name):
                self.add_module(f"{name}_proj", linear)
        self.out_proj = output_projection(embed_dim)

    def has_projection(self, name: str) -> bool:
        """Return True if the attention has the projection ``name``, such as "pack_q" or "unpack_kv"."""
        return True

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        source: Optional[Source] = None,
        geometry: Optional[Geometry] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Pack the context into P, then let the query read the packed context.

        Args:
            query: X [T, B, C]
            packed: P [L, B, C]
            context: what is packed [S, B, C]
            context_padding_mask: [B, S], True at padding (default: None, no padding)
            packed_padding_mask: [B, L], True at rows of P that are padding (default: None, none is)
            need_weights: also return weights over the context (default: False)
            source: both masks in one value, in place of them (default: None)
            geometry: what the encoder or decoder has computed of the batch (default: None, the attention
                computes what it needs)

        Returns:
            output Y_X, shaped as X; packed context Y_P [L, B, C]; weights over the context per unpack head
            [H, B, T, S] (unpack weights times the mean of the pack heads' weights), or None

        Raises:
            InputError: ``source`` together with a mask
        """
        if source is None:
            source = Source(context_padding_mask, packed_padding_mask)
        elif not (context_padding_mask is None and packed_padding_mask is None):
            raise InputError("the masks of the context and of P were given twice: give them or a Source")
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        if self.watcher is not None:
            self.watcher(self, query, packed, context, source, geometry)
        packed_context, memory = self.pack(packed, context, source, geometry, need_weights)
        output, weights = self.unpack(query, memory, source, geometry, need_weights)
        return output, packed_context, weights

    def find_geometry(
        self, query: Tensor, packed: Tensor, context: Tensor, source: Source
    ) -> Optional[Geometry]:
        """Compute the geometry of one call; arguments as in :meth:`forward`. The paper's attention has
        none."""
        return None

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Optional[Tensor], Any]:
        """Pack the context, and project what the queries read.

        Args:
            packed: P [L, B, C]
            context: [S, B, C]
            source: masks of the context and of P (default: no padding)
            geometry: what the encoder or decoder has computed of the batch (default: None)
            need_weights: keep the weights of P over the context for :meth:`unpack` (default: False)

        Returns:
            packed context Y_P [L, B, C], and the memory that :meth:`unpack` reads
        """
        packed_context, weights = self.attend_to_context(packed, context, source, geometry, need_weights)
        pack_weights = None if weights is None else weights.mean(dim=1)
        return packed_context, self.remember(packed_context, pack_weights, context, geometry)

    def attend_to_context(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Pack attention alone. Arguments as of :meth:`pack`; returns Y_P [L, B, C], and the weights [B, H,
        L, S] of all pack heads or None."""
        q = packed_heads(self.pack_q_proj, packed, self.num_pack_heads)
        k, v = self.keys_and_values("pack", context, self.num_pack_heads)
        bias = self.pack_bias(context, geometry)
        inputs = q, k, v, source.padding_mask, dropout_probability(self.dropout_module), bias
        output, weights = naive_attention(*inputs) if need_weights else (luna_attention(*inputs), None)
        return merge_heads(output), weights

    def pack_bias(self, context: Tensor, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the bias of pack attention's logits [B, H, L, S]. Luna has none, so this returns None."""
        return None

    def remember(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> Any:
        """Return the memory that :meth:`unpack` reads: a named tuple of tensors [B, ..] with ``select``.

        Args:
            packed_context: Y_P [L, B, C]
            pack_weights: [B, L, S], mean over the pack heads, or None
            context: [S, B, C]
            geometry: as in :meth:`pack`
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        return PackedMemory(key, value, pack_weights)

    def unpack(
        self,
        query: Tensor,
        memory: Any,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Let the query read a packed context.

        Args:
            query: X [T, B n, C]; n rows that follow one another read the same one of the B sentences
            memory: what :meth:`pack` has returned for the sentences
            source: masks of the context and of P (default: no padding)
            geometry: what the encoder or decoder has computed of the batch (default: None)
            need_weights: also return weights over the context (default: False)

        Returns:
            output Y_X, shaped as X; weights over the context [H, B n, T, S] or None

        Raises:
            InputError: the rows cannot be divided among the sentences; weights are asked for that
                :meth:`pack` has not kept
        """
        n = rows_per_sentence(query.size(1), memory.key.size(0))
        q = fold_rows(split_heads(self.unpack_q_proj(query), self.num_heads), n)
        output, weights = self.read(q, memory, source, geometry, need_weights)
        if weights is not None:
            weights = unfold_rows(weights, n).transpose(0, 1)  # [H, B n, T, S]
        return self.out_proj(merge_heads(unfold_rows(output, n))), weights

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Unpack attention for the heads of the queries [B, H, T, K]. Returns [B, H, T, K], and weights over
        the context [B, H, T, S] or None. Other arguments as of :meth:`unpack`."""
        bias = self.unpack_bias(q, memory, source, geometry)
        dropout = dropout_probability(self.dropout_module)
        inputs = q, memory.key, memory.value, source.packed_padding_mask, dropout, bias
        if not need_weights:
            return luna_attention(*inputs), None
        output, weights = naive_attention(*inputs)
        return output, weights @ self.pack_weights_of(memory)

    def unpack_bias(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry]
    ) -> Optional[Tensor]:
        """Return the bias of unpack attention's logits [B, H, T, L]. Luna has none, so this returns None."""
        return None

    def pack_weights_of(self, memory: Any) -> Tensor:
        """Return the weights of the rows of P over the context [B, 1, L, S]. Raises InputError if the memory
        has none."""
        if memory.pack_weights is None:
            raise InputError("weights over the context were asked for after a first step without them")
        return memory.pack_weights.unsqueeze(1)

    def keys_and_values(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        """Project ``x`` [S, B, C] to the keys and values of ``step``, "pack" or "unpack": [B, H, S, K] each,
        one tensor if they are tied."""
        if not self.untie_kv:
            key = split_heads(getattr(self, f"{step}_kv_proj")(x), num_heads)
            return key, key
        key, value = getattr(self, f"{step}_k_proj")(x), getattr(self, f"{step}_v_proj")(x)
        return split_heads(key, num_heads), split_heads(value, num_heads)

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
    ) -> AttentionWeights:
        """Compute the weights of pack attention, of unpack attention and over the context.

        The weights come from the naive form, which writes them out. Arguments are those of :meth:`forward`.
        """
        if geometry is None:
            geometry = self.find_geometry(query, packed, context, source)
        pack: Any  # with need_weights there are weights
        read: Any
        unpack: Any
        packed_context, pack = self.attend_to_context(packed, context, source, geometry, need_weights=True)
        memory = self.remember(packed_context, pack.mean(dim=1), context, geometry)
        _, read = self.unpack(query, memory, source, geometry, need_weights=True)
        # With pack weights that give every row of P a column of its own, behind those of the tokens that are
        # read beside the rows, the weights over the context are those of unpack attention.
        S, L = context.size(0), packed.size(0)
        rows = torch.cat([packed.new_zeros(L, S), torch.eye(L).to(packed)], dim=1)
        memory = memory._replace(pack_weights=rows.expand(packed.size(1), -1, -1))
        _, unpack = self.unpack(query, memory, source, geometry, need_weights=True)
        return AttentionWeights(pack, unpack.transpose(0, 1)[..., S:], read.transpose(0, 1))
