"""Naive causal Luna attention: the definition (Luna, section 3.3), with the function f of equation 7.

This implementation is slow, and serves as the reference for tests. Shapes: batch size B, H heads of width K,
T positions, L rows of the packed sequence P. M and N are any widths.
"""

from functools import partial
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import disable_autocast, masked_softmax
from luna_fairseq.ops.causal_luna.inputs import count_steps, mask_padding


def causal_outer_mean(x: Tensor, y: Tensor, z: Tensor, steps: Tensor) -> Tensor:
    """Compute the function f of equation 7, causal linear attention: ``x_t sum_{j<=t} y_j^T z_j / steps_t``.

    x and y are [..., T, M], z and the result [..., T, N]. ``steps`` [..., T, 1] counts the tokens up to t.
    """
    outer = torch.einsum("...tm,...tn->...tmn", y, z).cumsum(dim=-3)
    return torch.einsum("...tm,...tmn->...tn", x, outer) / steps


def decayed_outer_mean(x: Tensor, y: Tensor, z: Tensor, shares: Tensor) -> Tensor:
    """Compute ``sum_{j<=t} w_tj (x_t . y_j) z_j`` at each position t, with the weights w = ``shares``.

    x and y are [..., T, M], z and the result [..., T, N], and ``shares`` is [..., T, T], indexed by t and j.
    """
    return (x @ y.transpose(-2, -1) * shares) @ z


def decayed_shares(log_decay: Tensor, key_padding_mask: Optional[Tensor], T: int) -> Tensor:
    """Compute the weight of position j in the decayed mean at position t, as a tensor [B or 1, H, T, T].

    The weight is ``exp(log_decay * n_j)``, divided by the sum of these factors over all tokens up to t. n_j
    is the number of tokens after position j up to t. The weight is 0 at padding and for j > t.
    """
    is_real = (
        log_decay.new_ones(1, T) if key_padding_mask is None else (~key_padding_mask).to(log_decay.dtype)
    )
    count = is_real.cumsum(dim=1)
    distance = (count[:, None, :, None] - count[:, None, None, :]).clamp(min=0)
    shares = torch.exp(log_decay[:, None, None] * distance).tril() * is_real[:, None, None, :]
    return shares / shares.sum(dim=-1, keepdim=True).clamp(min=1)


def naive_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    log_decay: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """Compute causal Luna attention without optimizations, and also return the unpack weights.

    :func:`luna_fairseq.ops.causal_luna` describes the formula and the arguments.

    Returns:
        Output [B, H, T, K] and weights [B, H, T, L] before dropout, in the dtype of ``q``.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with disable_autocast(q.device):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        if log_decay is None:
            mean = partial(causal_outer_mean, steps=count_steps(q, key_padding_mask))
        else:
            shares = decayed_shares(log_decay.to(dtype), key_padding_mask, q.size(2))
            mean = partial(decayed_outer_mean, shares=shares)
        logits = mean(q.to(dtype) * q.size(-1) ** -0.5, k.to(dtype), pack_weights)
        mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
        weights = masked_softmax(logits, mask)
        output = mean(F.dropout(weights, dropout), pack_weights, v.to(dtype))
    return output.to(q.dtype), weights.to(q.dtype)
