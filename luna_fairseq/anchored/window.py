"""Window attention: each token attends to the packed context and to its neighbouring tokens.

The context is divided into segments, runs of consecutive tokens. Row i of the packed sequence P summarizes
segment i. In self-attention, a token attends to the rows of P and to the tokens of a window: its own segment
and the neighbouring segments on either side. Rows summarize the distant context, and the window contains the
nearby tokens. One softmax covers both, with a single bias that penalizes distant keys.

Tokens are arranged by segment (``segments.py``), so that a window is a slice even if the batch has padding.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.places import anchor_distances, distance_bias, token_places_in_segments
from luna_fairseq.anchored.segments import arrange_by_segment, segment_of_tokens, token_positions
from luna_fairseq.ops.masked_softmax import masked_softmax


class Window(NamedTuple):
    """Positions, distances and masks of window attention for a batch, shared by all layers.

    The context is divided into L segments, runs of at most W consecutive tokens. Row i of the packed sequence
    P summarizes segment i. Each token attends to all L rows, and to the tokens of a window: N consecutive
    segments centred on its own segment. Each token thus has L + N * W keys.

    Shapes: batch size B, S context tokens.

    Attributes:
        position: position [B, L, W] in the context of each token of each segment.
        place: index [B, S] of each context token in the layout by segment. Token j of segment i has index i *
            W + j.
        distance: distance [B, 1, L, W, L + N * W] of each token from its keys, first the rows and then the
            tokens of the window. The unit is the width of a segment. The dtype is float32.
        masked: mask [B, 1, L, 1, L + N * W] of the keys of each segment's tokens, True at padded rows and
            where a segment of the window has no token.
        number: odd number N of segments in a window.
        full: True if every segment contains W consecutive tokens, so that tokens are arranged by segment
            without a gather (default: False).
    """

    position: Tensor
    place: Tensor
    distance: Tensor
    masked: Tensor
    number: int
    full: bool = False


def naive_window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    token_k: Tensor,
    token_v: Tensor,
    strength: Tensor,
    number: int,
    context_padding_mask: Tensor,
    packed_padding_mask: Tensor,
    dropout: float = 0.0,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Compute window attention directly from its definition, with a weight for every pair of tokens.

    The context is divided into L segments, runs of consecutive tokens. Row i of the packed context summarizes
    segment i. Each token attends to all L rows, and to the tokens of its own and the neighbouring segments.
    One softmax covers rows and tokens. The logit of a key is reduced by ``strength`` times its distance, in
    segments.

    Shapes: batch size B, H heads of dimension K, S context tokens.

    Args:
        q: queries [B, H, S, K], one per context token, not yet scaled by K^-0.5.
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        token_k: keys [B, H, S, K] of the context tokens.
        token_v: values [B, H, S, K] of the context tokens.
        strength: reduction [H] of the logits per segment of distance.
        number: odd number of segments in a window, centred on the query's own segment.
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows.
        dropout: dropout probability of the attention weights (default: 0).

    Returns:
        Tuple of three values:

        - output [B, H, S, K], the weighted sum of the values of rows and tokens.
        - attention weights [B, H, S, L] of the rows, before dropout.
        - attention weights [B, H, S, S] of the tokens, before dropout; 0 outside the window.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    L = k.size(2)
    masks = context_padding_mask, packed_padding_mask
    place, segment = token_places_in_segments(*masks), segment_of_tokens(*masks)
    apart = (place[:, :, None] - place[:, None, :]).abs()[:, None]
    far = (segment[:, :, None] - segment[:, None, :]).abs() > number // 2
    distance = torch.cat([anchor_distances(*masks).transpose(2, 3), apart], dim=-1)
    masked = torch.cat(
        [
            packed_padding_mask[:, None, :].expand(-1, q.size(2), -1),
            context_padding_mask[:, None, :] | far,
        ],
        dim=-1,
    )
    with torch.autocast(q.device.type, enabled=False):
        keys = torch.cat([k, token_k], dim=2).to(dtype)
        logits = (q.to(dtype) * q.size(-1) ** -0.5) @ keys.transpose(-2, -1)
        logits = logits + distance_bias(strength, distance.to(dtype))
        weights = masked_softmax(logits, masked[:, None])
        output = F.dropout(weights, dropout) @ torch.cat([v, token_v], dim=2).to(dtype)
    weights = weights.to(q.dtype)
    return output.to(q.dtype), weights[..., :L], weights[..., L:]


def find_window(
    context_padding_mask: Tensor, packed_padding_mask: Tensor, number: int, complete: bool = False
) -> Window:
    """Compute the positions, distances and masks of window attention for a batch.

    The context is divided into L segments, runs of at most W consecutive tokens. Row i of the packed sequence
    P summarizes segment i. Each token attends to all rows, and to the tokens of a window: N consecutive
    segments centred on its own segment.

    Shapes: batch size B, S context tokens, L rows of P.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows. The other rows divide the context into
            segments.
        number: odd number N of segments in a window.
        complete: True if both masks are known to contain no padding (default: False).

    Returns:
        A :class:`Window` with the position in the context of each token of each segment, and the distance and
        mask of each token's L + N * W keys.
    """
    masks = context_padding_mask, packed_padding_mask
    B, L = packed_padding_mask.shape
    position, padding_mask = token_positions(*masks)
    W = position.size(2)
    arranged = token_places_in_segments(*masks).gather(1, position.flatten(1)).view(B, L, W)
    middle = torch.arange(L, device=arranged.device) + 0.5
    from_rows = (arranged[..., None] - middle).abs()
    from_tokens = (arranged[..., None] - concat_neighbours(arranged, number)[:, :, None, :]).abs()
    # The mask is padded as a floating-point tensor, because torch's CPU compiler cannot pad booleans.
    rows = packed_padding_mask[:, None, :].expand(-1, L, -1).to(arranged.dtype)
    masked = torch.cat([rows, concat_neighbours(padding_mask.to(arranged.dtype), number, 1)], dim=-1) > 0
    slots = torch.arange(L * W, device=position.device).expand(B, -1)
    index = position.flatten(1).masked_fill(padding_mask.flatten(1), context_padding_mask.size(1))
    token_place = slots.new_zeros(B, context_padding_mask.size(1) + 1).scatter(1, index, slots)[:, :-1]
    distance = torch.cat([from_rows, from_tokens], dim=-1)
    full = complete and context_padding_mask.size(1) == L * W
    return Window(position, token_place, distance[:, None], masked[:, None, :, None], number, full)


def concat_neighbours(x: Tensor, number: int, fill: float = 0) -> Tensor:
    """Concatenate each segment with its neighbouring segments on either side.

    Segment i of the result contains the segments i - (N - 1) / 2 to i + (N - 1) / 2 of the input.

    Args:
        x: values [..., L, W] of L segments with W tokens each.
        number: odd number N of segments to concatenate, centred on each segment.
        fill: fill value for segments before the first and after the last (default: 0).

    Returns:
        Values [..., L, N * W] of each segment and its neighbours.

    Example:
        >>> concat_neighbours(torch.tensor([[1.0], [2.0], [3.0]]), 3)
        tensor([[0., 1., 2.],
                [1., 2., 3.],
                [2., 3., 0.]])
    """
    side, L = number // 2, x.size(-2)
    padded = F.pad(x, (0, 0, side, side), value=fill)
    return torch.cat([padded.narrow(-2, i, L) for i in range(number)], dim=-1)


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    token_k: Tensor,
    token_v: Tensor,
    strength: Tensor,
    window: Window,
    dropout: float = 0.0,
) -> Tuple[Tensor, Tensor]:
    """Compute window attention: each token attends to the packed context and to tokens of nearby segments.

    The context is divided into L segments, runs of at most W consecutive tokens. Row i of the packed context
    summarizes segment i. Each token attends to all L rows, and to the tokens of a window: N consecutive
    segments centred on its own segment. One softmax covers these L + N * W keys. The logit of a key is
    reduced by ``strength`` times its distance, in segments.

    The result matches :func:`naive_window_attention` up to rounding.

    Shapes: batch size B, H heads of dimension K, S context tokens.

    Args:
        q: queries [B, H, S, K], one per context token, not yet scaled by K^-0.5.
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        token_k: keys [B, H, S, K] of the context tokens.
        token_v: values [B, H, S, K] of the context tokens.
        strength: reduction [H] of the logits per segment of distance.
        window: positions, distances and masks of the batch, returned by :func:`find_window`.
        dropout: dropout probability of the attention weights (default: 0).

    Returns:
        Tuple of two values:

        - output [B, H, S, K], the weighted sum of the values of rows and tokens.
        - attention weights [B, H, L, W, L + N * W] before dropout. Entry (i, j) of dimensions L and W belongs
          to the query at token j of segment i.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    arranged = _to_segments(q * q.size(-1) ** -0.5, window)  # [B, H, L, W, K]
    near_k, near_v = (_window_tokens(_to_segments(x, window), window.number) for x in (token_k, token_v))
    logits = torch.cat(
        [
            (arranged.flatten(2, 3) @ k.transpose(-2, -1)).unflatten(2, arranged.shape[2:4]),
            arranged @ near_k.transpose(-2, -1),
        ],
        dim=-1,
    )
    logits = logits.to(dtype) + distance_bias(strength, window.distance.to(dtype))
    weights = masked_softmax(logits, window.masked).to(q.dtype)
    row_part, window_part = F.dropout(weights, dropout).split([k.size(2), near_k.size(3)], dim=-1)
    output = (row_part.flatten(2, 3) @ v).unflatten(2, arranged.shape[2:4]) + window_part @ near_v
    return _to_token_order(output, window), weights


