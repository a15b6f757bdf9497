"""The definition of Luna's causal attention (section 3.3): the function f of equation 7, twice. Slow; what
the other forms are held to."""

from functools import partial
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.inputs import count_steps, mask_padding
from luna_fairseq.ops.masked_softmax import masked_softmax


def causal_outer_mean(x: Tensor, y: Tensor, z: Tensor, steps: Tensor) -> Tensor:
    """f(X, Y, Z) of equation 7: f_t = x_t (1/t) sum_{j<=t} y_j^T z_j.

    Args:
        x: [.., T, M]
        y: [.., T, M]
        z: [.., T, N]
        steps: t, the number of positions in the sum, broadcast to [.., T, 1]

    Returns:
        [.., T, N]
    """
    outer = torch.einsum("...tm,...tn->...tmn", y, z).cumsum(dim=-3)
    return torch.einsum("...tm,...tmn->...tn", x, outer) / steps


def decayed_outer_mean(x: Tensor, y: Tensor, z: Tensor, shares: Tensor) -> Tensor:
    """f(X, Y, Z) that forgets: f_t = sum_{j<=t} w_tj (x_t . y_j) z_j.

    Args:
        x, y, z: as of :func:`causal_outer_mean`
        shares: w, of every position in the mean at every later one [.., T, T]

    Returns:
        [.., T, N]
    """
    return (x @ y.transpose(-2, -1) * shares) @ z


def decayed_shares(log_decay: Tensor, key_padding_mask: Optional[Tensor], T: int) -> Tensor:
    """w_tj = exp(log_decay n) for the position that n real positions lie behind, divided by their sum over
    j.

    Args:
        log_decay: [H], at most 0
        key_padding_mask: [B, T]
        T: number of positions

    Returns:
        [1 or B, H, T, T], 0 for padding and for what comes after t
    """
    there = log_decay.new_ones(1, T) if key_padding_mask is None else (~key_padding_mask).to(log_decay.dtype)
    place = there.cumsum(dim=1)
    behind = (place[:, None, :, None] - place[:, None, None, :]).clamp(min=0)
    shares = torch.exp(log_decay[:, None, None] * behind).tril() * there[:, None, None, :]
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
    """A_unpack = softmax(f(Q, K, A_pack)), Y = f(A_unpack, A_pack, V).

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5
        k: keys [B, H, T, K]
        v: values [B, H, T, K]
        pack_weights: A_pack [B, H, T, L]
        packed_padding_mask: [B, L], True at rows of P that are left out; all of them left out gives zeros
        key_padding_mask: [B, T], True at padded positions, which add nothing and are not counted in t
        dropout: probability with which an unpack weight is dropped
        log_decay: of each head per position [H], below 0; None where nothing decays, as in the paper

    Returns:
        output [B, H, T, K] and the unpack weights before dropout [B, H, T, L], in the type of ``q``
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        if log_decay is None:
            mean = partial(causal_outer_mean, steps=count_steps(q, key_padding_mask))
        else:
            shares = decayed_shares(log_decay.to(dtype), key_padding_mask, q.size(2))
            mean = partial(decayed_outer_mean, shares=shares)
        logits = mean(q.to(dtype) * q.size(-1) ** -0.5, k.to(dtype), pack_weights)
        excluded = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
        weights = masked_softmax(logits, excluded)
        output = mean(F.dropout(weights, dropout), pack_weights, v.to(dtype))
    return output.to(q.dtype), weights.to(q.dtype)
