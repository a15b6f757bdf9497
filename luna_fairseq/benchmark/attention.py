"""``attention``: forms of Luna's pack and unpack attention on projected heads, and of softmax self-attention
of the same inputs."""

from functools import lru_cache, partial
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.lookup import lookup_attention, naive_lookup_attention
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias
from luna_fairseq.anchored.segments import by_segments, find_layout
from luna_fairseq.benchmark.heads import AttentionTask, why_no_sdpa
from luna_fairseq.benchmark.measure import Case
from luna_fairseq.benchmark.task import Row
from luna_fairseq.ops.attention import luna_attention

LOOK_UP = 4  # segments that a query looks up


class Inputs(NamedTuple):
    """q, k, v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P; padding [B, T], key_padding_mask the
    same or None; gamma [1, H, 1, 1] of anchored P, and how many heads there are: these are the last."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_q: Tensor
    padding: Tensor
    key_padding_mask: Optional[Tensor]
    strength: Tensor
    heads: int


def written_out(
    q: Tensor, k: Tensor, v: Tensor, padding: Any = None, dropout: float = 0.0, bias: Any = None
) -> Tensor:
    """Softmax attention with its weights written out: the arguments of Luna's, padding [B, S] and a bias."""
    logits = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    if bias is not None:
        logits = logits + bias
    if padding is not None:
        logits = logits.masked_fill(padding[:, None, None, :], float("-inf"))
    weights = logits.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return F.dropout(weights, dropout) @ v


def pack_and_unpack(inputs: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed."""
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask)
    return attention(inputs.q, packed, packed)


@lru_cache(maxsize=4)
def shared(padding: Tensor, heads: int, length: int) -> Any:
    """What layers share where P has places: its padding, both distances, the layout of a look-up."""
    rows = torch.zeros(len(padding), length, dtype=torch.bool, device=padding.device)
    pack = beyond_nearest(anchor_distances(padding, rows, heads))
    unpack = beyond_nearest(anchor_distances(padding, rows).transpose(2, 3))
    return rows, pack, unpack, find_layout(padding, rows)


def anchored(inputs: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = "") -> Tensor:
    """The same with anchors in both, or in pack with unpack attention that looks up tokens: ``look_up`` is
    "naive" for its definition."""
    q, strength, (L, H) = inputs.q, inputs.strength.flatten(), (inputs.pack_q.size(2), inputs.q.size(1))
    rows, pack, unpack, layout = shared(inputs.padding, inputs.heads, L)
    strength = strength.detach() if look_up else strength  # of all sentences: not to be had from the last one
    bias = distance_bias(strength, pack[:, -H:].to(q.dtype))
    packed = attention(inputs.pack_q, inputs.k, inputs.v, inputs.key_padding_mask, 0.0, bias)
    tokens, gate = (inputs.k, inputs.v), q.new_zeros(H)
    if not look_up:
        return attention(q, packed, packed, None, 0.0, distance_bias(strength, unpack.to(q.dtype)))
    if look_up == "naive":
        return naive_lookup_attention(q, packed, packed, *tokens, gate, LOOK_UP, inputs.padding, rows)[0]
    position, empty, segment = layout
    if position is None:
        return dense_attention(q, packed, packed, Tokens(*tokens, empty, segment), gate, LOOK_UP)[0]
    return lookup_attention(q, packed, packed, by_segments(*tokens, position, empty), gate, LOOK_UP).output


def softmax(inputs: Inputs) -> Tensor:
    """Self-attention written out."""
    return written_out(inputs.q, inputs.k, inputs.v, inputs.key_padding_mask)


def fused(inputs: Inputs) -> Tensor:
    """Self-attention by torch's function; without a mask where no key is padded."""
    mask = inputs.key_padding_mask
    seen = None if mask is None else ~mask[:, None, None, :]
    return F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, attn_mask=seen)


FORMS = {
    "luna-naive": Row(partial(pack_and_unpack, attention=written_out)),
    "luna": Row(pack_and_unpack, equals="luna-naive"),
    "anchored-naive": Row(partial(anchored, attention=written_out), optional=True),
    "anchored": Row(anchored, equals="anchored-naive", optional=True),
    "look-up-naive": Row(
        partial(anchored, attention=written_out, look_up="naive"), limited=True, optional=True
    ),
    "look-up": Row(partial(anchored, look_up="blocks"), equals="look-up-naive", optional=True),
    "softmax": Row(softmax, limited=True, peer=True),
    "sdpa": Row(fused, equals="softmax", why_not=why_no_sdpa, peer=True),
}


class PackAndUnpack(AttentionTask):
    """``attention``."""

    name = "attention"
    notes = """pack and unpack attention: Luna's beside softmax self-attention, written out and fused
    of projected heads; the projections, those of the packed sequence too, are left out. luna-naive writes the
    weights out; with --with, anchored adds the places of P's rows to both, and look-up reads the tokens of
    four segments in unpack attention. softmax is self-attention of the same inputs with the T x T weights
    written out, sdpa torch's scaled_dot_product_attention. padding half: every second sentence is padded in
    its second half, and the pads are masked. forward: without gradients; forward+backward: gradients of every
    input. Before anything is timed, output and gradients of luna were compared with luna-naive in float64,
    those of the others with their definitions.
    """
    table = FORMS

    def kinds(self) -> List[Case]:
        return [{**kind, "padding": padding} for kind in super().kinds() for padding in ("none", "half")]

    def problem(self, case: Case) -> Tuple[Inputs, Tensor]:
        L, T, H = case["l"], case["T"], self.args.heads
        *heads, gradient = self.random(T, T, T, L, T)
        padding = torch.zeros(self.args.batch, T, dtype=torch.bool, device=self.settings.device)
        if case["padding"] == "half":
            padding[1::2, (T + 1) // 2 :] = True
        q, k, v, pack_q = (x.requires_grad_() for x in heads)
        strength = torch.full((1, H, 1, 1), 4.0, device=q.device, dtype=q.dtype).requires_grad_()
        shared(padding, H, L)  # kept for the jobs
        mask = padding if case["padding"] == "half" else None
        return Inputs(q, k, v, pack_q, padding, mask, strength, H), gradient
