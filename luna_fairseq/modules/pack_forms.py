"""Forms of pack attention, in which the packed sequence P attends to the context.

Shapes: L rows of P, S context tokens, batch size B, width C, H heads of dimension K.
"""

from typing import Any, Optional, Sequence, Tuple

from torch import Tensor

from luna_fairseq.modules.heads import split_heads
from luna_fairseq.ops.absorbed import absorbed_pack, should_absorb, split_input_projection
from luna_fairseq.ops.attention import luna_attention, naive_attention
from luna_fairseq.ops.forms import Form, FormTable, otherwise
from luna_fairseq.ops.plain_linear import linear_parameters

PACK_FORMS = FormTable(
    "pack attention",
    Form(
        "absorbed",
        "ops/absorbed.py",
        "should_absorb: a CPU, no graph, long contexts, plain linear layers",
        "1.3 and 1.5 times as fast for 4 x 256 and 1 x 1,024 tokens, 0.56 times for 32 x 30",
        lambda q, context, projections: should_absorb(q, context, *projections),
        lambda q, context, projections: all(linear_parameters(x) for x in projections),
    ),
    Form(
        "projected",
        "ops/attention.py",
        "otherwise, and if weights are wanted",
        "keys and values are projected, then SOFTMAX_FORMS",
        otherwise,
    ),
)


def pack_attention(
    q: Tensor,
    context: Tensor,
    projections: Sequence[Any],
    padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Compute pack attention of queries [B, H, L, K] to the context [S, B, C].

    projections: linear layers of the keys and values, or a single layer of both.

    Returns:
        Packed context [B, H, L, K], and the weights [B, H, L, S] (None if ``need_weights`` is False).
    """
    H, settings = q.size(1), (padding_mask, dropout, bias)
    if not need_weights and PACK_FORMS.choose(q, context, projections) == "absorbed":
        by_head = [split_input_projection(x.weight, x.bias, H) for x in projections]
        return absorbed_pack(q, context, by_head[0], by_head[-1], *settings), None
    projected = [split_heads(projection(context), H) for projection in projections]
    if need_weights:
        return naive_attention(q, projected[0], projected[-1], *settings)
    return luna_attention(q, projected[0], projected[-1], *settings), None
