"""Anchored attention: Luna attention in which the rows of the packed sequence P have places in the context.

A row favours the tokens near its place, by a bias that grows with the distance. Distances and the tokens of
each segment are computed once for all layers (``geometry.py``). Each layer learns the strength of its bias.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.decoding_memory import (
    DecodingMemory,
    prepare_keys,
    prepare_places,
)
from luna_fairseq.anchored.dense import Tokens, dense_attention, total_dense_weights
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.anchored.geometry import ContextGeometry, Needs, TargetPlaces, context_geometry
from luna_fairseq.anchored.lookup import lookup_attention, mixed_lookup_attention, total_lookup_weights
from luna_fairseq.anchored.segments import Segments, arrange_tokens
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
from luna_fairseq.anchored.window import total_window_weights, window_attention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.heads import build_projection, dropout_probability, fold_rows, split_heads
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.attention import is_eager_on_cpu


class AnchoredMemory(NamedTuple):
    """Cached keys and values of unpack attention, computed once for each context.

    The packed context Y_P summarises the context in L rows, one for each segment (an equal part) of the
    context. A look-up attends also to the tokens of a few segments, and a window to the tokens of the
    neighbouring segments.

    B is the batch size, H the number of heads, S the length of the context, W the largest number of tokens in
    a segment, and K the head width.

    Attributes:
        key: keys [B, H, L, K] projected from the packed context Y_P.
        value: values [B, H, L, K] projected from Y_P, the same tensor as ``key`` if both are tied.
        pack_weights: mean [B, L, S] of the pack weights over heads (default: None, weights were not
            requested).
        token_key: keys of the context's tokens, by segment [B, H, L, W, K], or in the order of the context
            [B, H, S, K] for a dense layout or a window (default: None, no look-up and no window).
        token_value: values of the context's tokens, shaped like ``token_key`` (default: None).
        token_padding_mask: mask of the tokens of a look-up, see
            :class:`luna_fairseq.anchored.segments.Layout` (default: None, no look-up).
        position: positions of the tokens of a look-up, see ``Layout`` (default: None).
        segment: segments of the tokens of a dense look-up, see ``Layout`` (default: None).
        is_short: mask of short contexts, see ``Layout`` (default: None).
        row_place: middle [B, L] of each row's segment, in tokens from the beginning (default: None, no
            diagonal prior).
        token_place: middle [B, L, W] or [B, S] of each token of a look-up, in tokens from the beginning
            (default: None, no diagonal prior).
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None
    token_key: Any = None
    token_value: Optional[Tensor] = None
    token_padding_mask: Optional[Tensor] = None
    position: Optional[Tensor] = None
    segment: Optional[Tensor] = None
    is_short: Optional[Tensor] = None
    row_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "AnchoredMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices [n] of the sentences to return.

        Returns:
            The memory of these n sentences.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)


