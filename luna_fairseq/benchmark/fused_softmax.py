"""torch's scaled_dot_product_attention as a peer: by its own choice of kernel, and by the name of one."""

from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import DTYPES
from luna_fairseq.errors import InputError

# Names of torch.nn.attention.SDPBackend.
KERNELS = {"sdpa-flash": "FLASH_ATTENTION", "sdpa-efficient": "EFFICIENT_ATTENTION", "sdpa-math": "MATH"}
# Writes the T x T weights out.
QUADRATIC = "sdpa-math"
Sdpa = Callable[..., Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, kernel: Optional[str] = None, **options: Any) -> Tensor:
    """scaled_dot_product_attention of q, k, v [B, H, T, K] by the kernel of that name, or by torch's choice."""
    with nullcontext() if kernel is None else only(kernel):
        return F.scaled_dot_product_attention(q, k, v, **options)


def only(kernel: str) -> Any:
    """Context in which no other kernel is taken."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, kernel))


def require_sdpa(remedy: str) -> None:
    """Raise InputError, which ends with ``remedy``, when torch is older than 2.0."""
    if not hasattr(F, "scaled_dot_product_attention"):
        raise InputError(f"torch {torch.__version__} has no scaled_dot_product_attention: {remedy}")


def available(
    head_dim: int, dtype: str, settings: Settings, make_options: Callable[[int], Dict[str, Any]], what: str = ""
) -> Tuple[Dict[str, Sdpa], List[str]]:
    """The peers that take such inputs: ``sdpa``, on a GPU also every kernel that does; and notes on what is left out.

    Args:
        head_dim: K
        dtype: name of it
        settings: for the device
        make_options: further options of scaled_dot_product_attention, for a length
        what: those options in words, for the notes

    Raises:
        InputError: torch is older than 2.0
    """
    require_sdpa("sdpa needs 2.0 or newer")
    peers: Dict[str, Sdpa] = {"sdpa": sdpa}
    if not settings.device.startswith("cuda"):
        return peers, []
    notes = []
    length = 32
    x = torch.ones(2, 1, length, head_dim, dtype=DTYPES[dtype], device=settings.device, requires_grad=True)
    for name, kernel in KERNELS.items():
        try:
            sdpa(x, x, x, kernel, **make_options(length)).sum().backward()
        except (ImportError, RuntimeError):
            notes.append(f"{name} is left out{what}: it does not take {dtype}, K {head_dim} here.")
        else:
            peers[name] = partial(sdpa, kernel=kernel)
    return peers, notes
