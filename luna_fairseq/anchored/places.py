"""Positions of segments and tokens in the context, and distances between them.

The n non-padding tokens of a context are divided into L equal segments, runs of consecutive tokens. Row i of
the packed sequence P summarizes segment i. A segment is w = n / L tokens wide. The centre of segment i is at
token index i w + (w - 1) / 2. Distances are measured in segment widths, so that a distance has the same
meaning in a short sentence and in a long document.

Padding on either side does not change the positions of the other tokens. A sentence for which P has padded
rows has fewer and wider segments.
"""

from typing import Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int) -> Tensor:
    """Compute the distance between each token and the centre of each segment directly from the definition.

    The n non-padding tokens of a context are divided into L equal segments, runs of w = n / L consecutive
    tokens. Row i of the packed sequence P summarizes segment i. For head h of H, its centre is at token index
    ``i w + (w - 1) / 2 + ((h + 1/2) / H - 1/2) w``. Distances are divided by w.

    Shapes: batch size B, S context tokens, L rows of P.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows.
        num_heads: number of heads H. A single head has no shift.

    Returns:
        Distances [B, H, L, S] in segment widths, at least 0, in float32. Values at padding positions are
        undefined.
    """
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


def anchor_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int = 1) -> Tensor:
    """Compute the distance between each token and the centre of each segment, measured in segment widths.

    The n non-padding tokens of a context are divided into L equal segments, runs of w = n / L consecutive
    tokens. Row i of the packed sequence P summarizes segment i. For head h of H, its centre is at token index
    ``i w + (w - 1) / 2 + ((h + 1/2) / H - 1/2) w``. This is the vectorized implementation of
    :func:`naive_distances`.

    Shapes: batch size B, S context tokens, L rows of P.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows.
        num_heads: number of heads H (default: 1, the centres are not shifted).

    Returns:
        Distances [B, H, L, S] in segment widths, at least 0, in float32. Values at padding positions are
        undefined.

    Example:
        >>> context, packed = torch.zeros(1, 4, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.bool)
        >>> anchor_distances(context, packed)[0, 0]  # 4 tokens, 2 rows
        tensor([[0.2500, 0.2500, 0.7500, 1.2500],
                [1.2500, 0.7500, 0.2500, 0.2500]])
    """
    place = token_places_in_segments(context_padding_mask, packed_padding_mask)
    L = packed_padding_mask.size(1)
    middle = torch.arange(L, device=place.device) + 0.5
    offset = (torch.arange(num_heads, device=place.device) + 0.5) / num_heads - 0.5
    target = middle + offset[:, None]  # [H, L]
    return (place[:, None, None, :] - target[:, :, None]).abs()


def beyond_nearest(distance: Tensor) -> Tensor:
    """Subtract the distance of the nearest key, so that the nearest key has distance 0.

    The distances are used as a penalty on attention logits. The subtraction does not change a softmax over
    the keys. It keeps :func:`distance_bias` from clamping the bias of the nearest key.

    Args:
        distance: distances [..., S] of S keys.

    Returns:
        Distances [..., S], at least 0.
    """
    return distance - distance.amin(dim=-1, keepdim=True)


def distance_bias(strength: Tensor, distance: Tensor) -> Tensor:
    """Return the bias ``-min(strength * distance, MAX_PENALTY)``, which lowers the logits of distant keys.

    Args:
        strength: strength gamma [H] per head, for H heads.
        distance: distances [B, H or 1, ...] for batch size B, minus the distance of the nearest key.

    Returns:
        Bias [B, H, ...].
    """
    head_strength = strength.to(distance.dtype).view(-1, *[1] * (distance.dim() - 2))
    return (-head_strength * distance).clamp(min=-MAX_PENALTY)


def token_places_in_segments(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the centre of each token, measured in segment widths from the start of the context.

    The n non-padding tokens of a context are divided into L equal segments, runs of consecutive tokens. The
    centre of token t is at ``(t + 1/2) L / n``.

    Shapes: batch size B, S context tokens, L rows of the packed sequence P, one per segment.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows of P. The other rows divide the context into
            segments.

    Returns:
        Centres [B, S], undefined at padding.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    return (token + 0.5) * (rows / tokens)[:, None]


def middles(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the centre of each segment and of each token, measured in tokens from the start of the context.

    The n non-padding tokens of a context are divided into L equal segments, runs of consecutive tokens. The
    centre of segment i is ``(i + 1/2) n / L``, and the centre of token t is ``t + 1/2``.

    Shapes: batch size B, S context tokens, L rows of the packed sequence P, one per segment.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows of P. The other rows divide the context into
            segments.

    Returns:
        Tuple of two values:

        - centre [B, L] of the segment of each row.
        - centre [B, S] of each token, undefined at padding.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    row = torch.arange(packed_padding_mask.size(1), device=token.device)
    return (row + 0.5) * (tokens / rows)[:, None], token + 0.5


def count_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Count the non-padding tokens of each context and the non-padded rows of the packed sequence P.

    Shapes: batch size B, S context tokens, L rows of P.

    Args:
        context_padding_mask: mask [B, S], True at padding of the context.
        packed_padding_mask: mask [B, L], True at padded rows.

    Returns:
        Tuple of three values:

        - zero-based index [B, S] of each token, not counting padding.
        - number [B] of non-padding tokens, at least 1.
        - number [B] of non-padded rows, at least 1.
    """
    real = ~context_padding_mask
    token = (real.cumsum(dim=1) - 1).clamp(min=0)
    return token, real.sum(dim=1).clamp(min=1), (~packed_padding_mask).sum(dim=1).clamp(min=1)
