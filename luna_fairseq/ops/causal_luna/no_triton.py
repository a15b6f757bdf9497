"""Stand-in for the Triton kernels in exported folders.

An exported folder holds no kernels: transformers would ask every user of the folder to install Triton. This
module has the names of ``triton.py`` that other modules import, and supports no inputs.
"""

from typing import Any

import torch
from torch import Tensor


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Return the reason why there are no kernels, for all inputs."""
    return why_not_triton_here(device)


def why_not_triton_here(device: torch.device) -> str:
    """Return the reason why there are no kernels, on all devices."""
    return "exported folders hold no Triton kernels"


def triton_causal_luna(q: Tensor, *args: Any) -> Tensor:
    """Raise ValueError, as the kernels do for inputs that they do not support."""
    raise ValueError(
        "The Triton form of causal Luna attention cannot be used here: "
        f"{why_not_triton_here(q.device)}. Use the backend chunk."
    )