def _to_segments(x: Tensor, window: Window) -> Tensor:
    """Arrange the keys, values or queries of tokens by segment.

    A segment is a run of at most W consecutive tokens.

    Args:
        x: tensor [B, H, S, K] in context order, for batch size B, H heads of dimension K and S tokens.
        window: positions of the tokens in the segments, returned by :func:`find_window`.

    Returns:
        Tensor [B, H, L, W, K], for L segments padded to W tokens each. Values at padding are undefined.
    """
    if window.full:
        return x.unflatten(2, tuple(window.position.shape[1:]))
    return arrange_by_segment(x, window.position)


def _to_token_order(x: Tensor, window: Window) -> Tensor:
    """Copy values that are arranged by segment back to the order of the context.

    A segment is a run of at most W consecutive tokens. This function is the inverse of :func:`_to_segments`.

    Args:
        x: tensor [B, H, L, W, K], for batch size B, H heads of dimension K and L segments padded to W tokens
            each.
        window: positions of the tokens in the segments, returned by :func:`find_window`.

    Returns:
        Tensor [B, H, S, K] in context order, for S tokens. Values at padding are undefined.
    """
    if window.full:
        return x.flatten(2, 3)
    return x.flatten(2, 3).gather(2, window.place[:, None, :, None].expand(-1, x.size(1), -1, x.size(4)))


