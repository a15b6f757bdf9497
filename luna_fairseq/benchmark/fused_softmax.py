"""torch's scaled_dot_product_attention as a peer: by its own choice of kernel, and by the name of one."""

from contextlib import nullcontext
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.heads import Shape
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import DTYPES

NO_SDPA = f"torch {torch.__version__} has no scaled_dot_product_attention, which came with 2.0"


def sdpa(q: Tensor, k: Tensor, v: Tensor, kernel: Optional[str] = None, **options: Any) -> Tensor:
    """scaled_dot_product_attention of q, k, v [B, H, T, K] by a kernel of torch.nn.attention.SDPBackend, or
    torch's choice.
    """
    with nullcontext() if kernel is None else only(kernel):
        return F.scaled_dot_product_attention(q, k, v, **options)


def only(kernel: str) -> Any:
    """Context in which no other kernel is taken."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, kernel))


def why_no_sdpa(*unused: Any) -> str:
    """Why it does not run in this torch, or nothing."""
    return "" if hasattr(F, "scaled_dot_product_attention") else NO_SDPA


def why_no_kernel(shape: Shape, settings: Settings, kernel: str, is_causal: bool = False) -> str:
    """Why the kernel does not take such inputs, or nothing; it is tried on small ones."""
    if why_no_sdpa() or not settings.device.startswith("cuda"):
        return why_no_sdpa() or "a kernel is chosen by name on a GPU only"
    length = 32
    x = torch.ones(
        2, 1, length, shape.head_dim, dtype=DTYPES[shape.dtype], device=settings.device, requires_grad=True
    )
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool, device=settings.device) if shape.padded else None
    try:
        sdpa(x, x, x, kernel, attn_mask=mask, is_causal=is_causal).sum().backward()
    except (ImportError, RuntimeError):
        padding = " with padding" if shape.padded else ""
        return f"it does not take {shape.dtype}, K {shape.head_dim}{padding} here"
    return ""
