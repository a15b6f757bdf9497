"""Naive causal Luna attention: the definition (Luna, section 3.3), with the function f of equation 7.

This implementation is slow. Tests of the other implementations use it as their reference.
"""

from functools import partial
from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.inputs import count_steps, mask_padding
from luna_fairseq.ops.masked_softmax import masked_softmax


def causal_outer_mean(x: Tensor, y: Tensor, z: Tensor, steps: Tensor) -> Tensor:
    """Compute the function f of equation 7 of the Luna paper, f_t = x_t (1/t) sum_{j<=t} y_j^T z_j.

    For each position t, this is the product of the vector x_t and the mean of the outer products y_j^T z_j
    over the positions j up to t.

    Args:
        x: vectors x_t [.., T, M]: T positions of width M.
        y: left factors y_j of the outer products, with the same shape as ``x``.
        z: right factors z_j [.., T, N] of the outer products, of width N.
        steps: number t of positions up to each position, which broadcasts to [.., T, 1].

    Returns:
        The result [.., T, N].
    """
    outer = torch.einsum("...tm,...tn->...tmn", y, z).cumsum(dim=-3)
    return torch.einsum("...tm,...tmn->...tn", x, outer) / steps


def decayed_outer_mean(x: Tensor, y: Tensor, z: Tensor, shares: Tensor) -> Tensor:
    """Compute the weighted sum f_t = sum_{j<=t} w_tj (x_t . y_j) z_j for each position t.

    This is the function f of equation 7 of the Luna paper, with decay. The weights w_tj replace the factor
    1/t of the paper. They decrease with the distance from j to t.

    Args:
        x: vectors x_t [.., T, M]: T positions of width M.
        y: vectors y_j, with the same shape as ``x``.
        z: vectors z_j [.., T, N] of width N.
        shares: weight w_tj [.., T, T] of each position j in the mean at position t, 0 for j after t.

    Returns:
        The result [.., T, N].
    """
    return (x @ y.transpose(-2, -1) * shares) @ z


def decayed_shares(log_decay: Tensor, key_padding_mask: Optional[Tensor], T: int) -> Tensor:
    """Compute the weight of each position in the decayed mean at each later position.

    The weight of position j in the mean at position t is ``exp(log_decay n) / sum_i exp(log_decay n_i)``.
    Here n is the number of non-padding positions after j up to t, and the sum runs over all non-padding
    positions i up to t.

    Args:
        log_decay: log decay [H] per position of each of the H heads, at most 0.
        key_padding_mask: mask [B, T] for B examples, True at padding (None if there is no padding).
        T: sequence length.

    Returns:
        The weights [1 or B, H, T, T], indexed by t and j, 0 at padding and for j > t.
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
    """Compute causal Luna attention by definition, and also return the unpack weights.

    For the query q_t, keys k_j, values v_j and pack weights a_j, the output y_t at position t is::

        u_t = softmax(K^-0.5 (1 / t) sum_{j<=t} (q_t . k_j) a_j)     unpack weights [L]
        y_t = (1 / t) sum_{j<=t} (u_t . a_j) v_j                     output [K]

    Both sums are the function f of equation 7 of the Luna paper. With decay, a decayed mean replaces (1 / t)
    times the sum over positions.

    Shapes: batch size B, H heads, T positions, head width K, and L rows of the packed sequence P.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5.
        k: keys [B, H, T, K].
        v: values [B, H, T, K].
        pack_weights: pack weights [B, H, T, L], one per position and row of P.
        packed_padding_mask: mask [B, L], True at masked rows of P. If all rows are masked, the output is zero
            (default: None, no row is masked).
        key_padding_mask: mask [B, T], True at padding. Padding is excluded from the sums over positions and
            from the position counts (default: None, no padding).
        dropout: dropout probability of the unpack weights (default: 0).
        log_decay: log decay [H] per position of each head, negative (default: None, no decay, as in the Luna
            paper).

    Returns:
        - output [B, H, T, K] in the dtype of ``q``.
        - unpack weights [B, H, T, L] before dropout, in the dtype of ``q``.

    Example:
        >>> import torch
        >>> x, pack_weights = torch.randn(2, 8, 100, 64), torch.rand(2, 8, 100, 16)
        >>> output, unpack_weights = naive_causal_luna(x, x, x, pack_weights)
        >>> unpack_weights.shape
        torch.Size([2, 8, 100, 16])
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
        mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
        weights = masked_softmax(logits, mask)
        output = mean(F.dropout(weights, dropout), pack_weights, v.to(dtype))
    return output.to(q.dtype), weights.to(q.dtype)
