"""What anchored attention learns: how much distance counts, how steep the diagonal is, how open a gate."""

import math
from typing import List, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.anchored.diagonal import Diagonal, find_diagonal
from luna_fairseq.anchored.places import distance_bias
from luna_fairseq.errors import InputError

# What is added to the logits of tokens that are looked up, at the start. Untrained queries choose at random,
# and with an open gate nothing is learnt; near a diagonal they choose well from the first.
CLOSED_GATE, OPEN_GATE = -4.0, 0.0


class LearnedStrength(nn.Module):
    """How strongly distance counts in each head: gamma, learned and positive.

    gamma = softplus(init + delta), and the parameter is delta, by the name ``change`` in checkpoints: weight
    decay draws gamma to its initial value, not to none. The buffer ``start`` is what softplus takes there.

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
        self.init = [strength + math.log(-math.expm1(-strength)) for strength in strengths]
        self.register_buffer("start", torch.tensor(self.init))

    def reset_parameters(self) -> None:
        """Begin anew, also where the module was made on the meta device."""
        nn.init.zeros_(self.change)
        self.start.copy_(torch.tensor(self.init))

    def strength(self) -> Tensor:
        """gamma [H]."""
        return F.softplus(self.start + self.change)

    def forward(self) -> Tensor:
        """gamma [H]; computed here, so that hooks that bring the parameters from elsewhere are called."""
        return self.strength()


class AnchorBias(LearnedStrength):
    """What distance takes from the logits of each head: ``gamma_h distance``. Arguments and errors are those
    of :class:`LearnedStrength`."""

    def forward(self, distance: Tensor) -> Tensor:  # type: ignore[override]
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
    ratio of the lengths, 1 initially, is learned beside gamma.

    Args:
        num_heads: H; gamma begins as in :func:`unpack_strengths`
    """

    def __init__(self, num_heads: int):
        super().__init__(unpack_strengths(num_heads))
        self.ratio_change = nn.Parameter(torch.zeros(num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.ratio_change)

    def ratio(self) -> Tensor:
        """r [H]."""
        return 1 + self.ratio_change

    def forward(  # type: ignore[override]
        self,
        query_place: Tensor,
        key_place: Tensor,
        left_out: Optional[Tensor] = None,
        origin: Optional[Tensor] = None,
    ) -> Diagonal:
        """Arguments as of :func:`luna_fairseq.anchored.diagonal.find_diagonal`."""
        return find_diagonal(self.strength(), self.ratio(), query_place, key_place, left_out, origin)


class LookupGate(nn.Module):
    """What is added to the logits of tokens that are looked up, learned for each head; see
    :class:`AnchorBias`.

    Args:
        num_heads: H
        init: at the start of training
    """

    def __init__(self, num_heads: int, init: float):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(num_heads))
        self.init = init
        self.register_buffer("start", torch.full((num_heads,), init))

    def reset_parameters(self) -> None:
        """As of :class:`LearnedStrength`."""
        nn.init.zeros_(self.change)
        self.start.fill_(self.init)

    def forward(self) -> Tensor:
        """[H]."""
        return self.start + self.change


def check_strength(strength: float) -> None:
    """Raise InputError unless anchors of ``strength`` draw."""
    if not 0 < strength < math.inf:
        raise InputError(f"--anchor-strength is {strength:g}: it must be a positive number")


def check_lookup(lookup: int) -> None:
    """Raise InputError for a look-up of fewer segments than none."""
    if lookup < 0:
        raise InputError(f"--packed-lookup is {lookup}: it must be 0 (none) or more")


def check_window(window: int) -> None:
    """Raise InputError for a window without a middle."""
    if window < 0 or window and window % 2 == 0:
        raise InputError(
            f"--local-parts is {window}: it must be odd, a token's own segment in the middle (or 0: none)"
        )
