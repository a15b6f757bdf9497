"""Replacement for ``triton.py`` in exported models, which do not contain the Triton kernels.

If a model folder contained the kernels, transformers would ask every user to install Triton. This module
defines the functions of ``triton.py`` that other modules import. They do not support any inputs.
"""

from typing import Any

import torch
from torch import Tensor


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Return the reason why the kernels cannot be used, which is the same for all inputs."""
    return why_not_triton_here(device)


def why_not_triton_here(device: torch.device) -> str:
    """Return the reason why the kernels cannot be used, which is the same for all devices."""
    return "exported folders hold no Triton kernels"


def triton_causal_luna(q: Tensor, *args: Any) -> Tensor:
    """Raise a ValueError that says why the kernels cannot be used."""
    raise ValueError(
        "The Triton form of causal Luna attention cannot be used here: "
        f"{why_not_triton_here(q.device)}. Use the backend chunk."
    )
