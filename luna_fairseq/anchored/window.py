"""Window attention: unpack attention in which each query also attends to its neighbouring tokens.

The context is divided into equal segments, one per row of the packed sequence P. In self-attention, a token
attends to the rows of P and to the tokens of a window: its own segment and the segments on either side. Rows
summarize the distant context, and the window contains the nearby tokens. One softmax covers both, with a
single bias that penalizes distant keys.

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

    The context is divided into L segments, one per row of the packed sequence P. A token attends to the L
    rows and to the tokens of a window of N segments around it.

    Shapes: batch size B, S context tokens, room for W tokens in a segment.

    Attributes:
        position: index [B, L, W] in the context of each token of each segment.
        place: index [B, S] of each token in the layout by segment, from 0 to L * W - 1.
        distance: distance [B, 1, L, W, L + N * W] of each token from its keys, first the rows and then the
            tokens of the window. Measured in segments, in float32.
        masked: mask [B, 1, L, 1, L + N * W], True at padding rows and where a segment has no token.
        number: number N of segments in a window.
        full: True if every segment contains W consecutive tokens, so that no gather is needed (default:
            False).
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

    The context is divided into L equal segments, one per row of the packed context. Each token attends to the
    rows, and to the tokens of its own segment and of the neighbouring segments.

    Shapes: batch size B, H heads of width K, S context tokens.

    Args:
        q: queries [B, H, S, K], one per context token, not yet scaled by K^-0.5.
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        token_k: keys [B, H, S, K] of the context tokens.
        token_v: values [B, H, S, K] of the context tokens.
        strength: strength [H] of the distance bias, by which a distance of one segment lowers the logit.
        number: odd number of segments in a window, centred on the query's own segment.
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padding rows.
        dropout: dropout probability of the attention weights (default: 0).

    Returns:
        Tuple of three values:

        - output [B, H, S, K].
        - weights [B, H, S, L] of the rows, before dropout.
        - weights [B, H, S, S] of the tokens, before dropout.
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

    In window attention, each token attends to all rows and to the tokens of its own and the neighbouring
    segments. Each segment corresponds to one row of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S], True at padding, for batch size B and S context tokens.
        packed_padding_mask: mask [B, L], True at padding, where L is the number of rows of P. Every
            non-padding row corresponds to one segment.
        number: odd number of segments in a window.
        complete: True if both masks are known to contain no padding (default: False).

    Returns:
        The :class:`Window` of the batch, which :func:`window_attention` takes as input.
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

    Args:
        x: values [..., L, W] of L segments with W tokens each.
        number: odd number N of segments in a window.
        fill: fill value for segments before the first and after the last (default: 0).

    Returns:
        Values [..., L, N * W] of each segment's window.

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
    """Compute window attention: queries attend to the packed context and to the tokens of nearby segments.

    The result matches :func:`naive_window_attention` up to rounding. Each query attends to L + N * W keys.

    Shapes: batch size B, H heads of width K, S context tokens, L rows of the packed context, windows of N
    segments with room for W tokens each.

    Args:
        q: queries [B, H, S, K], one per context token, not yet scaled by K^-0.5.
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        token_k: keys [B, H, S, K] of the context tokens.
        token_v: values [B, H, S, K] of the context tokens.
        strength: strength [H] of the distance bias, by which a distance of one segment lowers the logit.
        window: windows of the batch, returned by :func:`find_window`.
        dropout: dropout probability of the attention weights (default: 0).

    Returns:
        Tuple of two values:

        - output [B, H, S, K].
        - weights [B, H, L, W, L + N * W] before dropout, with queries arranged by segment.
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
    """Arrange the values of tokens by segment.

    Args:
        x: values [B, H, S, K], for batch size B, H heads of width K and S tokens.
        window: windows of the batch.

    Returns:
        Values [B, H, L, W, K], for L segments with room for W tokens each.
    """
    if window.full:
        return x.unflatten(2, tuple(window.position.shape[1:]))
    return arrange_by_segment(x, window.position)


def _to_token_order(x: Tensor, window: Window) -> Tensor:
    """Restore the context order of values that are arranged by segment.

    This function is the inverse of :func:`_to_segments`.

    Args:
        x: values [B, H, L, W, K], for batch size B, H heads of width K and L segments with room for W tokens.
        window: windows of the batch.

    Returns:
        Values [B, H, S, K] of the S tokens.
    """
    if window.full:
        return x.flatten(2, 3)
    return x.flatten(2, 3).gather(2, window.place[:, None, :, None].expand(-1, x.size(1), -1, x.size(4)))


def _window_tokens(segments: Tensor, number: int) -> Tensor:
    """Concatenate the tokens in the window around each segment.

    Args:
        segments: values [B, H, L, W, K], for batch size B, H heads of width K and L segments of W tokens.
        number: odd number N of segments in a window.

    Returns:
        Values [B, H, L, N * W, K] of each window.
    """
    return concat_neighbours(segments.flatten(3), number).unflatten(3, (-1, segments.size(4)))


def total_window_weights(weights: Tensor, window: Window, pack_weights: Tensor) -> Tensor:
    """Compute the weight of each context token, summed over the packed context and the window.

    Shapes: batch size B, H heads, S context tokens, L segments with room for W tokens, windows of N segments.

    Args:
        weights: weights [B, H, L, W, L + N * W] returned by :func:`window_attention`.
        window: windows passed to :func:`window_attention`.
        pack_weights: weights [B, H or 1, L, S] of the rows of the packed sequence P over the context.

    Returns:
        Weights [B, H, S, S] of each query over the context.
    """
    B, H, L, W, reads = weights.shape
    row_part, window_part = _to_token_order(weights, window).split([L, reads - L], dim=-1)
    near = concat_neighbours(window.position, window.number)  # [B, L, N W]
    near = near.gather(1, (window.place // W)[:, :, None].expand(-1, -1, reads - L))
    return (row_part @ pack_weights).scatter_add(3, near[:, None].expand(-1, H, -1, -1), window_part)
