"""Places of the rows of the packed sequence P in the context, and distances from them.

The n real tokens of a context are divided into L equal segments, one for each row of P. A segment is w = n /
L tokens wide, and the place of row i is the middle of segment i, token i w + (w - 1) / 2. Distances are
measured in segments, so that a distance means the same in a short sentence and in a long document.

Padding, on the left or on the right, has no place and does not change the places of real tokens. A sentence
with fewer rows than the others of its batch has wider segments.
"""

from typing import Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int) -> Tensor:
    """Compute the distance of each token from each row and head by its definition, with plain loops.

    The H heads of a row divide its segment among them. Head h looks at the point that lies
    (h + 1/2) / H - 1/2 segments from the middle of the segment.

    B is the batch size, S the length of the context, and L the number of rows of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S] of the context, True at padding.
        packed_padding_mask: mask [B, L] of P, True at masked rows.
        num_heads: number of heads H; a single head looks at the middle of the segment.

    Returns:
        The distances [B, H, L, S] in segments, at least 0 and in float32. They are arbitrary at padding and
        at masked rows.
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
    """Compute the distance of each token from each row and head, in segments.

    This is the vectorised form of :func:`naive_distances`, which describes the heads.

    B is the batch size, S the length of the context, and L the number of rows of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S] of the context, True at padding.
        packed_padding_mask: mask [B, L] of P, True at masked rows.
        num_heads: number of heads H (default: 1, which looks at the middle of the segment).

    Returns:
        The distances [B, H, L, S] in segments, at least 0 and in float32. They are arbitrary at padding and
        at masked rows.

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
    """Subtract the smallest distance along the last dimension, so that the nearest key is at distance 0.

    The subtraction does not change a softmax over the keys. It keeps the nearest key clear of the lower bound
    in :func:`distance_bias`.

    Args:
        distance: distances [.., S] of S keys.

    Returns:
        The distances [.., S] beyond the nearest key.
    """
    return distance - distance.amin(dim=-1, keepdim=True)


def distance_bias(strength: Tensor, distance: Tensor) -> Tensor:
    """Return the bias ``-min(strength * distance, MAX_PENALTY)`` that is added to attention logits.

    B is the batch size, and H the number of heads.

    Args:
        strength: strength gamma [H] of each head.
        distance: distances [B, H or 1, ..] beyond the nearest key, see :func:`beyond_nearest`.

    Returns:
        The bias [B, H, ..].
    """
    head_strength = strength.to(distance.dtype).view(-1, *[1] * (distance.dim() - 2))
    return (-head_strength * distance).clamp(min=-MAX_PENALTY)


def token_places_in_segments(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the middle of each token, in segments from the beginning of the context.

    B is the batch size, S the length of the context, and L the number of rows of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S] of the context, True at padding.
        packed_padding_mask: mask [B, L] of P, True at masked rows.

    Returns:
        The places [B, S], arbitrary at padding.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    return (token + 0.5) * (rows / tokens)[:, None]


def middles(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the middle of each segment and of each token, in tokens from the beginning of the context.

    B is the batch size, S the length of the context, and L the number of rows of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S] of the context, True at padding.
        packed_padding_mask: mask [B, L] of P, True at masked rows.

    Returns:
        - middle [B, L] of each row's segment.
        - middle [B, S] of each token, arbitrary at padding.
    """
    token, tokens, rows = count_tokens(context_padding_mask, packed_padding_mask)
    row = torch.arange(packed_padding_mask.size(1), device=token.device)
    return (row + 0.5) * (tokens / rows)[:, None], token + 0.5


def count_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the index of each real token, and the numbers of tokens and rows of each context.

    B is the batch size, S the length of the context, and L the number of rows of the packed sequence P.

    Args:
        context_padding_mask: mask [B, S] of the context, True at padding.
        packed_padding_mask: mask [B, L] of P, True at masked rows.

    Returns:
        - index [B, S] of each token among the real tokens, from 0.
        - number [B] of real tokens, at least 1.
        - number [B] of rows of P that are not masked, at least 1.
    """
    real = ~context_padding_mask
    token = (real.cumsum(dim=1) - 1).clamp(min=0)
    return token, real.sum(dim=1).clamp(min=1), (~packed_padding_mask).sum(dim=1).clamp(min=1)
