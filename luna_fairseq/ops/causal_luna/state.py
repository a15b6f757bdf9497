"""State of causal Luna attention during decoding, whose size does not depend on the number of positions."""

from typing import NamedTuple

from torch import Tensor


class CausalLunaState(NamedTuple):
    """Sums over all positions so far (equation 7 without the factor 1/t), and the number of positions.

    Attributes:
        key_sum: sum of k_j^T a_j [B, H, K, L], in float32 or float64
        value_sum: sum of a_j^T v_j [B, H, L, K], in float32 or float64
        steps: number of real positions so far [B], int64. In half precision the count would stop at 2,048
    """

    key_sum: Tensor
    value_sum: Tensor
    steps: Tensor
