"""The activation omega of causal pack attention: what keeps its weights positive without a softmax over
time."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


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
        raise ValueError(
            f"unknown pack activation {activation!r}; choose one of {', '.join(PACK_ACTIVATIONS)}"
        )
    rows = (pack_q * pack_k.size(-1) ** -0.5).transpose(-2, -1)
    # Flattened, the heads of a projection are a view; matmul would copy them.
    logits = torch.bmm(pack_k.flatten(0, 1), rows.flatten(0, 1)).unflatten(0, pack_k.shape[:2])
    return PACK_ACTIVATIONS[activation](logits.to(torch.promote_types(logits.dtype, torch.float32)))
