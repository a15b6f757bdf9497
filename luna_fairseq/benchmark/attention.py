"""``attention``: forms of Luna's pack and unpack attention on projected heads, and of softmax self-attention
of the same inputs."""

from functools import partial
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.benchmark.heads import AttentionTask, why_no_sdpa
from luna_fairseq.benchmark.measure import Case
from luna_fairseq.benchmark.task import Row
from luna_fairseq.ops.attention import luna_attention


class Inputs(NamedTuple):
    """q, k, v [B, H, T, K] of the sentence, pack_q [B, H, L, K] of P; key_padding_mask [B, T] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    pack_q: Tensor
    key_padding_mask: Optional[Tensor]


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
    "softmax": Row(softmax, limited=True, peer=True),
    "sdpa": Row(fused, equals="softmax", why_not=why_no_sdpa, peer=True),
}


class PackAndUnpack(AttentionTask):
    """``attention``."""

    name = "attention"
    notes = """pack and unpack attention: Luna's beside softmax self-attention, written out and fused
    of projected heads; the projections, those of the packed sequence too, are left out. luna-naive writes the
    weights out. softmax is self-attention of the same inputs with the T x T weights written out, sdpa torch's
    scaled_dot_product_attention. padding half: every second sentence is padded in its second half, and the
    pads are masked. forward: without gradients; forward+backward: gradients of every input. Before anything
    is timed, output and gradients of luna were compared with luna-naive in float64, those of sdpa with
    softmax.
    """
    table = FORMS

    def kinds(self) -> List[Case]:
        return [{**kind, "padding": padding} for kind in super().kinds() for padding in ("none", "half")]

    def problem(self, case: Case) -> Tuple[Inputs, Tensor]:
        shape, T = self.shape(case), case["T"]
        *heads, gradient = shape.random((T, T, T, shape.projection_length, T), self.settings)
        mask = None
        if shape.padded:
            mask = torch.zeros(shape.batch, T, dtype=torch.bool, device=self.settings.device)
            mask[1::2, (T + 1) // 2 :] = True
        return Inputs(*(x.requires_grad_() for x in heads), mask), gradient
