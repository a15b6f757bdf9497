"""Anchored attention: Luna attention in which the packed sequence P summarizes segments of the context.

The context of S tokens is divided into L segments, runs of at most W consecutive tokens, one per row of P.
Row i favours the tokens near the centre of segment i: a penalty on the logits, gamma times the distance in
segments, increases with the distance. Each head learns its own gamma. Distances and segments are computed
once for all layers (geometry.py). A diagonal prior is a bias of target queries toward the source position
expected for them (diagonal.py).

Shapes: batch size B, model width C, H heads of dimension K, T queries. A method that overrides a method of
:class:`LunaAttention` has the same arguments.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.decoding_memory import (
    DecodingMemory,
    prepare_keys,
    prepare_places,
)
from luna_fairseq.anchored.dense import Tokens, dense_attention, split_dense_weights
from luna_fairseq.anchored.diagonal import Diagonal, measure_diagonal
from luna_fairseq.anchored.geometry import ContextGeometry, Needs, TargetPlaces, context_geometry
from luna_fairseq.anchored.lookup import (
    LOOKUP_FORMS,
    lookup_attention,
    mixed_lookup_attention,
    split_lookup_weights,
)
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
from luna_fairseq.anchored.window import split_window_weights, window_attention
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.heads import build_projection, dropout_probability, split_heads
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.memory import ReadWeights, require_pack_weights
from luna_fairseq.ops.attention import is_eager_on_cpu


class AnchoredMemory(NamedTuple):
    """Cached keys and values for unpack attention, computed once per context. Unneeded fields are None.

    Tokens are arranged by segment or, in a dense look-up, in the order of the context.
    :class:`luna_fairseq.anchored.segments.Layout` describes ``padding_mask``, ``position``, ``segment`` and
    ``is_short``.

    Shapes: batch size B, H heads of dimension K.

    Attributes:
        key: keys [B, H, L, K] projected from the packed context Y_P, the result of pack attention.
        value: values [B, H, L, K], the same tensor as ``key`` if both share a projection.
        mean_pack_weights: pack attention weights [B, L, S], averaged over heads.
        token_key: keys of the tokens, by segment [B, H, L, W, K] or in context order [B, H, S, K].
        token_value: values of the tokens, with the same shape.
        key_place: centre [B, L] of each segment, in tokens from the start, for a diagonal prior (a bias
            toward an expected position). In a dense look-up, [B, L + S] for all segments and tokens.
        token_place: centre [B, L, W] of each token, for a look-up by segment with a diagonal prior.
    """

    key: Tensor
    value: Tensor
    mean_pack_weights: Optional[Tensor] = None
    token_key: Any = None
    token_value: Optional[Tensor] = None
    padding_mask: Optional[Tensor] = None
    position: Optional[Tensor] = None
    segment: Optional[Tensor] = None
    is_short: Optional[Tensor] = None
    key_place: Optional[Tensor] = None
    token_place: Optional[Tensor] = None


class AnchoredAttention(LunaAttention):
    """Base class of Luna attention in which each row of P attends mainly to one segment."""

    needs_geometry = True
    reads_tokens = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.pack_anchor: Any = None
        self.unpack_anchor: Any = None
        self.lookup_gate: Any = None
        self.diagonal: Any = None

    @property
    def absorbs_queries(self) -> bool:  # type: ignore[override]
        """True if queries attend only to rows of the packed context, and never to individual tokens."""
        return not self.reads_tokens

    def build_anchors(self, anchor_strength: float, builders: Builders, diagonal: bool = False) -> None:
        """Create the learned parameters of the distance biases and, with ``diagonal``, of the diagonal prior.

        ``anchor_strength`` is the initial factor gamma in pack attention. ``builders`` creates the linear
        layers that project tokens to keys and values, if queries attend to tokens. The order in which
        parameters are created must not change, because optimizer states in checkpoints rely on it.
        """
        if self.reads_tokens:
            self.token_k_proj = builders.linear(build_projection(self.embed_dim))
            self.token_v_proj = builders.linear(build_projection(self.embed_dim))
        if diagonal:
            self.diagonal = DiagonalPrior(self.num_heads)
        if self.packs:
            self.pack_anchor = AnchorBias([anchor_strength] * self.num_pack_heads)

    def needs(self) -> Needs:
        """Return the features of this module that need token distances or positions."""
        return Needs(
            pack_heads=0 if self.pack_anchor is None else self.num_pack_heads,
            diagonal=self.diagonal is not None,
        )

    def find_geometry(self, query: Tensor, packed: Tensor, context: Tensor, source: Source) -> Geometry:
        """Compute the token distances and positions that the attention biases of this module need.

        Only the shapes of query [T, B, C], packed [L, B, C] and context [S, B, C] are used, not their values.
        ``source`` holds the padding masks of context and packed.
        """
        target = None
        if self.diagonal is not None:
            T, B, _ = query.shape
            target = TargetPlaces(torch.arange(T, device=query.device).expand(B, -1))
        return Geometry(context_geometry(self.needs(), context, packed, source), target)

    def pack_bias(self, context: Tensor, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the bias [B, H, L, S] on the logits of pack attention, or None if there is no bias.

        The bias penalizes tokens that are far from the segment of a row.
        """
        if self.pack_anchor is None:
            return None
        return self.pack_anchor(require_context_geometry(geometry).pack_distance)

    def project_tokens(self, context: Tensor) -> Tuple[Tensor, Tensor]:
        """Project the context tokens [S, B, C] to keys and values [B, H, S, K] of H heads."""
        key, value = self.token_k_proj(context), self.token_v_proj(context)
        return split_heads(key, self.num_heads), split_heads(value, self.num_heads)

    def compute_diagonal(
        self, geometry: Optional[Geometry], key_place: Optional[Tensor], first: Optional[int] = None
    ) -> Optional[Diagonal]:
        """Compute the diagonal prior, a bias toward keys near the source position expected for a query.

        ``key_place`` [B, N] holds the positions of N keys in the source. Among the ``first`` leading keys
        (default: all), the key nearest to the expected position has a bias of 0. Return None if there is no
        diagonal prior. Raise InputError if ``geometry`` lacks query positions.
        """
        if self.diagonal is None:
            return None
        if geometry is None or geometry.target is None or key_place is None:
            raise InputError(
                "a diagonal prior needs the positions of the queries, got none. "
                "Pass the geometry of the batch"
            )
        strength, ratio = self.diagonal()
        return measure_diagonal(strength, ratio, geometry.target, key_place, first=first)

    def prepare(self, memory: Any, source: Source) -> Any:
        return memory


