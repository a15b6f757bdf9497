"""State of causal Luna attention during decoding, with a size that does not depend on the position."""

from typing import NamedTuple

import torch
from torch import Tensor


class CausalLunaState(NamedTuple):
    """State of causal Luna attention, with the sums over all positions so far and their number.

    The sums are those of equation 7 without the factor 1/t.

    Attributes:
        key_sum: sum of k_j^T a_j over positions j [B, H, K, L], in float32 or float64. Here k_j is the key of
            position j and a_j are its pack weights
        value_sum: sum of a_j^T v_j over positions j [B, H, L, K], in float32 or float64. Here v_j is the
            value of position j
        steps: number of real positions so far [B], int64. In half precision the count would stop at 2,048
    """

    key_sum: Tensor
    value_sum: Tensor
    steps: Tensor


class TokenCounts(NamedTuple):
    """Number t of real positions up to the new positions. Equal in all layers, and computed once for them.

    Attributes:
        steps: number of real positions [B], int64
        mean: factor 1/t of equation 7 [B, 1, 1, 1], in the dtype of the sums; 1 if t is 0
    """

    steps: Tensor
    mean: Tensor

    @classmethod
    def from_steps(cls, steps: Tensor, dtype: torch.dtype) -> "TokenCounts":
        """Compute the factors for numbers of real positions.

        Args:
            steps: number of real positions [B]
            dtype: dtype of the sums, float32 or float64
        """
        return cls(steps, steps.clamp(min=1).to(dtype).reciprocal().view(-1, 1, 1, 1))
