"""Assignment of the context tokens to segments, and arrangement of keys and values by segment.

The packed sequence P has L rows. A context of n tokens, padded to S, is divided into L equal segments, runs
of at most W consecutive tokens, and row i summarizes segment i. In a look-up, queries choose a few segments
and attend to their tokens. A context of at most 64 tokens is short: queries attend to all its tokens.

Tokens are arranged by segment as [L, W], with each segment padded to W tokens. In a dense layout, they keep
their order in the context instead.

Shapes: ``context_padding_mask`` [B, S] and ``packed_padding_mask`` [B, L] for batch size B, True at padding,
where results are undefined. H heads have dimension K.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.places import count_tokens
from luna_fairseq.modules.batch import length_range
from luna_fairseq.ops.attention import is_recording_graph
from luna_fairseq.ops.forms import Form, FormTable, otherwise

# In a look-up, queries attend to all tokens of a context with at most this many tokens.
DENSE_LENGTH = 64
# Longest padded context for which the dense layout replaces surplus segments, which are segments beyond the
# chosen number, needed to hold all tokens of short contexts. Measured at 256 tokens with 4 heads of width 64
# and 64 rows on a CPU: relative to the long contexts alone, the dense layout took 1.15 times as long and
# surplus segments 2.3 times as long.
MASKED_DENSE_LENGTH = 256


class Layout(NamedTuple):
    """Arrangement of the S context tokens for look-up attention: by segment as [L, W], or dense.

    Attributes:
        position: position [B, L, W] of each token of each segment in the context. None in a dense layout.
        padding_mask: mask [B, L, W], True where a segment has no token. In a dense layout, a mask [B, L + S],
            True at padded rows of P and tokens, or None if nothing is padded.
        segment: segment index [B, L + S] of each key in a dense layout. A query attends to a key only if the
            query has chosen the segment. All queries attend to keys with index -1, such as the rows of P. If
            None, every query attends to all keys.
        is_short: mask [B], True for short contexts, whose tokens fill the first segments. None in a dense
            layout. It may also be None if no context is short.
    """

    position: Optional[Tensor]
    padding_mask: Any
    segment: Optional[Tensor] = None
    is_short: Optional[Tensor] = None


def is_short_context(context_padding_mask: Tensor) -> Tensor:
    """Return a mask [B], True for short contexts."""
    return (~context_padding_mask).sum(dim=1) <= DENSE_LENGTH


def may_have_short(context_padding_mask: Tensor) -> bool:
    """Return True if any context in the batch is short, or if the values of the mask [B, S] are unknown."""
    is_unknown = context_padding_mask.is_meta or is_recording_graph()
    return is_unknown or bool(is_short_context(context_padding_mask).any())


class LayoutCall(NamedTuple):
    """Properties of a batch that determine how its tokens are arranged.

    Attributes:
        batch_size: number of contexts.
        length: length S of the contexts, including padding.
        for_export: True if the layout must be valid for all lengths.
        needs_surplus: True if short contexts in the batch need more segments than a query chooses.
    """

    batch_size: int
    length: int
    for_export: bool
    needs_surplus: bool

    def can_read_all(self) -> bool:
        """Return True if every query may attend to all tokens. An empty batch has no queries."""
        return not self.for_export and (self.length <= DENSE_LENGTH or self.batch_size == 0)


LAYOUT_FORMS = FormTable(
    "layout of the tokens for a look-up",
    Form(
        "whole",
        "padded length of at most 64 or an empty batch, not in an exported graph",
        "the choice of segments: every query attends to all tokens",
        LayoutCall.can_read_all,
        LayoutCall.can_read_all,
    ),
    Form(
        "numbered",
        "an exported graph, or at most 256 tokens and short contexts that need surplus segments",
        "half of the time of surplus segments at 256 tokens",
        lambda call: call.for_export or (call.length <= MASKED_DENSE_LENGTH and call.needs_surplus),
    ),
    Form(
        "segments",
        "otherwise",
        "products with the tokens of segments that a query does not choose",
        otherwise,
    ),
)


def find_layout(
    context_padding_mask: Tensor,
    packed_padding_mask: Tensor,
    number: int,
    for_export: bool = False,
    complete: bool = False,
) -> Layout:
    """Compute how the context tokens are arranged for look-up attention: by segment, or in context order.

    context_padding_mask [B, S] and packed_padding_mask [B, L] are True at padding of the context and of P.
    ``complete`` means that both are known to contain no padding. Each query chooses ``number`` segments. With
    ``for_export``, the layout is valid for all lengths, because an exported graph cannot branch on the
    length. ``LAYOUT_FORMS`` lists the layouts and the conditions under which each is selected.
    """
    (B, S), L = context_padding_mask.shape, packed_padding_mask.size(1)
    for_export = for_export or is_recording_graph("is_exporting")
    needs_more = not for_export and S > DENSE_LENGTH and _needs_more_segments(S, L, number)
    # If the chosen segments have room for 64 tokens, short contexts add no cost. Otherwise the values of the
    # mask decide, although reading them synchronizes the CPU with a GPU.
    has_short = not needs_more or may_have_short(context_padding_mask)
    form = LAYOUT_FORMS.choose(LayoutCall(B, S, for_export, needs_more and has_short))
    if form in ("whole", "numbered"):
        mask = None if complete else torch.cat([packed_padding_mask, context_padding_mask], dim=1)
        segment = None if form == "whole" else _number_keys(context_padding_mask, packed_padding_mask)
        return Layout(None, mask, segment)
    short = is_short_context(context_padding_mask) if has_short else None
    return Layout(*token_positions(context_padding_mask, packed_padding_mask, short), is_short=short)


def _needs_more_segments(S: int, L: int, number: int) -> bool:
    """Return True if a short context may need more than ``number`` of L segments for its 64 tokens."""
    return num_segments_read(number, L, max_segment_tokens(S, L), True) > min(number, L)


def _number_keys(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the segment index [B, L + S] of each key. It is -1 for keys that every query attends to.

    The L rows of P always get -1, and the S tokens get -1 in short contexts.
    """
    segment = segment_of_tokens(context_padding_mask, packed_padding_mask)
    segment = segment.masked_fill(is_short_context(context_padding_mask)[:, None], -1)
    return torch.cat([segment.new_full(packed_padding_mask.shape, -1), segment], dim=1)