def require_context_geometry(geometry: Optional[Geometry]) -> ContextGeometry:
    """Return the context's distances and positions, or raise InputError if ``geometry`` lacks them."""
    if geometry is None or geometry.context is None:
        raise InputError(
            "anchored attention needs the geometry of the context, got none. "
            "Pass the same geometry to pack and unpack"
        )
    return geometry.context


class AnchoredSelfAttention(AnchoredAttention):
    """Self-attention of an encoder in which each row of the packed sequence P summarizes one input segment.

    In pack attention (P attends to the input), row i is biased toward the tokens near the centre of segment
    i. The bias is -gamma times the distance in segment widths. In unpack attention (the input attends to the
    rows), each token is biased toward the rows of nearby segments in the same way. With ``window``, a token
    also attends to the tokens of neighbouring segments. The other constructor arguments, and the arguments
    and results of a call, are the same as for :class:`LunaAttention`.

    Args:
        anchor_strength: initial factor gamma by which distances are multiplied in pack attention.
        window: odd number of segments in a window, centred on the token's own segment. 0 means no window.

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
        builders: Builders = TORCH,
    ):
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv, builders)
        check_window(window)
        self.window = window
        self.reads_tokens = window > 0
        self.build_anchors(anchor_strength, builders)
        self.unpack_anchor = (LearnedStrength if window else AnchorBias)(unpack_strengths(num_heads))

    def needs(self) -> Needs:
        return super().needs()._replace(unpack=not self.window, window=self.window)

    def remember(
        self,
        packed_context: Tensor,
        mean_pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> AnchoredMemory:
        """Return the keys and values of the packed context and, if ``window`` is set, of the context tokens.

        ``packed_context`` [L, B, C] and ``mean_pack_weights`` [B, L, S] are the results of pack attention to
        the ``context`` [S, B, C]. The weights are stored unchanged, and are None if they are not requested.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        memory = AnchoredMemory(key, value, mean_pack_weights)
        if not self.window:
            return memory
        token_key, token_value = self.project_tokens(context)
        return memory._replace(token_key=token_key, token_value=token_value)

    def attend_to_rows(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        if self.window:
            return self._read_window(q, memory, geometry, need_weights)
        return super().attend_to_rows(q, memory, source, geometry, need_weights)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the logit bias [B, H, S, L] from tokens to rows, which penalizes distant segments."""
        return self.unpack_anchor(require_context_geometry(geometry).unpack_distance)

    def _read_window(
        self, q: Tensor, memory: AnchoredMemory, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        """Attend from each token to the packed context and to the tokens of the segments around the token.

        The queries q are [B, H, S, K] for S tokens. Return the output [B, H, S, K], and the attention weights
        over rows and tokens. The weights are None if ``need_weights`` is False.
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
        return output, split_window_weights(weights, window)


class AnchoredCrossAttention(AnchoredAttention):
    """Cross-attention of a decoder in which each row of the packed sequence P summarizes one source segment.

    In pack attention (P attends to the source), row i is biased toward the tokens near the centre of segment
    i. The bias is proportional to the distance. In unpack attention, target queries attend to the rows. With
    ``lookup``, they also attend to the individual tokens of a few segments. The other constructor arguments,
    and the arguments and results of a call, are the same as for :class:`LunaAttention`.

    Args:
        anchor_strength: initial factor gamma by which distances are multiplied in pack attention.
        lookup: number of segments whose tokens a query also attends to, chosen by the largest logits of their
            rows. 0 means that queries attend only to rows.
        diagonal: add a bias toward rows and tokens near the source position expected for a target token.

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
        builders: Builders = TORCH,
    ):
        super().__init__(embed_dim, num_heads, num_pack_heads, dropout, untie_kv, builders)
        check_lookup(lookup)
        self.lookup = lookup
        self.reads_tokens = lookup > 0
        self.build_anchors(anchor_strength, builders, diagonal)
        if lookup:
            self.lookup_gate = LookupGate(num_heads, OPEN_GATE if diagonal else CLOSED_GATE)

    def needs(self) -> Needs:
        return super().needs()._replace(lookup=self.lookup)

    def remember(
        self,
        packed_context: Tensor,
        mean_pack_weights: Optional[Tensor],
        context: Tensor,
        geometry: Optional[Geometry],
    ) -> AnchoredMemory:
        """Return the keys and values of the packed context and, with a look-up, of the source tokens.

        ``packed_context`` [L, B, C] and ``mean_pack_weights`` [B, L, S] are the results of pack attention to
        the ``context`` [S, B, C]. The weights are stored unchanged, and are None if they are not requested.
        """
        key, value = self.keys_and_values("unpack", packed_context, self.num_heads)
        memory = AnchoredMemory(key, value, mean_pack_weights)
        if self.diagonal is not None:
            memory = memory._replace(key_place=require_context_geometry(geometry).row_place)
        if not self.lookup:
            return memory
        token_key, token_value = self.project_tokens(context)
        found = require_context_geometry(geometry)
        layout: Any = found.layout
        if layout.position is not None:
            token_key, token_value = arrange_tokens(token_key, token_value, layout)[:2]
        elif self.diagonal is not None:
            memory = memory._replace(key_place=found.key_place)
        return memory._replace(
            token_key=token_key,
            token_value=token_value,
            padding_mask=layout.padding_mask,
            token_place=found.token_place if layout.position is not None else None,
            position=layout.position,
            segment=layout.segment,
            is_short=layout.is_short,
        )

    def prepare(self, memory: Any, source: Source) -> Any:
        """Convert the cached keys and values for fast decoding, if every query attends to all source tokens.

        The resulting :class:`DecodingMemory` does not provide attention weights over the context. ``memory``
        is returned unchanged if it has pack weights, if queries choose segments, on a GPU, or while torch
        traces or compiles a graph.
        """
        reads_all = self.lookup > 0 and memory.position is None and memory.segment is None
        may_prepare = LOOKUP_FORMS.forced() in (None, "prepared") and memory.mean_pack_weights is None
        if not (may_prepare and reads_all and is_eager_on_cpu(memory.key)):
            return memory
        B, H, L, _ = memory.key.shape
        S = memory.token_key.size(2)
        mask = memory.padding_mask
        gate = self.lookup_gate().view(1, -1, 1, 1)
        bias = torch.cat([gate.new_zeros(B, H, 1, L), gate.expand(B, -1, -1, S)], dim=-1)
        key, value = (
            torch.cat([memory.key, memory.token_key], 2),
            torch.cat([memory.value, memory.token_value], 2),
        )
        places = None
        if self.diagonal is not None:
            strength, ratio = self.diagonal()
            places = prepare_places(strength, ratio, memory.key_place, mask)
        return DecodingMemory(*prepare_keys(key, value, bias, mask), places, first=L)

    def attend_to_rows(
        self, q: Tensor, memory: Any, source: Source, geometry: Optional[Geometry], need_weights: bool
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        if isinstance(memory, DecodingMemory):
            LOOKUP_FORMS.choose(memory, self.lookup)  # only recorded, because `prepare` has decided
            if need_weights:
                require_pack_weights(memory)
            target = None if geometry is None else geometry.target
            return memory.attend(q, target, dropout_probability(self.dropout_module))[0], None
        if self.lookup:
            return self._look_up(q, memory, source, geometry, need_weights)
        return super().attend_to_rows(q, memory, source, geometry, need_weights)

    def unpack_bias(self, memory: Any, source: Source, geometry: Optional[Geometry]) -> Optional[Tensor]:
        """Return the diagonal prior [B, H, T, L] of T queries and L rows. None if there is no prior."""
        diagonal = self.compute_diagonal(geometry, memory.key_place)
        return None if diagonal is None else diagonal.bias()

    def _look_up(
        self,
        q: Tensor,
        memory: AnchoredMemory,
        source: Source,
        geometry: Optional[Geometry],
        need_weights: bool,
    ) -> Tuple[Tensor, Optional[ReadWeights]]:
        """Attend from each query to the packed context and to the tokens of the segments chosen by the query.

        A query chooses the ``self.lookup`` segments for whose rows it has the largest logits. The queries q
        are [B, H, T, K], and ``geometry`` holds target positions for the diagonal prior. Return the output
        [B, H, T, K], and the attention weights over rows and tokens. The weights are None if ``need_weights``
        is False.
        """
        mask, dropout = source.packed_padding_mask, dropout_probability(self.dropout_module)
        diagonal = self.compute_diagonal(geometry, memory.key_place, first=memory.key.size(2))
        settings = self.lookup_gate(), self.lookup, mask, dropout
        tokens = memory.token_key, memory.token_value, memory.padding_mask
        if memory.position is None:
            dense = Tokens(*tokens, memory.segment)
            LOOKUP_FORMS.choose(dense, self.lookup)  # only recorded, because `remember` has decided
            bias = None if diagonal is None else diagonal.bias()
            output, weights = dense_attention(
                q, memory.key, memory.value, dense, *settings, bias=bias, need_weights=need_weights
            )
            if not need_weights:
                return output, None
            return output, split_dense_weights(weights, memory.key.size(2), self._context_length(memory))
        segments = Segments(*tokens, memory.token_place, memory.is_short)
        inputs = q, memory.key, memory.value, segments, *settings, diagonal
        if not need_weights:
            return mixed_lookup_attention(*inputs), None
        read = lookup_attention(*inputs)
        weights = split_lookup_weights(read, memory.position, self._context_length(memory))
        return read.output, weights

    def _context_length(self, memory: AnchoredMemory) -> int:
        require_pack_weights(memory)
        weights: Any = memory.mean_pack_weights
        return weights.size(-1)
