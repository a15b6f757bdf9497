"""Unpack attention that also reads what is near: in self-attention a token of the context reads, beside the
rows of P, the tokens of its own segment of the context and of the segments around it.

Rows say what is far, a window what is near, in one softmax and with one strength of distance for both. All is
laid by segments (``segments.py``), so that a window is a slice, whatever the padding.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.places import anchor_distances, distance_bias, token_places
from luna_fairseq.anchored.segments import lay_by_segments, segment_of_tokens, token_positions
from luna_fairseq.ops.masked_softmax import masked_softmax


class Window(NamedTuple):
    """What the tokens of each segment read, the same in all layers. W: most tokens of a segment; N: segments
    in a window.

    Attributes:
        position: where the tokens of each segment stand in the context [B, L, W]
        place: where each token stands among the segments, 0 .. L W - 1 [B, S]
        distance: of each token from the rows and from its window's tokens, in segments, float32
            [B, 1, L, W, L + N W]
        left_out: True at rows and places without a token [B, 1, L, 1, L + N W]
        number: N
        full: W tokens stand in every segment, in their order: nothing has to be fetched
    """

    position: Tensor
    place: Tensor
    distance: Tensor
    left_out: Tensor
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
    """The definition, with a weight for every pair of tokens.

    Args:
        q: queries [B, H, S, K], one for each token of the context, not yet scaled by K^-0.5
        k, v: keys and values of the packed context [B, H, L, K]
        token_k, token_v: keys and values of the context's tokens [B, H, S, K]
        strength: what the distance of a segment takes from the logits [H]
        number: segments whose tokens are read: a token's own, and as many on either side
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at rows of P that are left out
        dropout: probability with which a weight is dropped

    Returns:
        output [B, H, S, K]; weights before dropout of the rows [B, H, S, L] and of the tokens [B, H, S, S]
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    L = k.size(2)
    masks = context_padding_mask, packed_padding_mask
    place, segment = token_places(*masks), segment_of_tokens(*masks)
    apart = (place[:, :, None] - place[:, None, :]).abs()[:, None]
    far = (segment[:, :, None] - segment[:, None, :]).abs() > number // 2
    distance = torch.cat([anchor_distances(*masks).transpose(2, 3), apart], dim=-1)
    left_out = torch.cat(
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
        weights = masked_softmax(logits, left_out[:, None])
        output = F.dropout(weights, dropout) @ torch.cat([v, token_v], dim=2).to(dtype)
    weights = weights.to(q.dtype)
    return output.to(q.dtype), weights[..., :L], weights[..., L:]


def find_window(
    context_padding_mask: Tensor, packed_padding_mask: Tensor, number: int, complete: bool = False
) -> Window:
    """What all layers share; arguments as in :func:`naive_window_attention`, and whether it is known that
    neither mask leaves anything out."""
    masks = context_padding_mask, packed_padding_mask
    B, L = packed_padding_mask.shape
    position, empty = token_positions(*masks)
    W = position.size(2)
    laid = token_places(*masks).gather(1, position.flatten(1)).view(B, L, W)
    middle = torch.arange(L, device=laid.device) + 0.5
    from_rows = (laid[..., None] - middle).abs()
    from_tokens = (laid[..., None] - around(laid, number)[:, :, None, :]).abs()
    # In numbers: torch's compiler for a CPU cannot pad truth values.
    rows = packed_padding_mask[:, None, :].expand(-1, L, -1).to(laid.dtype)
    left_out = torch.cat([rows, around(empty.to(laid.dtype), number, 1)], dim=-1) > 0
    # A token's place among the segments: its segment, and how many tokens of the segment stand before it.
    stands = torch.arange(L * W, device=position.device).expand(B, -1)
    index = position.flatten(1).masked_fill(empty.flatten(1), context_padding_mask.size(1))
    of_token = stands.new_zeros(B, context_padding_mask.size(1) + 1).scatter(1, index, stands)[:, :-1]
    distance = torch.cat([from_rows, from_tokens], dim=-1)
    full = complete and context_padding_mask.size(1) == L * W
    return Window(position, of_token, distance[:, None], left_out[:, None, :, None], number, full)


def around(x: Tensor, number: int, fill: float = 0) -> Tensor:
    """The segments of ``x`` [.., L, W] with ``number // 2`` on either side of each: [.., L, number W];
    ``fill`` where there is none."""
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
    """What :func:`naive_window_attention` defines, at the cost of L + N W keys for a token.

    Arguments as there, with what :func:`find_window` returns in the place of number and masks.

    Returns:
        output [B, H, S, K]; weights before dropout, of the tokens by segments [B, H, L, W, L + N W]
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    laid = _laid(q * q.size(-1) ** -0.5, window)  # [B, H, L, W, K]
    near_k, near_v = (_near(_laid(x, window), window.number) for x in (token_k, token_v))
    logits = torch.cat(
        [
            (laid.flatten(2, 3) @ k.transpose(-2, -1)).unflatten(2, laid.shape[2:4]),
            laid @ near_k.transpose(-2, -1),
        ],
        dim=-1,
    )
    logits = logits.to(dtype) + distance_bias(strength, window.distance.to(dtype))
    weights = masked_softmax(logits, window.left_out).to(q.dtype)
    of_rows, of_near = F.dropout(weights, dropout).split([k.size(2), near_k.size(3)], dim=-1)
    output = (of_rows.flatten(2, 3) @ v).unflatten(2, laid.shape[2:4]) + of_near @ near_v
    return _by_tokens(output, window), weights


def _laid(x: Tensor, window: Window) -> Tensor:
    """``x`` [B, H, S, ..] by segments [B, H, L, W, ..]."""
    if window.full:
        return x.unflatten(2, tuple(window.position.shape[1:]))
    return lay_by_segments(x, window.position)


def _by_tokens(x: Tensor, window: Window) -> Tensor:
    """``x`` [B, H, L, W, ..] as the tokens stand [B, H, S, ..]."""
    if window.full:
        return x.flatten(2, 3)
    return x.flatten(2, 3).gather(2, window.place[:, None, :, None].expand(-1, x.size(1), -1, x.size(4)))


def _near(segments: Tensor, number: int) -> Tensor:
    """The tokens of each segment's window [B, H, L, N W, K], of all segments [B, H, L, W, K]."""
    return around(segments.flatten(3), number).unflatten(3, (-1, segments.size(4)))


def weights_of_window(weights: Tensor, window: Window, pack_weights: Tensor) -> Tensor:
    """Weights over the context [B, H, S, S]: what was read through the rows, and of the window.

    Args:
        weights: second result of :func:`window_attention`
        window: what it was called with
        pack_weights: the rows' own weights over the context [B, H or 1, L, S]
    """
    B, H, L, W, reads = weights.shape
    of_rows, of_near = _by_tokens(weights, window).split([L, reads - L], dim=-1)
    near = around(window.position, window.number)  # [B, L, N W]
    near = near.gather(1, (window.place // W)[:, :, None].expand(-1, -1, reads - L))
    return (of_rows @ pack_weights).scatter_add(3, near[:, None].expand(-1, H, -1, -1), of_near)
