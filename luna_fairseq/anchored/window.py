"""Window attention: each token attends to the packed context and to its neighbouring tokens.

The context of S tokens is divided into L segments, runs of at most W consecutive tokens, which the L rows of
the packed context summarize. A token attends to the rows and to the tokens of a window: N consecutive
segments, N odd, with its own in the middle. One softmax covers these L + N * W keys. The logit of a key is
reduced by ``strength`` [H] times its distance in segments. Tokens are arranged by segment (segments.py), so
that a window is a slice even if the batch has padding.

Shapes: queries q [B, H, S, K] of batch size B and H heads of dimension K, not yet scaled by K^-0.5; keys k
and values v [B, H, L, K] of the packed context; ``token_k`` and ``token_v`` [B, H, S, K] of the tokens.
``number`` is N. Attention weights are before dropout.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.places import anchor_distances, distance_bias, token_places_in_segments
from luna_fairseq.anchored.segments import arrange_by_segment, segment_of_tokens, token_positions
from luna_fairseq.modules.memory import ReadWeights
from luna_fairseq.ops.attention import disable_autocast, masked_softmax


class Window(NamedTuple):
    """Positions, distances and masks for window attention, computed once per batch for all layers.

    The L + N * W keys of a token are the rows, then the tokens of its window. Shapes: batch size B.

    Attributes:
        position: position [B, L, W] of each token of each segment in the context.
        place: index [B, S] of each context token in segment order: i * W + j for token j of segment i.
        distance: distance [B, 1, L, W, L + N * W] of each token from its keys, in segment widths.
        masked: mask [B, 1, L, 1, L + N * W], True at keys that are padded rows or missing tokens.
        number: odd number N of segments in a window.
        full: True if every segment has W tokens, so that tokens are arranged by segment without a gather.
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
    """Compute window attention by its formula, as a reference for tests.

    q, token_k and token_v [B, H, S, K] are the queries, keys and values of the tokens, and k and v
    [B, H, L, K] the keys and values of the rows. The masks [B, S] and [B, L] are True at padding. Return the
    output [B, H, S, K], and the weights [B, H, S, L] of rows and [B, H, S, S] of tokens.
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
    with disable_autocast(q.device):
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
    """Compute the positions, distances and masks that window attention needs for a batch.

    context_padding_mask [B, S] and packed_padding_mask [B, L] are True at padding of the context and of P.
    ``complete`` means that both are known to contain no padding. A window has ``number`` segments, with the
    token's own segment in the middle.
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
    """Concatenate the W values of each segment, x [..., L, W], with the values of its neighbouring segments.

    ``number`` is the odd window size in segments, centred on the segment itself. Missing neighbours at both
    ends are filled with ``fill``. Return a tensor [..., L, number * W].
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
    """Attend from each token to the packed context and to the tokens in a window around the token.

    q, token_k and token_v [B, H, S, K] are the queries, keys and values of the tokens, and k and v
    [B, H, L, K] the keys and values of the packed context. Logits are reduced by ``strength`` [H] times the
    distance. The result equals :func:`naive_window_attention` up to rounding. Return the output [B, H, S, K]
    and, for L segments of W tokens and windows of N segments, the weights [B, H, L, W, L + N * W].
    ``weights[:, :, i, j]`` are the weights of token j of segment i.
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
    """Arrange the vectors x [B, H, S, K] of S tokens by segment, as [B, H, L, W, K].

    Each of the L segments is padded to W tokens. The result is undefined at padding.
    """
    if window.full:
        return x.unflatten(2, tuple(window.position.shape[1:]))
    return arrange_by_segment(x, window.position)


def _to_token_order(x: Tensor, window: Window) -> Tensor:
    """Convert vectors [B, H, L, W, K] of L segments of W tokens to the order of the text, [B, H, S, K]."""
    if window.full:
        return x.flatten(2, 3)
    return x.flatten(2, 3).gather(2, window.place[:, None, :, None].expand(-1, x.size(1), -1, x.size(4)))


def _window_tokens(segments: Tensor, number: int) -> Tensor:
    """Expand the L segments [B, H, L, W, K] to windows of N = ``number`` segments [B, H, L, N * W, K]."""
    return concat_neighbours(segments.flatten(3), number).unflatten(3, (-1, segments.size(4)))


def split_window_weights(weights: Tensor, window: Window) -> ReadWeights:
    """Convert the weights of window attention to row weights [B, H, S, L] and token weights [B, H, S, S].

    ``weights`` [B, H, L, W, L + N * W] come from :func:`window_attention`, for S tokens in L segments of W
    tokens and windows of N segments. ``weights[:, :, i, j]`` are the weights of token j of segment i.
    """
    B, H, L, W, reads = weights.shape
    rows, near_weights = _to_token_order(weights, window).split([L, reads - L], dim=-1)
    near = concat_neighbours(window.position, window.number)  # [B, L, N W]
    near = near.gather(1, (window.place // W)[:, :, None].expand(-1, -1, reads - L))
    tokens = rows.new_zeros(*rows.shape[:3], rows.size(2))
    return ReadWeights(rows, tokens.scatter_add(3, near[:, None].expand(-1, H, -1, -1), near_weights))
