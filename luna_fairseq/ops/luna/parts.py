"""The tokens of a context by parts: which belong to which row of P, and laid so that a part is a slice."""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.luna.anchors import counted

# The most tokens of a context that a look-up reads whole.
WHOLE = 64


class Layout(NamedTuple):
    """How a look-up finds the tokens of a batch of contexts, the same in all layers.

    Attributes:
        position: where the tokens of each part stand in the context [B, L, W]; None where tokens are read as
            they stand, because a context is short
        empty: True at places of a part without a token [B, L, W]; of tokens as they stand, at padding [B, S]
        part: see :class:`luna_fairseq.ops.luna.Tokens`
    """

    position: Optional[Tensor]
    empty: Tensor
    part: Optional[Tensor] = None


def is_read_whole(context_padding_mask: Tensor) -> Tensor:
    """True where a context is short [B]; mask: [B, S], True at padding."""
    return (~context_padding_mask).sum(dim=1) <= WHOLE


def find_layout(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Layout:
    """The layout for contexts with these masks [B, S] and [B, L], True: left out."""
    if context_padding_mask.size(1) <= WHOLE:
        return Layout(None, context_padding_mask)
    short = is_read_whole(context_padding_mask)
    if not short.any():
        return Layout(*token_positions(context_padding_mask, packed_padding_mask))
    part = part_of_tokens(context_padding_mask, packed_padding_mask)
    return Layout(None, context_padding_mask, part.masked_fill(short[:, None], -1))


class Parts(NamedTuple):
    """The tokens of the context by parts. W is the most that a part has, S / L rounded up.

    Attributes:
        key: [B, H, L, W, K]
        value: [B, H, L, W, K]
        empty: [B, L, W], True where a part has fewer tokens
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, L, W]
    """

    key: Tensor
    value: Tensor
    empty: Tensor
    place: Any = None


def part_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """The row of P that each token belongs to [B, S], of no meaning at padding. Masks: [B, S], [B, L], True:
    left out."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the tokens of each part stand in the context [B, L, W], and what of that is empty [B, L, W]."""
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    _, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    tokens, rows = tokens[:, None], rows[:, None]
    part = torch.arange(L + 1, device=tokens.device)
    first = -(
        (rows - 2 * tokens * part) // (2 * rows)
    )  # the first t with (t + 1/2) L / n at or above the part
    token = first[:, :L, None] + torch.arange(-(-S // L), device=tokens.device)
    empty = token >= torch.minimum(first[:, 1:], tokens)[:, :, None]
    real_first = context_padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view(B, L, -1)
    return position, empty | context_padding_mask.all(dim=1)[:, None, None]


def by_parts(key: Tensor, value: Tensor, position: Tensor, empty: Tensor) -> Parts:
    """Tokens' keys and values [B, H, S, K], laid by parts; see :func:`token_positions`."""
    laid = lay_by_parts(key, position)
    return Parts(laid, laid if value is key else lay_by_parts(value, position), empty)


def lay_by_parts(x: Tensor, position: Tensor) -> Tensor:
    """``x`` [B, H, S, K] by parts [B, H, L, W, K], of the ``position`` [B, L, W]."""
    B, H, S, _ = x.shape
    sentences = S * torch.arange(B, device=x.device)
    token = (position + sentences[:, None, None]).flatten()
    # All heads of a token at once: they lie side by side in a projection.
    laid = x.transpose(1, 2).reshape(B * S, -1).index_select(0, token)
    return laid.view(*position.shape, H, -1).permute(0, 3, 1, 2, 4).contiguous()
