"""Chunkwise form of causal Luna attention: equal to the naive form, in memory that grows linearly with T.

Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a small masked matrix product; what came before
the chunk enters through one M x N state per chunk instead of one per position.
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.naive import count_steps, mask_padding, unpack_weights
from luna_fairseq.ops.causal_luna.state import CausalLunaState

# A sentence up to the first length is one chunk without any state; longer input is cut into chunks of the second.
# A position costs c scores and its share, K L / c, of a state: least at c = sqrt(K L), 32 for heads of 64 and l = 16.
SINGLE_CHUNK = 128
CHUNK_SIZE = 32


def causal_outer_sum(x: Tensor, y: Tensor, z: Tensor, state: Optional[Tensor] = None) -> Tensor:
    """t f_t of equation 7, chunk by chunk: x_t (state + sum_{j<=t} y_j^T z_j).

    Args:
        x: [B, H, T, M]
        y: [B, H, T, M]
        z: [B, H, T, N]
        state: sum over earlier positions [B, H, M, N]

    Returns:
        [B, H, T, N]
    """
    T = x.size(-2)
    if T <= SINGLE_CHUNK:
        output = (x @ y.transpose(-2, -1)).tril() @ z
        return output if state is None else output + x @ state
    padding = -T % CHUNK_SIZE
    if padding:
        x, y, z = (F.pad(a, (0, 0, 0, padding)) for a in (x, y, z))
    # Heads come as views of [T, B, C]: copied once here, they are not copied by each of the products below.
    x, y, z = (a.contiguous().unflatten(-2, (-1, CHUNK_SIZE)) for a in (x, y, z))  # [B, H, T/c, c, *]
    sums = (y.transpose(-2, -1) @ z).cumsum(dim=2)
    before = F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))  # what came before each chunk [B, H, T/c, M, N]
    if state is not None:
        before = before + state.unsqueeze(2)
    output = (x @ y.transpose(-2, -1)).tril() @ z + x @ before
    return output.flatten(2, 3)[:, :, :T]


def chunk_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    state: Optional[CausalLunaState] = None,
) -> Tensor:
    """What :func:`naive_causal_luna` defines, going on from ``state`` when it is given. Returns [B, H, T, K].

    The arguments are those of the naive form; everything is summed in float32 (float64 for float64 input).
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        steps = count_steps(q, key_padding_mask, None if state is None else state.steps)
        key_sum, value_sum = (None, None) if state is None else (state.key_sum, state.value_sum)
        scaled = q.to(dtype) * q.size(-1) ** -0.5
        logits = causal_outer_sum(scaled, k.to(dtype), pack_weights, key_sum) / steps
        weights = F.dropout(unpack_weights(logits, packed_padding_mask), dropout)
        output = causal_outer_sum(weights, pack_weights, v.to(dtype), value_sum) / steps
    return output.to(q.dtype)
