"""What causal Luna attention remembers between calls: constant in size, however many positions it has
seen."""

from typing import NamedTuple

from torch import Tensor


class CausalLunaState(NamedTuple):
    """Undivided sums over all positions so far (equation 7 without its 1/t), and their count.

    Attributes:
        key_sum: sum of k_j^T a_j [B, H, K, L], at least float32
        value_sum: sum of a_j^T v_j [B, H, L, K], at least float32
        steps: number of real positions so far [B], int64: a count kept in half precision would stick at 2,048
    """

    key_sum: Tensor
    value_sum: Tensor
    steps: Tensor
