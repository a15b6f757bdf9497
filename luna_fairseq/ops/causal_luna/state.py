"""Decoding state of causal Luna attention, whose size does not depend on the number of positions."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor


class CausalLunaState(NamedTuple):
    """Decoding state of causal Luna attention: sums over all positions so far, and the number of positions.

    The sums are those of equation 7 of the Luna paper, without the factor 1/t. k_j is the key, v_j the value
    and a_j the pack weights of position j, one weight per row of the packed sequence P.

    Shapes: batch size B, H heads, head width K, and L rows of P.

    Attributes:
        key_sum: sum [B, H, K, L] of the outer products k_j^T a_j over positions j, in float32 or float64.
        value_sum: sum [B, H, L, K] of the outer products a_j^T v_j over positions j, in float32 or float64.
        steps: number of positions [B] so far, excluding padding. The dtype is int64, because a count in half
            precision would stop at 2,048.
    """

    key_sum: Tensor
    value_sum: Tensor
    steps: Tensor


class TokenCounts(NamedTuple):
    """Number t of positions so far, excluding padding, and its reciprocal. All layers share the counts.

    Attributes:
        before: number of positions [B] in earlier calls, int64.
        steps: number t [B] of positions, int64.
        divisor: t [B, 1, 1, 1] in the dtype of the sums; 1 if t is 0.
        mean: factor 1/t [B, 1, 1, 1] of equation 7 of the Luna paper.
    """

    before: Tensor
    steps: Tensor
    divisor: Tensor
    mean: Tensor

    @classmethod
    def compute(
        cls, before: Tensor, length: int, padding_mask: Optional[Tensor], dtype: torch.dtype
    ) -> "TokenCounts":
        """Return the counts after ``length`` more positions, without the padding in padding_mask [B, length].

        dtype: dtype of the keys. The sums have this dtype, or float32 if the keys are in half precision.
        """
        steps = before + (length if padding_mask is None else (~padding_mask).sum(dim=1))
        dtype = torch.promote_types(dtype, torch.float32)
        divisor = steps.clamp(min=1).to(dtype).view(-1, 1, 1, 1)
        return cls(before, steps, divisor, divisor.reciprocal())
