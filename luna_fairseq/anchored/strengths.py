"""Learned scalars of anchored attention, one per head: strengths of biases, length ratios, and gates.

Each scalar is computed from a constant start plus a learned change that is initially 0 (a strength is the
softplus of the sum). Weight decay therefore pulls a scalar toward its initial value instead of toward 0.
Shapes: batch size B, H heads.
"""

import math
from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.anchored.places import distance_bias
from luna_fairseq.errors import InputError

# Initial values of LookupGate. Without a diagonal prior the gate starts closed, because untrained queries
# choose segments at random. With a diagonal prior, queries choose good segments from the start.
CLOSED_GATE, OPEN_GATE = -4.0, 0.0


class LearnedStrength(nn.Module):
    """Learned positive factor gamma of each head, for attention biases such as ``-gamma * distance``.

    Gamma is softplus(start + change), with a constant ``start`` and a learned ``change``. ``strengths`` are
    the initial values of gamma.
    """

    def __init__(self, strengths: Sequence[float]):
        super().__init__()
        for strength in strengths:
            if not 0 < strength < math.inf:
                raise InputError(f"--anchor-strength must be a positive number, got {strength:g}")
        self.change = nn.Parameter(torch.zeros(len(strengths)))
        # Inverse of softplus, log(e^strength - 1), in a form that does not overflow.
        self.init = [strength + math.log(-math.expm1(-strength)) for strength in strengths]
        self.register_buffer("start", torch.tensor(self.init))

    def reset_parameters(self) -> None:
        """Reset gamma to its initial value, also after a module on the meta device was materialized."""
        nn.init.zeros_(self.change)
        self.start.copy_(torch.tensor(self.init))

    def strength(self) -> Tensor:
        """Return the factor gamma [H], one value per head."""
        return F.softplus(self.start + self.change)

    def forward(self) -> Tensor:
        """Return gamma [H]. Unlike :meth:`strength`, a call runs the hooks that gather sharded parameters."""
        return self.strength()


class AnchorBias(LearnedStrength):
    """Bias ``-gamma * distance`` of attention logits, with one learned factor gamma per head."""

    def forward(self, distance: Tensor) -> Tensor:  # type: ignore[override]
        """Return the bias [B, H, T, S] for distances [B, H or 1, T, S] of T queries and S keys."""
        return distance_bias(self.strength(), distance)


def unpack_strengths(num_heads: int) -> List[float]:
    """Return initial strengths ``4 * 2^(-8 h / H)`` of the distance bias in unpack attention.

    Head h = 0 is the most local. The last of 8 heads has 0.03, almost no preference for near segments.
    """
    return [4 * 2 ** (-8 * head / num_heads) for head in range(num_heads)]


def alibi_slopes(num_heads: int) -> List[float]:
    """Return the slopes ``2^(-8 h / H)`` of ALiBi (Press et al., 2022) for heads h = 1 .. H."""
    return [2 ** (-8 * head / num_heads) for head in range(1, num_heads + 1)]


class DiagonalPrior(LearnedStrength):
    """Parameters of a diagonal prior, an attention bias toward source tokens near an expected position.

    Each head learns a strength gamma and a ratio r of source to target length, which is initially 1.
    """

    def __init__(self, num_heads: int):
        super().__init__(unpack_strengths(num_heads))
        self.ratio_change = nn.Parameter(torch.zeros(num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.ratio_change)

    def ratio(self) -> Tensor:
        """Return the ratio r [H] of source length to target length."""
        return 1 + self.ratio_change

    def forward(self) -> Tuple[Tensor, Tensor]:
        """Return the strength gamma [H] and the ratio r [H]."""
        return self.strength(), self.ratio()


class LookupGate(nn.Module):
    """Learned bias, one value per head, on the logits of the tokens that queries look up.

    A bias b multiplies the unnormalized weight of each token by e^b. The initial bias ``init`` is
    ``OPEN_GATE`` (0) or ``CLOSED_GATE`` (-4), which nearly disables the look-up at the start of training.
    """

    def __init__(self, num_heads: int, init: float):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(num_heads))
        self.init = init
        self.register_buffer("start", torch.full((num_heads,), init))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.change)
        self.start.fill_(self.init)

    def forward(self) -> Tensor:
        return self.start + self.change


def check_lookup(lookup: int) -> None:
    if lookup < 0:
        raise InputError(f"--packed-lookup must be 0 (no look-up) or more, got {lookup}")


def check_window(window: int) -> None:
    if window < 0 or window and window % 2 == 0:
        raise InputError(f"--local-parts must be an odd number of segments, or 0 for no window, got {window}")
