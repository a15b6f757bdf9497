"""Positions of segments and tokens in the context, and distances between them.

The n tokens of a context are divided into L equal segments of width w = n / L tokens, which need not be an
integer. Row i of the packed sequence P summarizes segment i. The centre of token t is at t + 1/2, and the
centre of segment i at (i + 1/2) w. Head h of H shifts the centre of a segment by ((h + 1/2) / H - 1/2) w, so
that the centres of all heads are spread evenly over the segment. Distances in segment widths have the same
meaning in a short sentence and in a long document.

Shapes: ``context_padding_mask`` [B, S] and ``packed_padding_mask`` [B, L] for batch size B, S tokens and L
rows. Padding on either side is not counted, and results at padding are undefined.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import MAX_PENALTY

# Place of padding, far enough away never to be the nearest key.
FAR_AWAY = 1e15


def naive_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int) -> Tensor:
    """Compute the distances [B, H, L, S] of :func:`anchor_distances` token by token, for tests."""
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    distances = torch.zeros(B, num_heads, L, S, dtype=torch.float64)
    for b in range(B):
        real = [s for s in range(S) if not context_padding_mask[b, s]]
        w = len(real) / int((~packed_padding_mask[b]).sum()) if real else 1.0
        for h in range(num_heads):
            offset = (h + 0.5) / num_heads - 0.5
            for i in range(L):
                place = i * w + (w - 1) / 2 + offset * w
                for t, s in enumerate(real):
                    distances[b, h, i, s] = abs(t - place) / w
    return distances.float()


def anchor_distances(
    context_padding_mask: Tensor,
    packed_padding_mask: Tensor,
    num_heads: int = 1,
    place: Optional[Tensor] = None,
) -> Tensor:
    """Compute the float32 distances [B, H, L, S] from the centre of each text segment to each token.

    Distances are multiples of the segment width. The centres differ between the H = ``num_heads`` heads.
    context_padding_mask [B, S] and packed_padding_mask [B, L] are True at padding. ``place`` is the result of
    :func:`token_places_in_segments`, if it has already been computed.
    """
    if place is None:
        place = token_places_in_segments(context_padding_mask, packed_padding_mask)
    L = packed_padding_mask.size(1)
    middle = torch.arange(L, device=place.device) + 0.5
    offset = (torch.arange(num_heads, device=place.device) + 0.5) / num_heads - 0.5
    target = middle + offset[:, None]  # [H, L]
    return (place[:, None, None, :] - target[:, :, None]).abs()


def beyond_nearest(distance: Tensor) -> Tensor:
    """Subtract the distance of the nearest key (minimum over the last dimension) from all distances.

    :func:`distance_bias` is then 0 for the nearest key, so that its clamping never affects this key.
    """
    return distance - distance.amin(dim=-1, keepdim=True)


def distance_bias(strength: Tensor, distance: Tensor) -> Tensor:
    """Return the bias ``-min(strength * distance, MAX_PENALTY)`` of attention logits.

    ``strength`` is [H] for H heads, and ``distance`` is [B, H or 1, ...], with the heads in dimension 1.
    """
    factor = (-strength).to(distance.dtype).view(1, -1, *[1] * (distance.dim() - 2))
    return limit_penalty(factor * distance)


def limit_penalty(bias: Tensor) -> Tensor:
    """Clamp a bias to at least ``-MAX_PENALTY``. The backward pass is cheaper than with ``Tensor.clamp``."""
    return F.threshold(bias, -MAX_PENALTY, -MAX_PENALTY)


def token_places_in_segments(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the position [B, S] of the centre of each token, in segment widths from the first token."""
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    return (token + 0.5) * (rows / tokens)[:, None]


def find_centres(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the positions [B, L] of the centres of all segments, and [B, S] of all tokens.

    Positions are in tokens from the start of the context. Centres are not shifted between heads.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    row = torch.arange(packed_padding_mask.size(1), device=token.device)
    return (row + 0.5) * (tokens / rows)[:, None], token + 0.5


def move_padding_away(place: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Set key positions ``place`` [B, N] to 1e15 at padding, except in examples that contain only padding."""
    if padding_mask is None:
        return place
    return place.masked_fill(padding_mask & ~padding_mask.all(dim=1, keepdim=True), FAR_AWAY)


def count_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the index [B, S] of each token, the number [B] of tokens, and the number [B] of rows of P.

    Padding is not counted, and the numbers are at least 1.
    """
    real = ~context_padding_mask
    token = (real.cumsum(dim=1) - 1).clamp(min=0)
    return token, real.sum(dim=1).clamp(min=1), (~packed_padding_mask).sum(dim=1).clamp(min=1)
