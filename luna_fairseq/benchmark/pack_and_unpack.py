"""Forms of Luna's pack and unpack attention on projected heads, plain, anchored, with a look-up, with local
parts, and of softmax self-attention of the same inputs.
"""

from typing import Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.lookup import lookup_attention, naive_lookup_attention
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias
from luna_fairseq.anchored.segments import by_segments, find_layout, token_positions
from luna_fairseq.anchored.window import Window, find_window, naive_window_attention, window_attention
from luna_fairseq.benchmark import fused_softmax
from luna_fairseq.benchmark.heads import Problem, Shape, random_heads
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.ops.attention import luna_attention, naive_attention

# Segments that a query looks up, and parts around it that a token reads.
LOOK_UP = 4
LOCAL = 3


class Inputs(NamedTuple):
    """q, k, v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P; key_padding_mask [B, T] or None; with
    anchors, what layers share: distances [B, H, L, T] and [B, 1, T, L], the tokens of each part [B, L, W],
    the window of LOCAL parts and the layout of a look-up; and gamma [1, H, 1, 1]."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_q: Tensor
    key_padding_mask: Optional[Tensor]
    pack_distance: Tensor
    unpack_distance: Tensor
    position: Tensor
    empty: Tensor
    window_place: Tensor
    window_distance: Tensor
    window_left_out: Tensor
    layout_position: Optional[Tensor]
    layout_empty: Tensor
    layout_part: Optional[Tensor]
    strength: Tensor


def make_inputs(shape: Shape, length: int, settings: Settings) -> Problem:
    """Inputs that want gradients, and the gradient of the output [B, H, T, K]."""
    lengths = (length, length, length, shape.projection_length, length)
    *heads, gradient = random_heads(lengths, shape, settings)
    mask = None
    if shape.padded:
        mask = torch.zeros(shape.batch, length, dtype=torch.bool, device=settings.device)
        mask[1::2, (length + 1) // 2 :] = True
    q, k, v, pack_q = (x.requires_grad_() for x in heads)
    everything = (
        torch.zeros(shape.batch, length, dtype=torch.bool, device=settings.device) if mask is None else mask
    )
    rows = torch.zeros(shape.batch, shape.projection_length, dtype=torch.bool, device=settings.device)
    distances = (
        beyond_nearest(anchor_distances(everything, rows, shape.heads)),
        beyond_nearest(anchor_distances(everything, rows).transpose(2, 3)),
    )
    strength = torch.full((1, shape.heads, 1, 1), 4.0, device=settings.device, dtype=q.dtype).requires_grad_()
    window = find_window(everything, rows, LOCAL)
    of_window = window.place, window.distance, window.left_out
    shared = (*token_positions(everything, rows), *of_window, *find_layout(everything, rows))
    placed = (*(x.to(q.dtype) for x in distances), *shared, strength)
    return Inputs(q, k, v, pack_q, mask, *placed), gradient


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Softmax attention with its weights written out."""
    return naive_attention(q, k, v, key_padding_mask, dropout, bias)[0]


def pack_and_unpack(inputs: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed."""
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask)
    return attention(inputs.q, packed, packed)


def anchored(inputs: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """The same with anchors in both, as in self-attention."""
    bias = distance_bias(inputs.strength.flatten(), inputs.pack_distance)
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask, 0.0, bias)
    bias = distance_bias(inputs.strength.flatten(), inputs.unpack_distance)
    return attention(inputs.q, packed, packed, None, 0.0, bias)


def packed_by_anchors(inputs: Inputs) -> Tensor:
    """What P packs [B, H, L, K] where a look-up follows."""
    bias = distance_bias(inputs.strength.detach().flatten(), inputs.pack_distance)
    return luna_attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask, 0.0, bias)


def look_up(inputs: Inputs) -> Tensor:
    """Anchored pack attention, and unpack attention that looks up the tokens of LOOK_UP parts."""
    packed = packed_by_anchors(inputs)
    if inputs.layout_position is None:
        tokens = Tokens(inputs.k, inputs.v, inputs.layout_empty, inputs.layout_part)
        return dense_attention(inputs.q, packed, packed, tokens, gate(inputs), LOOK_UP)[0]
    parts = by_segments(inputs.k, inputs.v, inputs.layout_position, inputs.layout_empty)
    return lookup_attention(inputs.q, packed, packed, parts, gate(inputs), LOOK_UP).output


def naive_look_up(inputs: Inputs) -> Tensor:
    """The same by its definition."""
    packed = packed_by_anchors(inputs)
    return naive_lookup_attention(
        inputs.q, packed, packed, inputs.k, inputs.v, gate(inputs), LOOK_UP, *_masks(inputs, packed)
    )[0]


def local(inputs: Inputs) -> Tensor:
    """Anchored pack attention, and unpack attention that reads LOCAL parts around each token."""
    packed, strength = packed_by_anchors(inputs), inputs.strength.detach().flatten()
    full = inputs.key_padding_mask is None and inputs.position[0].numel() == inputs.q.size(2)
    window = Window(
        inputs.position, inputs.window_place, inputs.window_distance, inputs.window_left_out, full
    )
    output, _ = window_attention(inputs.q, packed, packed, inputs.k, inputs.v, strength, window)
    return _of_tokens(output, inputs)


def naive_local(inputs: Inputs) -> Tensor:
    """The same by its definition."""
    packed, strength = packed_by_anchors(inputs), inputs.strength.detach().flatten()
    read = inputs.q, packed, packed, inputs.k, inputs.v, strength
    return _of_tokens(naive_window_attention(*read, LOCAL, *_masks(inputs, packed))[0], inputs)


def _of_tokens(output: Tensor, inputs: Inputs) -> Tensor:
    """Padding has no place, and what it reads no meaning."""
    mask = inputs.key_padding_mask
    return output if mask is None else output.masked_fill(mask[:, None, :, None], 0.0)


def _masks(inputs: Inputs, packed: Tensor) -> Tuple[Tensor, Tensor]:
    mask = inputs.key_padding_mask
    if mask is None:
        mask = torch.zeros(inputs.k.shape[0:3:2], dtype=torch.bool, device=inputs.k.device)
    return mask, torch.zeros(packed.shape[0:3:2], dtype=torch.bool, device=mask.device)


def gate(inputs: Inputs) -> Tensor:
    """What is added to the logits of tokens [H]: nothing."""
    return inputs.q.new_zeros(inputs.q.size(1))


def softmax(inputs: Inputs) -> Tensor:
    """Self-attention written out."""
    return naive(inputs.q, inputs.k, inputs.v, inputs.key_padding_mask)


def fused(inputs: Inputs, kernel: Optional[str] = None) -> Tensor:
    """Self-attention by one of torch's kernels; without a mask where no key is padded."""
    mask = inputs.key_padding_mask
    options: Dict[str, Tensor] = {} if mask is None else {"attn_mask": ~mask[:, None, None, :]}
    return fused_softmax.sdpa(inputs.q, inputs.k, inputs.v, kernel, **options)
