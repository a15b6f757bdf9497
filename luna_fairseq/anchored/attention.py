"""Anchored attention: Luna attention whose rows of P have places in the context.

What is the same for all layers, distances and the tokens of each segment, is computed by the first that asks
and shared through the sentences; a layer learns how much distance counts.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.dense import Tokens, dense_attention, weights_of_dense
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.anchored.lookup import lookup_attention, weights_of_context
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, middles
from luna_fairseq.anchored.segments import Segments, by_segments, find_layout
from luna_fairseq.anchored.strengths import (
    CLOSED_GATE,
    OPEN_GATE,
    AnchorBias,
    DiagonalPrior,
    LearnedStrength,
    LookupGate,
    check_lookup,
    check_window,
    unpack_strengths,
)
from luna_fairseq.anchored.window import find_window, weights_of_window, window_attention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.decoding_state import select_sentences
from luna_fairseq.modules.heads import beams_to_positions, dropout_probability, projection, split_heads
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.sentences import Masks, Sentences

# What a diagonal is told of the query: its tokens' places, and where the source has their sentence.
QUERY_PLACE, QUERY_ORIGIN = "query place", "query origin"


class AnchoredCache(NamedTuple):
    """What anchored unpack attention reads of a context.

    Attributes:
        key, value: [B, H, L, K], projected from Y_P; one tensor where they are tied
        pack_weights: mean over the pack heads [B, L, S], or None where weights are not wanted
        token_key, token_value: with a look-up, the tokens of each segment [B, H, L, W, K]; where they are
            read as they stand, and with a window, [B, H, S, K]
        empty, position, segment, is_short: with a look-up, see
            :class:`luna_fairseq.anchored.segments.Layout`
        row_place, token_place: with a diagonal, the middle of rows [B, L] and, with a look-up, of tokens [B,
            L, W] or [B, S], in tokens
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None
    token_key: Any = None
    token_value: Optional[Tensor] = None
    empty: Optional[Tensor] = None
    position: Optional[Tensor] = None
    segment: Optional[Tensor] = None
    is_short: Optional[Tensor] = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "AnchoredCache":
        """That of the ``sentences`` [B'], in their order."""
        return select_sentences(self, sentences)


def masks_of(packed: Tensor, context: Tensor, sentences: Sentences) -> Tuple[Tensor, Tensor]:
    """The masks of context [B, S] and P [B, L], all False where there is none."""

    def find() -> Tuple[Tensor, Tensor]:
        given = (context, sentences.padding_mask), (packed, sentences.packed_padding_mask)
        context_mask, packed_mask = (
            torch.zeros(x.shape[1::-1], dtype=torch.bool, device=x.device) if mask is None else mask
            for x, mask in given
        )
        return context_mask, packed_mask

    return sentences.once("masks", find)


def shared_masks(sentences: Sentences) -> Tuple[Tensor, Tensor]:
    """What :func:`masks_of` has found for pack attention. Raises InputError where it was not asked."""
    if "masks" not in sentences.shared:
        raise InputError(
            "pack and unpack of anchored attention need the same sentences: give both one object"
        )
    return sentences.shared["masks"]


