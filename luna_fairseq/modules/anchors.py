"""Anchored P: every row of the packed sequence has a place in the context, and attends to what is near it.

What is the same in all layers, distances and the tokens of each part, is computed once; a layer learns how
much distance counts.
"""

import math
from typing import Any, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.luna import (
    Diagonal,
    anchor_distances,
    distance_bias,
    find_diagonal,
    find_layout,
    find_window,
    further_than_nearest,
    middles,
)

# What is added to the logits of tokens that are looked up, at the start. Untrained queries choose at random,
# and with an open gate nothing is learnt; near a diagonal they choose well from the first.
CLOSED_GATE, OPEN_GATE = -4.0, 0.0


class Anchors(NamedTuple):
    """The places of P's rows in the contexts of a batch.

    Attributes:
        pack: how much further than the nearest token each token is from where a row's head looks, in parts of
            the context [B, H, L, S]
        unpack: how much further than the nearest row each row's middle is from each token [B, 1, S, L]
        layout: for a look-up, the :class:`luna_fairseq.ops.luna.Layout` of the tokens
        window: for tokens that read the parts around them, the :class:`luna_fairseq.ops.luna.Window`
        row_place: for a diagonal, the middle of each row's part, in tokens [B, L]
        token_place: for a diagonal, the middle of each token, in tokens [B, S]
    """

    pack: Tensor
    unpack: Tensor
    layout: Any = None
    window: Any = None
    row_place: Any = None
    token_place: Any = None


def find_anchors(
    context: Tensor,
    packed: Tensor,
    context_padding_mask: Optional[Tensor],
    packed_padding_mask: Optional[Tensor],
    num_pack_heads: int,
    lookup: bool = False,
    local_parts: int = 0,
    diagonal: bool = False,
) -> Anchors:
    """
    Args:
        context: [S, B, C]
        packed: P [L, B, C]
        context_padding_mask: [B, S], True at padding; None where there is none
        packed_padding_mask: [B, L], True at rows of P that are left out; None where none is
        num_pack_heads: H of pack attention; the heads of a row look side by side
        lookup: also find the tokens of each part (default: False)
        local_parts: also find the tokens of so many parts around each token (default: 0)
        diagonal: also find the places of rows and tokens, in tokens (default: False)
    """
    masks = _mask_of(context, context_padding_mask), _mask_of(packed, packed_padding_mask)
    pack = further_than_nearest(anchor_distances(*masks, num_heads=num_pack_heads)).to(context.dtype)
    unpack = further_than_nearest(anchor_distances(*masks).transpose(2, 3)).to(context.dtype)
    anchors = Anchors(pack, unpack, find_layout(*masks) if lookup else None)
    if diagonal:
        row_place, token_place = middles(*masks)
        anchors = anchors._replace(row_place=row_place, token_place=token_place)
    if not local_parts:
        return anchors
    complete = context_padding_mask is None and packed_padding_mask is None
    return anchors._replace(window=find_window(*masks, local_parts, complete))