class AnchoredAttention(LunaAttention):
    """Base class of the anchored attentions, which bias each row of P towards a place in the context.

    The rows of the packed sequence P divide the context into equal segments, and the place of a row is the
    middle of its segment. Pack attention subtracts gamma times the distance between a token and the place of
    a row from the logit. Each head learns its own gamma.

    In the shapes, B is the batch size, H the number of heads, L the number of rows of P, T the number of
    queries, S the length of the context, C the model width, and K the head width.

    Args:
        *args: positional arguments of :class:`LunaAttention`.
        **kwargs: keyword arguments of :class:`LunaAttention`.

    Raises:
        InputError: A strength is not positive, or :class:`LunaAttention` rejects an argument.
    """

    reads_tokens = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.pack_anchor: Any = None
        self.unpack_anchor: Any = None
        self.lookup_gate: Any = None
        self.diagonal: Any = None

    @property
    def reads_only_rows(self) -> bool:  # type: ignore[override]
        """True if queries attend to the rows of P only, and not to tokens of the context."""
        return not self.reads_tokens

    def build_anchors(self, embed_dim: int, anchor_strength: float, diagonal: bool = False) -> None:
        """Build the token projections, the diagonal prior and the distance bias, if they are enabled.

        Their order is fixed, because the optimizer state in a checkpoint lists parameters by their order.

        Args:
            embed_dim: model width C.
            anchor_strength: initial strength gamma of the distance bias in pack attention.
            diagonal: add a diagonal prior to unpack attention (default: False).
        """
        if self.reads_tokens:
            self.token_k_proj, self.token_v_proj = build_projection(embed_dim), build_projection(embed_dim)
        if diagonal:
            self.diagonal = DiagonalPrior(self.num_heads)
        if self.packs:
            self.pack_anchor = AnchorBias([anchor_strength] * self.num_pack_heads)

    def needs(self) -> Needs:
        """Return which distances and places must be computed for this attention."""
        return Needs(
            pack_heads=0 if self.pack_anchor is None else self.num_pack_heads,
            diagonal=self.diagonal is not None,
        )

    def find_geometry(self, query: Tensor, packed: Tensor, context: Tensor, source: Source) -> Geometry:
        """Compute the places of rows, tokens and queries for one call with a whole target.

        Args:
            query: queries X [T, B, C].
            packed: packed sequence P [L, B, C].
            context: context [S, B, C].
            source: masks of the context and of P.

        Returns:
            The geometry to pass to pack and unpack attention.
        """
        target = None
        if self.diagonal is not None:
            T, B, _ = query.shape
            target = TargetPlaces(torch.arange(T, device=query.device).expand(B, -1))
        return Geometry(context_geometry(self.needs(), context, packed, source), target)

    def pack_bias(self, context: Tensor, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the bias of the logits of pack attention.

        The bias is minus gamma times the distance between a token and the place of a row, in segments. The
        heads of a row have slightly different places.

        Args:
            context: context [S, B, C], not used.
            geometry: distances and places of the batch.

        Returns:
            The bias [B, H, L, S], or None if pack attention is not anchored.
        """
        if self.pack_anchor is None:
            return None
        return self.pack_anchor(require_context_geometry(geometry).pack_distance)

    def project_tokens(self, context: Tensor) -> Tuple[Tensor, Tensor]:
        """Project the tokens of the context to keys and values.

        Args:
            context: context [S, B, C].

        Returns:
            - keys [B, H, S, K].
            - values [B, H, S, K].
        """
        key, value = self.token_k_proj(context), self.token_v_proj(context)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def compute_diagonal(
        self, geometry: Optional[Geometry], key_place: Optional[Tensor], mask: Optional[Tensor]
    ) -> Optional[Diagonal]:
        """Compute the diagonal prior, a bias for alignments near the diagonal.

        Args:
            geometry: distances and places of the batch, with the places of the queries. There may be n
                hypotheses for each sentence.
            key_place: middle [B, N] of each of N keys, in tokens from the beginning.
            mask: mask [B, N] of the keys, True at padding; None if no key is padding.

        Returns:
            The diagonal prior for these queries and keys, or None if the attention has no prior.

        Raises:
            InputError: The geometry has no places of the queries.
        """
        if self.diagonal is None:
            return None
        if geometry is None or geometry.target is None or key_place is None:
            raise InputError(
                "a diagonal prior needs the places of the query's tokens in the target. "
                "Pass the geometry of the batch"
            )
        place, origin = (
            x if x is None else fold_rows(x[:, None, :, None], x.size(0) // key_place.size(0)).flatten(1)
            for x in geometry.target[:2]
        )
        return self.diagonal(place, key_place, mask, origin)

    def prepare(self, memory: Any, source: Source = NO_PADDING) -> Any:
        """Return the cached keys and values unchanged.

        Subclasses can return a form that decoding reads faster.

        Args:
            memory: keys and values returned by :meth:`remember`.
            source: masks of the context and of the packed sequence P (default: no padding).

        Returns:
            The argument ``memory``.
        """
        return memory

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load the parameters, and refuse a checkpoint without projections of tokens if they are needed.

        Args:
            state_dict: parameters of the whole model by name.
            prefix: prefix of this module's names.
            *args: further arguments of torch's method.

        Raises:
            InputError: The checkpoint has no projections of tokens.
        """
        if self.reads_tokens and f"{prefix}pack_anchor.change" in state_dict:
            if f"{prefix}token_k_proj.weight" not in state_dict:
                raise InputError(
                    "The checkpoint has no projections of tokens. Use the options it was trained with, or "
                    "commit 4553eb0 of luna_fairseq if it was trained with --share-token-projections."
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


def require_context_geometry(geometry: Optional[Geometry]) -> ContextGeometry:
    """Return the distances and places of the context, and check that the caller passed them.

    Args:
        geometry: distances and places of the batch, or None.

    Returns:
        The part of the geometry that belongs to the context.

    Raises:
        InputError: The geometry is None or has no part for the context.
    """
    if geometry is None or geometry.context is None:
        raise InputError(
            "anchored attention needs the geometry of the context, got none. "
            "Pass the same geometry to pack and unpack"
        )
    return geometry.context


class AnchoredSelfAttention(AnchoredAttention):
    """Anchored self-attention of an encoder, with an optional window of neighbouring tokens.

    Each row of the packed sequence P has a place in the context, the middle of its segment. Pack attention
    favours tokens near the place of a row. Unpack attention favours rows near the token. With a window, every
    token also attends to the tokens of its own segment and of the neighbouring segments.

    Args:
        embed_dim: model width C.
        num_heads: number of heads H.
        num_pack_heads: number of heads of pack attention (default: None, H).
        dropout: dropout probability of the attention weights (default: 0).
        untie_kv: give keys and values separate projections (default: False).
        anchor_strength: initial strength gamma of the distance bias in pack attention (default: 4).
        window: odd number of segments in a window, with a token's own segment in the middle (default: 0, no
            window).

    Raises:
        InputError: The window is even, or the strength is not positive.

    Example:
        >>> import torch
        >>> attention = AnchoredSelfAttention(embed_dim=64, num_heads=8, window=3)
        >>> x, packed = torch.randn(50, 4, 64), torch.randn(16, 4, 64)
        >>> output, packed_context, _ = attention(x, packed, x)
        >>> output.shape, packed_context.shape
        (torch.Size([50, 4, 64]), torch.Size([16, 4, 64]))
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

    def needs(self) -> Needs:
        """Return which distances and places must be computed for this attention."""
        return super().needs()._replace(unpack=not self.window, window=self.window)

    def remember(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> AnchoredMemory:
        """Cache the keys and values that unpack attention reads.

        L is the number of rows of the packed sequence P, S the length of the context, B the batch size, and C
        the model width.

        Args:
            packed_context: packed context Y_P [L, B, C], the result of pack attention.
            pack_weights: mean [B, L, S] of the pack weights over heads, or None.
            context: context [S, B, C].
            geometry: distances and places of the batch, not used.

        Returns:
            The keys and values of the packed context. With a window, also those of the context's tokens.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        memory = AnchoredMemory(key, value, pack_weights)
        if not self.window:
            return memory
        token_key, token_value = self.project_tokens(context)
        return memory._replace(token_key=token_key, token_value=token_value)

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention over the rows of P and, with a window, over neighbouring tokens.

        Args:
            q: projected queries [B, H, T, K].
            memory: keys and values returned by :meth:`remember`.
            source: masks of the context and of P.
            geometry: distances and places of the batch.
            need_weights: also return the weights over the context.

        Returns:
            - output [B, H, T, K].
            - weights [B, H, T, S] over the context, or None.
        """
        if self.window:
            return self._read_window(q, memory, geometry, need_weights)
        return super().read(q, memory, source, geometry, need_weights)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the bias of the logits of unpack attention.

        The bias is minus gamma times the distance between a token and the middle of a row's segment, in
        segments.

        Args:
            memory: keys and values returned by :meth:`remember`, not used.
            source: masks of the context and of the packed sequence P, not used.
            geometry: distances and places of the batch.

        Returns:
            The bias [B, H, S, L].
        """
        return self.unpack_anchor(require_context_geometry(geometry).unpack_distance)

    def _read_window(
        self, q: Tensor, memory: AnchoredMemory, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention over the rows of the packed sequence P and the window of each token.

        Args:
            q: projected queries [B, H, S, K], one for each token of the context.
            memory: keys and values returned by :meth:`remember`.
            geometry: distances and places of the batch.
            need_weights: also return the weights over the context.

        Returns:
            - output [B, H, S, K].
            - weights [B, H, S, S] over the context, or None.

        Raises:
            InputError: The queries are not as many as the tokens of the context.
        """
        window, tokens = require_context_geometry(geometry).window, memory.token_key.size(2)
        if q.size(2) != tokens:
            raise InputError(
                f"Expected a query of {tokens} tokens, as many as the context has, got {q.size(2)}. "
                "Use a window in self-attention only"
            )
        keys = memory.key, memory.value, memory.token_key, memory.token_value
        dropout = dropout_probability(self.dropout_module)
        output, weights = window_attention(q, *keys, self.unpack_anchor(), window, dropout)
        if not need_weights:
            return output, None
        return output, total_window_weights(weights, window, self.saved_pack_weights(memory))


class AnchoredCrossAttention(AnchoredAttention):
    """Anchored attention of a decoder to the source, with an optional look-up and diagonal prior.

    Each row of the packed sequence P summarises one segment of the source. With a look-up, each query also
    attends to the tokens of a few segments, those whose rows have the largest logits. A diagonal prior is a
    bias that favours alignments near the diagonal.

    Args:
        embed_dim: model width C.
        num_heads: number of heads H.
        num_pack_heads: number of heads of pack attention (default: None, H).
        dropout: dropout probability of the attention weights (default: 0).
        untie_kv: give keys and values separate projections (default: False).
        anchor_strength: initial strength gamma of the distance bias in pack attention (default: 4).
        lookup: number of segments whose tokens a query also attends to (default: 0, no look-up).
        diagonal: add a diagonal prior to unpack attention (default: False).

    Raises:
        InputError: The look-up is negative, or the strength is not positive.

    Example:
        >>> import torch
        >>> attention = AnchoredCrossAttention(embed_dim=64, num_heads=8, lookup=2, diagonal=True)
        >>> query, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(100, 4, 64)
        >>> output, packed_context, _ = attention(query, packed, context)
        >>> output.shape, packed_context.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

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

    def needs(self) -> Needs:
        """Return which distances and places must be computed for this attention."""
        return super().needs()._replace(lookup=self.lookup)

    def remember(
        self,
        packed_context: Tensor,
        pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> AnchoredMemory:
        """Cache the keys and values that unpack attention reads.

        L is the number of rows of the packed sequence P, S the length of the context, B the batch size, and C
        the model width.

        Args:
            packed_context: packed context Y_P [L, B, C], the result of pack attention.
            pack_weights: mean [B, L, S] of the pack weights over heads, or None.
            context: context [S, B, C].
            geometry: distances and places of the batch.

        Returns:
            The keys and values of the packed context. With a look-up, also those of the context's tokens.
            With a diagonal prior, also the places of rows and tokens.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        memory = AnchoredMemory(key, value, pack_weights)
        token_place = None
        if self.diagonal is not None:
            token_place = require_context_geometry(geometry).token_place
            memory = memory._replace(row_place=require_context_geometry(geometry).row_place)
        if not self.lookup:
            return memory
        token_key, token_value = self.project_tokens(context)
        layout = require_context_geometry(geometry).layout
        position = layout.position
        if position is not None:
            token_key, token_value = arrange_tokens(token_key, token_value, layout)[:2]
            if token_place is not None:
                token_place = token_place.gather(1, position.flatten(1)).view_as(position)
        return memory._replace(
            token_key=token_key,
            token_value=token_value,
            token_padding_mask=layout.padding_mask,
            token_place=token_place,
            position=position,
            segment=layout.segment,
            is_short=layout.is_short,
        )

    def prepare(self, memory: Any, source: Source = NO_PADDING) -> Any:
        """Convert the cached keys and values to the form that decoding reads fastest.

        If every query attends to all tokens, the keys and values of rows and tokens are joined. The joined
        form gives no weights over the context.

        Args:
            memory: keys and values returned by :meth:`remember`.
            source: masks of the context and of the packed sequence P (default: no padding).

        Returns:
            The joined keys and values, or the argument ``memory`` itself if they cannot be joined.
        """
        reads_all = self.lookup > 0 and memory.position is None and memory.segment is None
        if not (self.prepares and reads_all and is_eager_on_cpu(memory.key)):
            return memory
        B, H, L, _ = memory.key.shape
        S = memory.token_key.size(2)
        rows_mask = source.packed_padding_mask
        if rows_mask is None:
            rows_mask = memory.token_padding_mask.new_zeros(B, L)
        mask = torch.cat([rows_mask, memory.token_padding_mask], dim=1)
        gate = self.lookup_gate().view(1, -1, 1, 1)
        bias = torch.cat([gate.new_zeros(B, H, 1, L), gate.expand(B, -1, -1, S)], dim=-1)
        key, value = (
            torch.cat([memory.key, memory.token_key], 2),
            torch.cat([memory.value, memory.token_value], 2),
        )
        places = None
        if self.diagonal is not None:
            place = torch.cat([memory.row_place, memory.token_place], dim=1)
            places = prepare_places(self.diagonal.strength(), self.diagonal.ratio(), place, mask)
        return DecodingMemory(*prepare_keys(key, value, bias, mask), places, first=L)

    def read(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention over the rows of P and, with a look-up, over the tokens of some segments.

        Args:
            q: projected queries [B, H, T, K].
            memory: keys and values returned by :meth:`remember` or :meth:`prepare`.
            source: masks of the context and of P.
            geometry: distances and places of the batch, or None without a diagonal prior.
            need_weights: also return the weights over the context.

        Returns:
            - output [B, H, T, K].
            - weights [B, H, T, S] over the context, or None.
        """
        if isinstance(memory, DecodingMemory):
            if need_weights:
                self.saved_pack_weights(memory)
            target = None if geometry is None else geometry.target
            return memory.read(q, target, dropout_probability(self.dropout_module))[0], None
        if self.lookup:
            return self._look_up(q, memory, source, geometry, need_weights)
        return super().read(q, memory, source, geometry, need_weights)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the diagonal prior as a bias of the logits of unpack attention.

        Args:
            memory: keys and values returned by :meth:`remember`.
            source: masks of the context and of the packed sequence P.
            geometry: distances and places of the batch, or None without a diagonal prior.

        Returns:
            The bias [B, H, T, L], or None without a diagonal prior.
        """
        diagonal = self.compute_diagonal(geometry, memory.row_place, source.packed_padding_mask)
        return None if diagonal is None else diagonal.bias()

    def _look_up(
        self,
        q: Tensor,
        memory: AnchoredMemory,
        source: Source,
        geometry: Optional[Geometry],
        need_weights: bool,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute unpack attention over the rows of the packed sequence P and the tokens of a few segments.

        Args:
            q: projected queries [B, H, T, K].
            memory: keys and values returned by :meth:`remember`.
            source: masks of the context and of P.
            geometry: distances and places of the batch, or None without a diagonal prior.
            need_weights: also return the weights over the context.

        Returns:
            - output [B, H, T, K].
            - weights [B, H, T, S] over the context, or None.
        """
        mask, dropout = source.packed_padding_mask, dropout_probability(self.dropout_module)
        diagonal = self.compute_diagonal(geometry, memory.row_place, mask)
        settings = self.lookup_gate(), self.lookup, mask, dropout, diagonal
        tokens = memory.token_key, memory.token_value, memory.token_padding_mask
        if memory.position is None:
            dense = Tokens(*tokens, memory.segment, memory.token_place)
            output, weights = dense_attention(q, memory.key, memory.value, dense, *settings, need_weights)
            if not need_weights:
                return output, None
            return output, total_dense_weights(weights, self.saved_pack_weights(memory))
        segments = Segments(*tokens, memory.token_place, memory.is_short)
        inputs = q, memory.key, memory.value, segments, *settings
        if not need_weights:
            return mixed_lookup_attention(*inputs), None
        read = lookup_attention(*inputs)
        return read.output, total_lookup_weights(read, memory.position, self.saved_pack_weights(memory))
