"""Places for the rows of P: row i stands at the middle of the i-th of L equal segments of the context.

A context of n real tokens and L rows of P has segments of w = n / L tokens; row i stands at token i w + (w -
1) / 2. Distances are measured in segments, so that they mean the same in a short sentence and in a long
document. Padding, left or right, has no place and moves none; a sentence that has fewer rows than others of
its batch has wider segments.
"""

from typing import Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int) -> Tensor:
    """The definition: how far each token is from the place of each row and head, one number after the other.

    Head h of H looks (h + 1/2) / H - 1/2 segments beside the row's middle: a row's heads divide its segment
    among them.

    Args:
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at rows of P that are left out
        num_heads: H; with one head, the distance from the row's middle

    Returns:
        distances in segments, 0 or more, float32 [B, H, L, S]; of no meaning at padding and at rows that are
        left out
    """
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    distances = torch.zeros(B, num_heads, L, S, dtype=torch.float64)
    for b in range(B):
        real = [s for s in range(S) if not context_padding_mask[b, s]]
        w = len(real) / int((~packed_padding_mask[b]).sum()) if real else 1.0
        for h in range(num_heads):
            aside = (h + 0.5) / num_heads - 0.5
            for i in range(L):
                place = i * w + (w - 1) / 2 + aside * w
                for t, s in enumerate(real):
                    distances[b, h, i, s] = abs(t - place) / w
    return distances.float()


def anchor_distances(context_padding_mask: Tensor, packed_padding_mask: Tensor, num_heads: int = 1) -> Tensor:
    """What :func:`naive_distances` defines, for all at once. Same arguments and result, on the masks'
    device."""
    place = token_places(context_padding_mask, packed_padding_mask)
    L = packed_padding_mask.size(1)
    middle = torch.arange(L, device=place.device) + 0.5
    aside = (torch.arange(num_heads, device=place.device) + 0.5) / num_heads - 0.5
    looked_at = middle + aside[:, None]  # [H, L]
    return (place[:, None, None, :] - looked_at[:, :, None]).abs()


def beyond_nearest(distance: Tensor) -> Tensor:
    """``distance`` [.., S] less the smallest of each row, which changes no softmax, so that the limit of
    :func:`distance_bias` is one to what is far and never to what is nearest."""
    return distance - distance.amin(dim=-1, keepdim=True)


def distance_bias(strength: Tensor, distance: Tensor) -> Tensor:
    """What is added to the logits: ``-min(strength distance, MAX_PENALTY)``.

    Args:
        strength: of each head [H]
        distance: from the nearest, which is at 0 [B, H or 1, ..]

    Returns:
        [B, H, ..]
    """
    of_head = strength.to(distance.dtype).view(-1, *[1] * (distance.dim() - 2))
    return (-of_head * distance).clamp(min=-MAX_PENALTY)


def token_places(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Where the middle of each token stands, in segments from the beginning of the context [B, S]; of no
    meaning at padding. Masks: [B, S], [B, L], True: left out."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (token + 0.5) * (rows / tokens)[:, None]


def middles(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the middle of each row's segment [B, L] and of each token [B, S] stands, in tokens from the
    beginning of the context; masks as of :func:`token_places`."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    row = torch.arange(packed_padding_mask.size(1), device=token.device)
    return (row + 0.5) * (tokens / rows)[:, None], token + 0.5


def counted(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """The number of each token among the real ones [B, S], the real tokens [B], and the rows of P [B], 1 at
    least."""
    real = ~context_padding_mask
    token = (real.cumsum(dim=1) - 1).clamp(min=0)
    return token, real.sum(dim=1).clamp(min=1), (~packed_padding_mask).sum(dim=1).clamp(min=1)
