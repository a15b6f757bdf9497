"""Pack weights and position counts, shared by all implementations of causal Luna attention."""

import math
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.absorbed import HeadProjection, absorbed_logits

# Number of rows of P that a Triton kernel processes at a time. The constant is defined here to avoid an
# import cycle between triton.py and triton_kernels.py.
BLOCK_L = 16
# Up to this number of positions (the hypotheses of a sentence in decoding), copying heads takes less time
# than the calls that avoid the copy.
FEW_POSITIONS = 8


def softplus(x: Tensor) -> Tensor:
    """Compute the softplus with base 2, log2(1 + 2^x), which equals 1 at 0."""
    return F.softplus(x, beta=math.log(2.0))


def elu(x: Tensor) -> Tensor:
    """Compute ELU(x) + 1, a positive activation that equals 1 at 0."""
    return F.elu(x) + 1.0


PACK_ACTIVATIONS = {"softplus": softplus, "elu": elu}


def pack_weights(pack_q: Tensor, pack_k: Tensor, activation: str) -> Tensor:
    """Compute the pack weights omega(pack_k pack_q^T / sqrt(K)) of causal Luna attention (Luna, section 3.3).

    pack_q: projected P [B, H, L, K], not yet scaled. pack_k: projected input [B * n, H, T, K], where the n
    adjacent hypotheses of a sentence share its P.

    Returns:
        The weights [B * n, H, T, L] in float32 (float64 for float64 inputs), because they are summed over
        positions.

    Example:
        >>> import torch
        >>> pack_weights(torch.randn(2, 8, 16, 64), torch.randn(2, 8, 100, 64), "softplus").shape
        torch.Size([2, 8, 100, 16])
    """
    if activation not in PACK_ACTIVATIONS:
        choices = ", ".join(PACK_ACTIVATIONS)
        raise ValueError(f"Expected one of {choices} as pack activation, got {activation!r}.")
    B, (N, H, T, K) = pack_q.size(0), pack_k.shape
    rows = (pack_q * K**-0.5).transpose(-2, -1)
    if N != B:
        # One product with P for all hypotheses of a sentence.
        pack_k = pack_k if T == 1 else pack_k.transpose(1, 2)  # fewer calls in a decoding step
        pack_k = pack_k.reshape(B, -1, H, K).transpose(1, 2)  # [B, H, n T, K]
    if pack_k.size(2) <= FEW_POSITIONS:
        logits = pack_k @ rows
    else:
        # Flattened over B and H, the heads of a projection are a view; matmul would copy them.
        logits = torch.bmm(pack_k.flatten(0, 1), rows.flatten(0, 1)).unflatten(0, pack_k.shape[:2])
    weights = PACK_ACTIVATIONS[activation](at_least_float32(logits))
    if N != B:
        weights = weights.transpose(1, 2)  # [B, n T, H, L]
        weights = weights.reshape(N, H, 1, -1) if T == 1 else weights.reshape(N, T, H, -1).transpose(1, 2)
    return weights


def absorbed_pack_weights(pack_q: Tensor, x: Tensor, key: HeadProjection, activation: str) -> Tensor:
    """Compute the pack weights [B, H, T, L] without projecting the input x [T, B, C] to keys.

    pack_q: projected P [B, H, L, K]. key: key projection, split into heads.
    """
    return PACK_ACTIVATIONS[activation](absorbed_logits(pack_q, x, key).transpose(2, 3).contiguous())


def at_least_float32(x: Tensor) -> Tensor:
    """Convert a tensor to float32, unless it is already float32 or float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def mask_padding(pack_weights: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Set the pack weights [B, H, T, L] of padding to zero, so that it does not contribute to the sums."""
    if key_padding_mask is None:
        return pack_weights
    return pack_weights.masked_fill(key_padding_mask[:, None, :, None], 0.0)


def count_positions(q: Tensor, key_padding_mask: Optional[Tensor], before: Optional[Tensor] = None) -> Tensor:
    """Count the positions up to and including each position of q [B, H, T, K], excluding padding.

    key_padding_mask: mask [B, T], True at padding. before: number of positions [B] in earlier calls. The
    counts are integers [B or 1, 1, T, 1], 0 before the first token.
    """
    if key_padding_mask is None:
        count = torch.arange(1, q.size(-2) + 1, device=q.device)[None, :]
    else:
        count = (~key_padding_mask).cumsum(dim=1)
    if before is not None:
        count = count + before[:, None]
    return count[:, None, :, None]


def count_steps(q: Tensor, key_padding_mask: Optional[Tensor], before: Optional[Tensor] = None) -> Tensor:
    """Return :func:`count_positions`, but at least 1: the divisor t of equation 7 of the Luna paper."""
    return count_positions(q, key_padding_mask, before).clamp(min=1)
