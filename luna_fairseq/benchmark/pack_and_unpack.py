"""Forms of Luna's pack and unpack attention on projected heads, and of softmax self-attention of the same
inputs.
"""

from typing import Callable, Dict, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.benchmark import fused_softmax
from luna_fairseq.benchmark.heads import Problem, Shape, random_heads
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.ops.luna import luna_attention, naive_attention


class Inputs(NamedTuple):
    """q, k, v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P; key_padding_mask [B, T] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_q: Tensor
    key_padding_mask: Optional[Tensor]


def make_inputs(shape: Shape, length: int, settings: Settings) -> Problem:
    """Inputs that want gradients, and the gradient of the output [B, H, T, K]."""
    lengths = (length, length, length, shape.projection_length, length)
    *heads, gradient = random_heads(lengths, shape, settings)
    mask = None
    if shape.padded:
        mask = torch.zeros(shape.batch, length, dtype=torch.bool, device=settings.device)
        mask[1::2, (length + 1) // 2 :] = True
    q, k, v, pack_q = (x.requires_grad_() for x in heads)
    return Inputs(q, k, v, pack_q, mask), gradient


def naive(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Optional[Tensor] = None) -> Tensor:
    """Softmax attention with its weights written out."""
    return naive_attention(q, k, v, key_padding_mask)[0]


def pack_and_unpack(inputs: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed."""
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask)
    return attention(inputs.q, packed, packed)


def softmax(inputs: Inputs) -> Tensor:
    """Self-attention written out."""
    return naive(inputs.q, inputs.k, inputs.v, inputs.key_padding_mask)


def fused(inputs: Inputs, kernel: Optional[str] = None) -> Tensor:
    """Self-attention by one of torch's kernels; without a mask where no key is padded."""
    mask = inputs.key_padding_mask
    options: Dict[str, Tensor] = {} if mask is None else {"attn_mask": ~mask[:, None, None, :]}
    return fused_softmax.sdpa(inputs.q, inputs.k, inputs.v, kernel, **options)