def _window_tokens(segments: Tensor, number: int) -> Tensor:
    """Concatenate the keys or values of the tokens in each segment's window.

    The window of segment i consists of N consecutive segments centred on segment i. Segments before the first
    and after the last are filled with zeros.

    Args:
        segments: keys or values [B, H, L, W, K], for batch size B, H heads of dimension K and L segments of W
            tokens.
        number: odd number N of segments in a window.

    Returns:
        Keys or values [B, H, L, N * W, K] of each window.
    """
    return concat_neighbours(segments.flatten(3), number).unflatten(3, (-1, segments.size(4)))


def total_window_weights(weights: Tensor, window: Window, pack_weights: Tensor) -> Tensor:
    """Compute the total attention weight of each query over each context token after window attention.

    A query attends to a token through the L rows of the packed context and, if the token lies in the query's
    window, also directly. The total weight is ``row_weights @ pack_weights`` plus the direct weight. A window
    consists of N segments of at most W consecutive tokens each.

    Shapes: batch size B, H heads, S context tokens, one query per token.

    Args:
        weights: attention weights [B, H, L, W, L + N * W] of each query over the rows and the tokens of its
            window, returned by :func:`window_attention`.
        window: positions of the tokens in the segments, returned by :func:`find_window`.
        pack_weights: attention weights [B, H or 1, L, S] of each row over the context.

    Returns:
        Attention weights [B, H, S, S] of each query over the context.
    """
    B, H, L, W, reads = weights.shape
    row_part, window_part = _to_token_order(weights, window).split([L, reads - L], dim=-1)
    near = concat_neighbours(window.position, window.number)  # [B, L, N W]
    near = near.gather(1, (window.place // W)[:, :, None].expand(-1, -1, reads - L))
    return (row_part @ pack_weights).scatter_add(3, near[:, None].expand(-1, H, -1, -1), window_part)
