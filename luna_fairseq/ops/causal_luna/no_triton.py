"""Replacement for ``triton.py`` in exported models, which do not contain the Triton kernels.

If a model folder contained the kernels, transformers would ask every user to install Triton. This module
defines the functions of ``triton.py`` that other modules import. They do not support any inputs.
"""

from typing import Any

import torch
from torch import Tensor


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Return a message that the kernels are missing, for any inputs."""
    return why_not_triton_here(device)


def why_not_triton_here(device: torch.device) -> str:
    """Return a message that the kernels are missing, for any device."""
    return "exported folders hold no Triton kernels"


def triton_causal_luna(q: Tensor, *args: Any) -> Tensor:
    """Raise a ValueError that says why the kernels cannot be used."""
    raise ValueError(
        "The Triton form of causal Luna attention cannot be used here: "
        f"{why_not_triton_here(q.device)}. Use the backend chunk."
    )
