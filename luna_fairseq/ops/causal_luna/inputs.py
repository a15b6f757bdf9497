"""What goes into every form of causal Luna attention: pack weights, and the number of positions that a mean
is over."""

import math
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK_L = 16  # rows of P at a time in Triton's kernels; here, so that they import no circle with triton.py


def softplus(x: Tensor) -> Tensor:
    """log2(1 + 2^x), any shape. Base 2 makes f(0) = 1."""
    return F.softplus(x, beta=math.log(2.0))


def elu(x: Tensor) -> Tensor:
    """elu(x) + 1, any shape."""
    return F.elu(x) + 1.0


PACK_ACTIVATIONS = {"softplus": softplus, "elu": elu}


def pack_weights(pack_q: Tensor, pack_k: Tensor, activation: str) -> Tensor:
    """A_pack = omega(pack_k pack_q^T / sqrt(K)), section 3.3: position t's weight for each row of P.

    Args:
        pack_q: projected P [B, H, L, K], not yet scaled
        pack_k: projected input [B, H, T, K]
        activation: ``softplus`` or ``elu``

    Returns:
        weights [B, H, T, L] in float32 (float64 for float64 input): all that follows accumulates over time

    Raises:
        ValueError: unknown activation
    """
    if activation not in PACK_ACTIVATIONS:
        choices = ", ".join(PACK_ACTIVATIONS)
        raise ValueError(f"unknown pack activation {activation!r}; choose one of {choices}")
    rows = (pack_q * pack_k.size(-1) ** -0.5).transpose(-2, -1)
    # Flattened, the heads of a projection are a view; matmul would copy them.
    logits = torch.bmm(pack_k.flatten(0, 1), rows.flatten(0, 1)).unflatten(0, pack_k.shape[:2])
    return PACK_ACTIVATIONS[activation](logits.to(torch.promote_types(logits.dtype, torch.float32)))


def mask_padding(pack_weights: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Pack weights [B, H, T, L] with zeros at padded positions: A_pack is a factor of both sums over time."""
    if key_padding_mask is None:
        return pack_weights
    return pack_weights.masked_fill(key_padding_mask[:, None, :, None], 0.0)


def count_positions(q: Tensor, key_padding_mask: Optional[Tensor], before: Optional[Tensor] = None) -> Tensor:
    """Real positions up to and including each one, as integers.

    Args:
        q: [B, H, T, K], for its length and device
        key_padding_mask: [B, T]
        before: [B], positions seen in earlier calls

    Returns:
        [1 or B, 1, T, 1], 0 at padding before the first of them
    """
    if key_padding_mask is None:
        count = torch.arange(1, q.size(-2) + 1, device=q.device)[None, :]
    else:
        count = (~key_padding_mask).cumsum(dim=1)
    if before is not None:
        count = count + before[:, None]
    return count[:, None, :, None]


def count_steps(q: Tensor, key_padding_mask: Optional[Tensor], before: Optional[Tensor] = None) -> Tensor:
    """t of equation 7 [1 or B, 1, T, 1]: what :func:`count_positions` counts, at least 1."""
    return count_positions(q, key_padding_mask, before).clamp(min=1)
