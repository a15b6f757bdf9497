"""Replacement for ``triton.py`` in exported folders, which contain no Triton kernels.

With kernels in the folder, transformers would ask every user to install Triton. This module defines the names
of ``triton.py`` that other modules import, and supports no inputs.
"""

from typing import Any

import torch
from torch import Tensor


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Return the reason why the Triton form does not support any inputs.

    Args:
        device: device of the inputs.
        dtype: dtype of the inputs, not used.
        K: head width, not used.
        L: packed length, not used.

    Returns:
        A clause with the reason.
    """
    return why_not_triton_here(device)


def why_not_triton_here(device: torch.device) -> str:
    """Return the reason why the Triton form does not support any device.

    Args:
        device: device of the inputs, not used.

    Returns:
        A clause with the reason.
    """
    return "exported folders hold no Triton kernels"


def triton_causal_luna(q: Tensor, *args: Any) -> Tensor:
    """Raise the error of ``triton.py`` for unsupported inputs.

    Args:
        q: queries [B, H, T, K].
        *args: other inputs, not used.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "The Triton form of causal Luna attention cannot be used here: "
        f"{why_not_triton_here(q.device)}. Use the backend chunk."
    )
