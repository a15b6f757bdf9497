"""``attention``: forms of Luna's pack and unpack attention on projected heads, and of softmax self-attention
of the same inputs."""

from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.dense import Tokens, dense_attention
from luna_fairseq.anchored.lookup import lookup_attention, naive_lookup_attention
from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias
from luna_fairseq.anchored.segments import by_segments, find_layout
from luna_fairseq.benchmark.heads import AttentionTask, Inputs, why_no_sdpa
from luna_fairseq.benchmark.task import Case, Row
from luna_fairseq.ops.attention import luna_attention

LOOK_UP = 4  # segments that a query looks up


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


def pack_and_unpack(x: Inputs, attention: Callable[..., Tensor] = luna_attention) -> Tensor:
    """P attends to the sentence, and the sentence to what P packed: q, k, v [B, H, T, K] of the sentence,
    pack_q [B, H, L, K] of P; mask [B, T] where keys are padded."""
    packed = attention(x["pack_q"], x["k"], x["v"], x.get("mask"))
    return attention(x["q"], packed, packed)


def anchored(x: Inputs, attention: Callable[..., Tensor] = luna_attention, look_up: str = "") -> Tensor:
    """The same with anchors in both, or in pack with unpack attention that looks up tokens: ``look_up`` is
    "naive" for its definition. strength is gamma [1, H, 1, 1], pack and unpack are distances [B, H, L, T] and
    [B, 1, T, L]; a look-up has its layout, which is of padding [B, T] and rows [B, L]."""
    q, k, v, strength = x["q"], x["k"], x["v"], x["strength"].flatten()
    strength = strength.detach() if look_up else strength  # of all sentences: not to be had from the last one
    bias = distance_bias(strength, x["pack"].to(q.dtype))
    packed = attention(x["pack_q"], k, v, x.get("mask"), 0.0, bias)
    if not look_up:
        return attention(q, packed, packed, None, 0.0, distance_bias(strength, x["unpack"].to(q.dtype)))
    heads, gate = (q, packed, packed), torch.zeros_like(strength)
    if look_up == "naive":
        return naive_lookup_attention(*heads, k, v, gate, LOOK_UP, x["padding"], x["rows"])[0]
    if "position" not in x:
        return dense_attention(*heads, Tokens(k, v, x["empty"], x.get("segment")), gate, LOOK_UP)[0]
    return lookup_attention(*heads, by_segments(k, v, x["position"], x["empty"]), gate, LOOK_UP).output


def softmax(x: Inputs) -> Tensor:
    """Self-attention written out."""
    return written_out(x["q"], x["k"], x["v"], x.get("mask"))


def fused(x: Inputs) -> Tensor:
    """Self-attention by torch's function; without a mask where no key is padded."""
    seen = ~x["mask"][:, None, None, :] if "mask" in x else None
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], attn_mask=seen)


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
    kinds = [{"padding": "none"}, {"padding": "half"}]

    def problem(self, case: Case) -> Inputs:
        L, T, H = case["l"], case["T"], self.args.heads
        x = self.random(q=T, k=T, v=T, pack_q=L, gradient=T)
        x["strength"] = torch.full_like(x["gradient"][:1, :, :1, :1], 4.0).requires_grad_()
        padding = torch.zeros(self.args.batch, T, dtype=torch.bool, device=self.args.device)
        if case["padding"] == "half":
            padding[1::2, (T + 1) // 2 :] = True
            x["mask"] = padding
        # What layers share where P has places: its padding, both distances, the layout of a look-up.
        x.update(padding=padding, rows=torch.zeros_like(padding[:, :1]).repeat(1, L))
        x["pack"] = beyond_nearest(anchor_distances(padding, x["rows"], H))
        x["unpack"] = beyond_nearest(anchor_distances(padding, x["rows"]).transpose(2, 3))
        layout = find_layout(padding, x["rows"])._asdict()
        return {**x, **{name: part for name, part in layout.items() if part is not None}}
