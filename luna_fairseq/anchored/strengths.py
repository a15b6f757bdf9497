"""Learned scalars of anchored attention: strengths of distance biases, ratios of diagonals, and gates."""

import math
from typing import List, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.anchored.diagonal import Diagonal, find_diagonal
from luna_fairseq.anchored.places import distance_bias
from luna_fairseq.errors import InputError

# Initial biases of the token logits in a look-up. Untrained queries choose segments at random, so an open
# gate would slow down learning. With a diagonal prior, queries choose good segments from the start.
CLOSED_GATE, OPEN_GATE = -4.0, 0.0


class LearnedStrength(nn.Module):
    """Learned positive factor gamma per head, which multiplies a distance.

    gamma = softplus(start + change), where ``change`` is the learned parameter, initialized to 0, and the
    buffer ``start`` determines the initial gamma. Weight decay therefore pulls gamma toward its initial value
    instead of toward 0.

    Args:
        strengths: initial gamma per head.

    Raises:
        InputError: A strength is not positive.

    Example:
        >>> LearnedStrength([4.0, 1.0])().detach()
        tensor([4., 1.])
    """

    def __init__(self, strengths: Sequence[float]):
        super().__init__()
        for strength in strengths:
            check_strength(strength)
        self.change = nn.Parameter(torch.zeros(len(strengths)))
        self.init = [strength + math.log(-math.expm1(-strength)) for strength in strengths]
        self.register_buffer("start", torch.tensor(self.init))

    def reset_parameters(self) -> None:
        """Reset gamma to its initial value, even if the module was created on the meta device."""
        nn.init.zeros_(self.change)
        self.start.copy_(torch.tensor(self.init))

    def strength(self) -> Tensor:
        """Return gamma, a vector with one value per head."""
        return F.softplus(self.start + self.change)

    def forward(self) -> Tensor:
        """Return gamma, a vector with one value per head.

        Unlike :meth:`strength`, calling the module runs its hooks, for example those that gather sharded
        parameters.
        """
        return self.strength()


class AnchorBias(LearnedStrength):
    """Bias of attention logits, ``-gamma * distance``, with a learned gamma per head.

    Args:
        strengths: initial gamma per head.

    Raises:
        InputError: A strength is not positive.
    """

    def forward(self, distance: Tensor) -> Tensor:  # type: ignore[override]
        """Return the bias of the attention logits for the given distances.

        Shapes: batch size B, H heads, T queries, S keys.

        Args:
            distance: distances [B, H or 1, T, S] between queries and keys, minus the distance of the nearest
                key.

        Returns:
            Bias [B, H, T, S].
        """
        return distance_bias(self.strength(), distance)


def unpack_strengths(num_heads: int) -> List[float]:
    """Return the initial strength of the distance bias in unpack attention, per head.

    In unpack attention, a token attends to the rows of the packed sequence P, each of which summarizes one
    segment of consecutive tokens. The bias is minus the strength times the distance between the token and the
    segment. The strength of head h is ``4 * 2^(-8 h / H)`` for h = 0 .. H - 1. The first head is the most
    local, and the last head attends to all rows almost equally. The slopes of ALiBi (Press et al., 2022)
    decrease across heads in the same way.

    Args:
        num_heads: number of heads H.

    Returns:
        Strengths, one per head.
    """
    return [4 * 2 ** (-8 * head / num_heads) for head in range(num_heads)]


def alibi_slopes(num_heads: int) -> List[float]:
    """Return the slope of each head in ALiBi (Press et al., 2022), ``2^(-8 h / H)`` for h = 1 .. H.

    Args:
        num_heads: number of heads H.

    Returns:
        Slopes, one per head.

    Example:
        >>> alibi_slopes(2)
        [0.0625, 0.00390625]
    """
    return [2 ** (-8 * head / num_heads) for head in range(1, num_heads + 1)]


class DiagonalPrior(LearnedStrength):
    """Learned parameters of a diagonal prior, a bias of cross-attention toward the diagonal.

    A query at target position t favours keys near source position ``r (t + 1/2)``. Each head learns r, the
    ratio of source length to target length, and the strength gamma of the bias. The initial r is 1. The
    initial gamma of head h of H is ``4 * 2^(-8 h / H)``.

    Args:
        num_heads: number of heads.
    """

    def __init__(self, num_heads: int):
        super().__init__(unpack_strengths(num_heads))
        self.ratio_change = nn.Parameter(torch.zeros(num_heads))

    def reset_parameters(self) -> None:
        """Reset gamma and the ratio to their initial values."""
        super().reset_parameters()
        nn.init.zeros_(self.ratio_change)

    def ratio(self) -> Tensor:
        """Return the ratio of source length to target length, a vector with one value per head."""
        return 1 + self.ratio_change

    def forward(  # type: ignore[override]
        self,
        query_place: Tensor,
        key_place: Tensor,
        masked: Optional[Tensor] = None,
        origin: Optional[Tensor] = None,
    ) -> Diagonal:
        """Compute the diagonal prior with the learned strengths gamma and ratios r.

        The bias of a key with centre c is ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``.

        Shapes: batch size B, T queries, N keys.

        Args:
            query_place: zero-based index t [B, T] of each query's token in the target. In a document, it
                restarts at each sentence.
            key_place: centre c [B, N] of each key, in tokens from the start of the source.
            masked: mask [B, N], True at padding keys (default: None, no padding).
            origin: number o [B, T] of source tokens before the source sentence aligned with the query's
                sentence (default: None, 0).

        Returns:
            A :class:`Diagonal`, which computes the bias [B, H, T, N] for H heads.
        """
        return find_diagonal(self.strength(), self.ratio(), query_place, key_place, masked, origin)


class LookupGate(nn.Module):
    """Learned bias added to the logits of the context tokens in look-up attention, one per head.

    In look-up attention, queries attend to the rows of the packed sequence P and to context tokens. The bias
    is ``start + change``, where ``change`` is the learned parameter, initialized to 0, and the buffer
    ``start`` contains ``init``. Weight decay therefore pulls the bias toward its initial value.

    Args:
        num_heads: number of heads.
        init: initial bias. A large negative value effectively disables the look-up at the start of training.
    """

    def __init__(self, num_heads: int, init: float):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(num_heads))
        self.init = init
        self.register_buffer("start", torch.full((num_heads,), init))

    def reset_parameters(self) -> None:
        """Reset the bias to its initial value, even if the module was created on the meta device."""
        nn.init.zeros_(self.change)
        self.start.fill_(self.init)

    def forward(self) -> Tensor:
        """Return the bias, a vector with one value per head."""
        return self.start + self.change


def check_strength(strength: float) -> None:
    """Check that the initial strength of a distance bias is positive and finite.

    Args:
        strength: initial strength.

    Raises:
        InputError: The strength is not positive, or infinite.
    """
    if not 0 < strength < math.inf:
        raise InputError(f"--anchor-strength must be a positive number, got {strength:g}")


def check_lookup(lookup: int) -> None:
    """Check that the number of segments in a look-up is not negative.

    Args:
        lookup: number of segments.

    Raises:
        InputError: The number is negative.
    """
    if lookup < 0:
        raise InputError(f"--packed-lookup must be 0 (no look-up) or more, got {lookup}")


def check_window(window: int) -> None:
    """Check that the number of segments in a window is odd, or 0 for no window.

    Args:
        window: number of segments.

    Raises:
        InputError: The number is negative, or even and not 0.
    """
    if window < 0 or window and window % 2 == 0:
        raise InputError(f"--local-parts must be an odd number of segments, or 0 for no window, got {window}")