class AnchoredAttention(LunaAttention):
    """What anchored attentions have in common: pack attention that is drawn to the places of its rows.

    Args:
        args, kwargs: of :class:`LunaAttention`

    Raises:
        InputError: a strength that is not positive, or what :class:`LunaAttention` refuses
    """

    cache_type: Any = AnchoredCache
    reads_tokens = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.pack_anchor: Any = None
        self.unpack_anchor: Any = None
        self.lookup_gate: Any = None
        self.diagonal: Any = None

    def build_anchors(self, embed_dim: int, anchor_strength: float, diagonal: bool = False) -> None:
        """Build what is learned, in the order that checkpoints of optimizers have.

        Args:
            embed_dim: C
            anchor_strength: how strongly pack attention is drawn initially
            diagonal: draw unpack attention to where the context is read at the query's pace (default: False)
        """
        if self.reads_tokens:
            self.token_k_proj, self.token_v_proj = projection(embed_dim), projection(embed_dim)
        if diagonal:
            self.diagonal = DiagonalPrior(self.num_heads)
        if self.packs:
            self.pack_anchor = AnchorBias([anchor_strength] * self.num_pack_heads)

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Masks = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """As :meth:`LunaAttention.forward`. Where nothing says which places of the target the queries have,
        they are all of it."""
        sentences = Sentences.of(context_padding_mask, packed_padding_mask)
        if self.diagonal is not None:
            T, B, _ = query.shape
            sentences.once(QUERY_PLACE, lambda: torch.arange(T, device=query.device).expand(B, -1))
        return super().forward(query, packed, context, sentences, None, need_weights)

    def pack_bias(self, packed: Tensor, context: Tensor, sentences: Sentences) -> Optional[Tensor]:
        """What is added to pack attention's logits [B, H, L, S]: how much further than the nearest token each
        token is from where a row's head looks, in segments, times gamma."""
        if self.pack_anchor is None:
            return None
        heads = self.num_pack_heads

        def find() -> Tensor:
            distances = anchor_distances(*masks_of(packed, context, sentences), num_heads=heads)
            return beyond_nearest(distances).to(context.dtype)

        return self.pack_anchor(sentences.once(f"pack distances of {heads} heads", find))

    def token_heads(self, context: Tensor) -> Tuple[Tensor, Tensor]:
        """The heads of keys and values of the tokens that are read beside the rows [B, H, S, K]."""
        key, value = self.token_k_proj(context), self.token_v_proj(context)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def diagonal_of(
        self, q: Tensor, sentences: Sentences, key_place: Tensor, left_out: Optional[Tensor]
    ) -> Optional[Diagonal]:
        """The prior for queries [B, H, n T, K] and keys with these places and mask [B, N], if there is one.
        Raises InputError where nothing says the queries' places."""
        if self.diagonal is None:
            return None
        place = sentences.shared.get(QUERY_PLACE)
        if place is None:
            raise InputError("attention with a diagonal needs the places of the query's tokens in the target")
        beams = place.size(0) // q.size(0)
        place, origin = (
            x if x is None else beams_to_positions(x[:, None, :, None], beams).flatten(1)
            for x in (place, sentences.shared.get(QUERY_ORIGIN))
        )
        return self.diagonal(place, key_place, left_out, origin)

    def own_statistics(self) -> Dict[str, float]:
        """Gamma of pack, unpack attention and the diagonal, mean over heads."""
        drawn = {"pack": self.pack_anchor, "unpack": self.unpack_anchor, "diagonal": self.diagonal}
        return {f"{name}_gamma": x.strength().mean().item() for name, x in drawn.items() if x is not None}

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        if self.reads_tokens and f"{prefix}pack_anchor.change" in state_dict:
            if f"{prefix}token_k_proj.weight" not in state_dict:
                raise InputError(
                    "the checkpoint has no projections of tokens: one trained with --share-token-projections "
                    "is still loaded by version 0.1.0; for any other, give the options it was trained with"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


class AnchoredSelfAttention(AnchoredAttention):
    """Of an encoder: unpack attention is drawn to near rows, too, and may read the tokens around a token.

    Args:
        embed_dim, num_heads, num_pack_heads, dropout, untie_kv: of :class:`LunaAttention`
        anchor_strength: how strongly pack attention is drawn initially (default: 4)
        window: read the tokens of so many segments around each token, its own in the middle; odd (default: 0)

    Raises:
        InputError: an even window, a strength that is not positive
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        anchor_strength: float = 4.0,
        window: int = 0,
    ):
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv)
        check_window(window)
        self.window = window
        self.reads_tokens = window > 0
        self.build_anchors(embed_dim, anchor_strength)
        self.unpack_anchor = (LearnedStrength if window else AnchorBias)(unpack_strengths(num_heads))

    def cache(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        sentences: Optional[Sentences] = None,
    ) -> Any:
        """As :meth:`LunaAttention.cache`, with the tokens that a window may have."""
        cache = AnchoredCache(*super().cache(packed_context, pack_weights))
        if not self.window:
            return cache
        token_key, token_value = self.token_heads(context)
        return cache._replace(token_key=token_key, token_value=token_value)

    def read(
        self, q: Tensor, cache: AnchoredCache, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As :meth:`LunaAttention.read`, with the tokens of a window."""
        if self.window:
            return self._read_window(q, cache, sentences, need_weights)
        return super().read(q, cache, sentences, need_weights)

    def unpack_bias(self, q: Tensor, cache: AnchoredCache, sentences: Sentences) -> Optional[Tensor]:
        """What is added to unpack attention's logits [B, H, S, L]: how much further than the nearest row each
        row's middle is from each token, in segments, times gamma."""

        def find() -> Tensor:
            return beyond_nearest(anchor_distances(*shared_masks(sentences)).transpose(2, 3)).to(q.dtype)

        return self.unpack_anchor(sentences.once("unpack distances", find))

    def _read_window(
        self, q: Tensor, cache: AnchoredCache, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        masks, tokens = shared_masks(sentences), cache.token_key.size(2)
        if q.size(2) != tokens:
            raise InputError(
                f"a window is for self-attention: the query has {q.size(2)} tokens, the context {tokens}"
            )
        complete = sentences.padding_mask is None and sentences.packed_padding_mask is None
        window = sentences.once(
            f"window of {self.window}", lambda: find_window(*masks, self.window, complete)
        )
        keys = cache.key, cache.value, cache.token_key, cache.token_value
        dropout = dropout_probability(self.dropout_module)
        output, weights = window_attention(q, *keys, self.unpack_anchor(), window, dropout)
        if not need_weights:
            return output, None
        return output, weights_of_window(weights, window, self.pack_weights_of(cache))


class AnchoredCrossAttention(AnchoredAttention):
    """Of a decoder, to the source: unpack attention may look up tokens, and begin near the diagonal.

    Args:
        embed_dim, num_heads, num_pack_heads, dropout, untie_kv: of :class:`LunaAttention`
        anchor_strength: how strongly pack attention is drawn initially (default: 4)
        lookup: also read the tokens of the so many segments that a query weighs most (default: 0)
        diagonal: draw unpack attention to where the context is read at the query's pace (default: False)

    Attributes:
        static: set to True to export this module: the look-up then has one form for all lengths, so that
            caches made inside and outside of a graph hold the same tensors

    Raises:
        InputError: a negative look-up, a strength that is not positive
    """

    static = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        anchor_strength: float = 4.0,
        lookup: int = 0,
        diagonal: bool = False,
    ):
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv)
        check_lookup(lookup)
        self.lookup = lookup
        self.reads_tokens = lookup > 0
        self.build_anchors(embed_dim, anchor_strength, diagonal)
        if lookup:
            self.lookup_gate = LookupGate(num_heads, OPEN_GATE if diagonal else CLOSED_GATE)

    def cache(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor] = None,
        context: Optional[Tensor] = None,
        sentences: Optional[Sentences] = None,
    ) -> Any:
        """As :meth:`LunaAttention.cache`, with the tokens that a look-up may read and the places of a
        diagonal: by segments, or as they stand where all are read. Raises InputError where these are to be
        read and the context is missing."""
        cache = AnchoredCache(*super().cache(packed_context, pack_weights))
        if context is None or sentences is None:
            if self.lookup or self.diagonal is not None:
                raise InputError("a look-up or a diagonal needs the context and its sentences in the cache")
            return cache
        masks = masks_of(packed_context, context, sentences)
        token_place = None
        if self.diagonal is not None:
            row_place, token_place = sentences.once("middles", lambda: middles(*masks))
            cache = cache._replace(row_place=row_place)
        if not self.lookup:
            return cache
        key, value = self.token_heads(context)
        layout = sentences.once("layout", lambda: find_layout(*masks, self.lookup, self.static))
        position = layout.position
        if position is not None:
            key, value = by_segments(key, value, layout)[:2]
            if token_place is not None:
                token_place = token_place.gather(1, position.flatten(1)).view_as(position)
        return cache._replace(
            token_key=key,
            token_value=value,
            token_place=token_place,
            **layout._asdict(),
        )

    def read(
        self, q: Tensor, cache: AnchoredCache, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As :meth:`LunaAttention.read`, with the tokens of a look-up."""
        if self.lookup:
            return self._look_up(q, cache, sentences, need_weights)
        return super().read(q, cache, sentences, need_weights)

    def unpack_bias(self, q: Tensor, cache: AnchoredCache, sentences: Sentences) -> Optional[Tensor]:
        """What a diagonal adds to unpack attention's logits [B, H, T, L]."""
        diagonal = self.diagonal_of(q, sentences, cache.row_place, sentences.packed_padding_mask)
        return None if diagonal is None else diagonal.bias()

    def _look_up(
        self, q: Tensor, cache: AnchoredCache, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        mask, dropout = sentences.packed_padding_mask, dropout_probability(self.dropout_module)
        diagonal = self.diagonal_of(q, sentences, cache.row_place, mask)
        settings = self.lookup_gate(), self.lookup, mask, dropout, diagonal
        tokens = cache.token_key, cache.token_value, cache.empty
        if cache.position is None:
            dense = Tokens(*tokens, cache.segment, cache.token_place)
            output, weights = dense_attention(q, cache.key, cache.value, dense, *settings, need_weights)
            return output, weights_of_dense(weights, self.pack_weights_of(cache)) if need_weights else None
        segments = Segments(*tokens, cache.token_place, cache.is_short)
        read = lookup_attention(q, cache.key, cache.value, segments, *settings)
        if not need_weights:
            return read.output, None
        return read.output, weights_of_context(read, cache.position, self.pack_weights_of(cache))
