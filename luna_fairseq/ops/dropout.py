"""Dropout with masks that are drawn quickly on any CPU.

On a CPU, torch draws masks in parallel only with Intel's MKL on Intel CPUs. On other CPUs, it computes one
random number after the other, which takes 12 ns for each element on an AMD EPYC. Here, each 64-bit random
number determines the masks of four elements.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import is_recording_graph

STEPS = 1 << 16  # number of values of 16 random bits


def dropout(x: Tensor, probability: float) -> Tensor:
    """Set elements to zero with the given probability, and divide the others by 1 - probability.

    On a CPU, the probability is rounded to a multiple of 2^-16. Masks depend only on torch's random seed.

    Example:
        >>> import torch
        >>> dropout(torch.ones(10000), 0.25).unique()
        tensor([0.0000, 1.3333])
    """
    threshold = round(probability * STEPS)
    runs_on_cpu = x.device.type == "cpu" and not is_recording_graph()
    if not runs_on_cpu or not 0 < threshold < STEPS:
        return F.dropout(x, probability)
    quarter = -(-x.numel() // 4)
    bits = torch.empty(quarter, dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= threshold - STEPS // 2
    return x * keep.to(x.dtype).mul_(STEPS / (STEPS - threshold))