def max_segment_tokens(S: int, L: int) -> int:
    """Return the number of tokens in the longest segment if S tokens are divided into L segments."""
    return (S + L - 1) // L


def num_segments_read(number: int, L: int, W: int, has_short: bool) -> int:
    """Return how many of L segments of W tokens a query attends to: ``number``, but at most L.

    With ``has_short``, the query attends to more segments if they are needed to hold 64 tokens.
    """
    if has_short:
        number = max(number, (DENSE_LENGTH + W - 1) // W)
    return min(L, number)


class Segments(NamedTuple):
    """Keys and values [B, H, L, W, K] of the context tokens, arranged by segment.

    :class:`Layout` describes ``padding_mask`` and ``is_short``. ``place`` is the position [B, L, W] of each
    token's centre, in tokens from the start of the context.
    """

    key: Tensor
    value: Tensor
    padding_mask: Tensor
    place: Optional[Tensor] = None
    is_short: Optional[Tensor] = None

    def select(self, examples: Tensor) -> "Segments":
        """Select examples of the batch by a vector of their indices."""
        return Segments(*(None if x is None else x.index_select(0, examples) for x in self))


def segment_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the index [B, S] of the segment to which each of the S tokens of a context belongs.

    Apart from padding, n tokens form L segments, one per row of P. Token t is in ``floor((t + 1/2) L / n)``.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(
    context_padding_mask: Tensor, packed_padding_mask: Tensor, in_order: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Return the context positions of each segment's tokens, and a mask, both [B, L, W].

    The mask is True where a segment has no token. W is ceil(S / L), where S and L include padding, or the
    length of the longest segment, if rows are padded that have tokens to summarize. On a GPU or in a captured
    graph, this length is not known, and the tokens of such a segment after the first ceil(S / L) are dropped.

    By default the tokens are divided evenly. In contexts where ``in_order`` [B] is True, they fill one
    segment after the other. For example, five tokens after one padding token have the positions [[1, 2, -],
    [3, 4, 5]] in two segments by default, and [[1, 2, 3], [4, 5, -]] in order.
    """
    S, L = context_padding_mask.size(1), packed_padding_mask.size(1)
    W = max_segment_tokens(S, L)
    _, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    W = max(W, length_range((tokens + rows - 1) // rows, W)[1])
    tokens, rows = tokens[:, None], rows[:, None]
    segment = torch.arange(L + 1, device=tokens.device)
    # The first token t of a segment is the smallest t with (t + 1/2) L / n >= segment. All numbers are
    # nonnegative, because ONNX rounds quotients toward 0.
    first = (2 * tokens * segment + rows - 1) // (2 * rows)
    token = first[:, :L, None] + torch.arange(W, device=tokens.device)
    end = torch.minimum(first[:, 1:], tokens)[:, :, None]
    if in_order is not None:
        in_order = in_order[:, None, None]
        token = torch.where(in_order, torch.arange(L * W, device=token.device).view(L, W), token)
        end = torch.where(in_order, tokens[:, :, None], end)
    # Move all tokens before the padding without changing their order. All sort keys differ, because ONNX has
    # no stable sort.
    order = context_padding_mask.long() * S + torch.arange(S, device=tokens.device)
    real_first = order.argsort(dim=1)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view_as(token)
    return position, (token >= end) | context_padding_mask.all(dim=1)[:, None, None]


def arrange_places(place: Tensor, position: Tensor) -> Tensor:
    """Arrange one number per token, ``place`` [B, S], by segment, as [B, L, W] for L segments of W tokens.

    ``position`` [B, L, W] is the index, in the context, of each token of each segment.
    """
    return place.gather(1, position.flatten(1)).view_as(position)


def arrange_tokens(key: Tensor, value: Tensor, layout: Layout) -> Segments:
    """Arrange the keys and values [B, H, S, K] of S tokens by segment. ``layout`` must not be dense.

    If keys and values are the same tensor, the arranged keys and values are also the same tensor.
    """
    arranged = arrange_by_segment(key, layout.position)
    values = arranged if value is key else arrange_by_segment(value, layout.position)
    return Segments(arranged, values, layout.padding_mask, is_short=layout.is_short)


def arrange_by_segment(x: Tensor, position: Tensor) -> Tensor:
    """Arrange the vectors x [B, H, S, K] of S tokens by segment, as [B, H, L, W, K].

    ``position`` [B, L, W] is the position of each token of each segment in the context.
    """
    B, H, S, K = x.shape
    sentences = S * torch.arange(B, device=x.device)
    token = (position + sentences[:, None, None]).flatten()
    # All heads of a token are gathered together, because they are contiguous in a projection.
    arranged = x.transpose(1, 2).reshape(B * S, H * K).index_select(0, token)
    return arranged.view(*position.shape, H, K).permute(0, 3, 1, 2, 4).contiguous()