def _mask_of(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    """``mask`` [B, T] of ``x`` [T, B, C], all False where it is None."""
    return torch.zeros(x.shape[1::-1], dtype=torch.bool, device=x.device) if mask is None else mask


class LearnedStrength(nn.Module):
    """How strongly distance counts in each head: gamma, learned and positive.

    gamma = softplus(start + change), and the parameter is the change: weight decay draws gamma to its start,
    not to none.

    Args:
        strengths: gamma of each head at the start [H]

    Raises:
        InputError: a strength that is not positive
    """

    def __init__(self, strengths: Sequence[float]):
        super().__init__()
        for strength in strengths:
            check_strength(strength)
        self.change = nn.Parameter(torch.zeros(len(strengths)))
        start = [strength + math.log(-math.expm1(-strength)) for strength in strengths]
        self.register_buffer("start", torch.tensor(start))

    def strength(self) -> Tensor:
        """gamma [H]."""
        return F.softplus(self.start + self.change)


class AnchorBias(LearnedStrength):
    """What distance takes from the logits of each head: ``gamma_h distance``. Arguments and errors are those
    of :class:`LearnedStrength`."""

    def forward(self, distance: Tensor) -> Tensor:
        """[B, H, T, S] from ``distance`` [B, H or 1, T, S]."""
        return distance_bias(self.strength(), distance)


def unpack_strengths(num_heads: int) -> List[float]:
    """gamma of unpack attention's heads at the start: ``4 2^(-8 h / H)``, h = 0 .. H - 1.

    The first head reads the nearest rows, the last all of them alike, as the heads of ALiBi (Press et al.,
    2022) divide near and far among them.
    """
    return [4 * 2 ** (-8 * head / num_heads) for head in range(num_heads)]


def alibi_slopes(num_heads: int) -> List[float]:
    """``2^(-8 h / H)``, h = 1 .. H: what a position of distance costs each head with ALiBi (Press et al.,
    2022), and how fast the heads of causal attention forget at the start."""
    return [2 ** (-8 * head / num_heads) for head in range(1, num_heads + 1)]


class DiagonalPrior(LearnedStrength):
    """How strongly each head of attention to the source is drawn to the diagonal, and how steep that is: the
    change of the ratio of the lengths, 1 at the start, is learned beside that of gamma.

    Args:
        num_heads: H; gamma begins as in :func:`unpack_strengths`
    """

    def __init__(self, num_heads: int):
        super().__init__(unpack_strengths(num_heads))
        self.ratio_change = nn.Parameter(torch.zeros(num_heads))

    def ratio(self) -> Tensor:
        """r [H]."""
        return 1 + self.ratio_change

    def forward(self, query_place: Tensor, key_place: Tensor, left_out: Optional[Tensor] = None) -> Diagonal:
        """Arguments as of :func:`luna_fairseq.ops.luna.find_diagonal`."""
        return find_diagonal(self.strength(), self.ratio(), query_place, key_place, left_out)


class LookupGate(nn.Module):
    """What is added to the logits of tokens that are looked up, learned for each head; see
    :class:`AnchorBias`.

    Args:
        num_heads: H
        start: at the start
    """

    def __init__(self, num_heads: int, start: float):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(num_heads))
        self.register_buffer("start", torch.full((num_heads,), start))

    def forward(self) -> Tensor:
        """[H]."""
        return self.start + self.change


def check_strength(strength: float) -> None:
    """Raise InputError unless anchors of ``strength`` draw."""
    if not 0 < strength < math.inf:
        raise InputError(f"--anchor-strength is {strength:g}: it must be a positive number")


def placed(anchors: Optional[Anchors]) -> Anchors:
    """``anchors``. Raises InputError where an anchored attention is called step by step without them."""
    if anchors is None:
        raise InputError(
            "attention with anchors needs the places of P's rows: give what find_anchors returns"
        )
    return anchors


def check_lookup(lookup: int, anchored: bool) -> None:
    """Raise InputError for a look-up of fewer parts than none, or one without anchors."""
    if lookup < 0:
        raise InputError(f"--packed-lookup is {lookup}: it must be 0 (none) or more")
    if lookup and not anchored:
        raise InputError(
            "--packed-lookup needs --anchored-packed: only rows with a place have tokens of their own"
        )


def check_diagonal(diagonal: bool, anchored: bool) -> None:
    """Raise InputError for a diagonal without anchors."""
    if diagonal and not anchored:
        raise InputError("--diagonal-prior needs --anchored-packed: only rows with a place lie near one")


def check_local_parts(local_parts: int, anchored: bool) -> None:
    """Raise InputError for a window without a middle, or one without anchors."""
    if local_parts < 0 or local_parts and local_parts % 2 == 0:
        raise InputError(
            f"--local-parts is {local_parts}: it must be odd, a token's own part in the middle (or 0: none)"
        )
    if local_parts and not anchored:
        raise InputError(
            "--local-parts needs --anchored-packed: only rows with a place have tokens of their own"
        )
