"""Parallel causal Luna attention: all chunks of a sequence at once, for GPUs, in plain torch.

A sum over earlier positions is a masked product within a chunk, plus a product with the sums over all earlier
chunks. Both are batched matrix products, and autograd derives the backward pass. The chunkwise implementation
computes the same sums one chunk after the other. It saves memory and suits the caches of a CPU.

Shapes: batch size B, H heads, T positions in N chunks of C positions, head width K, L rows of the packed
sequence P.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import disable_autocast, masked_softmax
from luna_fairseq.ops.causal_luna.decay import decay_totals
from luna_fairseq.ops.causal_luna.inputs import count_positions, mask_padding

CHUNK_SIZE = 64


class Decays(NamedTuple):
    """Decay factors for all chunks of a sequence, for causal attention with exponential decay.

    Shapes: batch size B (1 if the examples have the same factors), H heads, N chunks of C positions.

    Attributes:
        between: decay from position j to position t of a chunk, [B, H, N, C, C], indexed by t and j. 0 for
            j > t.
        from_start: decay from the end of the previous chunk to each position, [B, H, N, C, 1].
        to_end: decay from each position to the end of its chunk, [B, H, N, C, 1].
        across: decay from the end of chunk m to the start of chunk n, [B, H, N, N], indexed by n and m. 0
            for m >= n.
    """

    between: Tensor
    from_start: Tensor
    to_end: Tensor
    across: Tensor


def parallel_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    log_decay: Optional[Tensor] = None,
) -> Tensor:
    """Compute causal Luna attention for all chunks at once, with the arguments of :func:`causal_luna`."""
    T, dtype = q.size(2), torch.promote_types(q.dtype, torch.float32)
    if q.numel() == 0:
        return q.clone()
    with disable_autocast(q.device):
        count = count_positions(q, key_padding_mask)
        steps, decays = count.clamp(min=1), None
        if log_decay is None:
            inverse = steps.to(dtype).reciprocal()
        else:
            inverse, total = decay_totals(log_decay.to(dtype), count, steps)
            decays = compute_decays(total, dtype)
        inverse = split(inverse)
        a = split(mask_padding(pack_weights.to(dtype), key_padding_mask))
        keys = split(k.to(dtype))
        values = keys if v is k else split(v.to(dtype))
        logits = causal_sums(split(q.to(dtype) * q.size(-1) ** -0.5), keys, a, decays) * inverse
        mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, None, :]
        weights = F.dropout(masked_softmax(logits, mask), dropout)
        output = causal_sums(weights, a, values, decays) * inverse
    return output.flatten(2, 3)[:, :, :T].to(q.dtype)


def split(x: Tensor) -> Tensor:
    """Split x [B, H, T, M] into N chunks of C positions, as [B, H, N, C, M], for any width M.

    The last chunk is padded with zeros.
    """
    T = x.size(2)
    size = min(CHUNK_SIZE, T)
    return F.pad(x, (0, 0, 0, -T % size)).unflatten(2, (-1, size))


def causal_sums(x: Tensor, y: Tensor, z: Tensor, decays: Optional[Decays]) -> Tensor:
    """Compute ``sum_{j<=t} D_tj (x_t . y_j) z_j`` for each position t, where D_tj is the decay from j to t.

    x and y are [B, H, N, C, M], z and the result [B, H, N, C, R], for N chunks of C positions. M and R are
    the head width K and the number of rows L of the packed sequence, or the reverse. Without decay, D_tj = 1.
    """
    products = x @ y.transpose(-2, -1)
    products = products.tril() if decays is None else products * decays.between
    sums = products @ z
    if x.size(2) == 1:
        return sums
    if decays is None:
        chunks = y.transpose(-2, -1) @ z  # [B, H, N, M, R]
        before = F.pad(chunks[:, :, :-1].cumsum(dim=2), (0, 0, 0, 0, 1, 0))
    else:
        x = x * decays.from_start
        chunks = y.transpose(-2, -1) @ (z * decays.to_end)
        before = (decays.across @ chunks.flatten(3)).unflatten(3, chunks.shape[3:])
    return sums + x @ before


def compute_decays(total: Tensor, dtype: torch.dtype) -> Decays:
    """Compute the decay factors in ``dtype`` from the cumulative log decay [B, H, T, 1] in float64."""
    size = min(CHUNK_SIZE, total.size(2))
    # Positions that pad the last chunk do not decay.
    inside = F.pad(total[..., 0], (0, -total.size(2) % size), mode="replicate").unflatten(2, (-1, size))
    ends = inside[..., -1]  # [B, H, N]
    starts = F.pad(ends[..., :-1], (1, 0))
    return Decays(
        between=lower_exp(inside[..., :, None] - inside[..., None, :], dtype),
        from_start=(inside - starts[..., None]).to(dtype).exp()[..., None],
        to_end=(ends[..., None] - inside).to(dtype).exp()[..., None],
        across=lower_exp(starts[..., :, None] - ends[..., None, :], dtype, -1),
    )


def lower_exp(logs: Tensor, dtype: torch.dtype, diagonal: int = 0) -> Tensor:
    """Return ``exp(logs)`` on and below a diagonal of the matrices [..., R, R], and 0 above the diagonal.

    ``diagonal`` is 0 for the main diagonal and -1 for the next below. Masked exponentials do not overflow.
    """
    return logs.tril(diagonal).to(dtype).exp().tril(diagonal)
