"""Forms (equal implementations) of pack and unpack attention, and the conditions under which each is chosen.

Shapes: L rows of the packed sequence P, S context tokens, T queries, batch size B, width C, H heads of
dimension K.
"""

from typing import Any, Sequence

from torch import Tensor, nn

from luna_fairseq.modules.memory import AbsorbedMemory
from luna_fairseq.ops.absorbed import can_absorb, should_absorb
from luna_fairseq.ops.attention import is_eager_on_cpu
from luna_fairseq.ops.forms import Form, FormTable, otherwise


def _can_absorb_context(q: Tensor, context: Tensor, projections: Sequence[nn.Module]) -> bool:
    return all(map(can_absorb, projections))


PACK_FORMS = FormTable(
    "pack attention",
    Form(
        "absorbed",
        "ops/absorbed.py",
        "should_absorb: a CPU, no graph, long contexts, plain linear layers",
        "1.3 and 1.5 times as fast for 4 x 256 and 1 x 1,024 tokens, 0.56 times for 32 x 30",
        should_absorb,
        _can_absorb_context,
    ),
    Form(
        "projected",
        "ops/attention.py",
        "otherwise, and if weights are wanted",
        "keys and values are projected, then SOFTMAX_FORMS",
        otherwise,
    ),
)


def should_prepare(attention: Any, key: Tensor) -> bool:
    """Return True if the memory of B sources, with keys [B, H, L, K], should absorb two projections.

    They are the query and the output projection of the attention, which must be plain linear layers. The
    absorbed keys and values must have at most half the size of the two matrices, so that a decoding step
    reads less memory. They grow with B. Return False otherwise, on a GPU and while torch records a graph. A
    form that is forced by name overrides these rules, except that the layers must be plain.
    """
    B, H, L, _ = key.shape
    forced = UNPACK_FORMS.forced()
    is_small = 2 * B * H * L <= attention.embed_dim
    if forced is None and not (is_small and is_eager_on_cpu(key)):
        return False
    is_plain = can_absorb(attention.unpack_q_proj) and can_absorb(attention.out_proj)
    return forced in (None, "prepared") and is_plain


def _is_prepared(attention: Any, query: Tensor, memory: Any) -> bool:
    return isinstance(memory, AbsorbedMemory)


def _should_absorb_query(attention: Any, query: Tensor, memory: Any) -> bool:
    # Queries that attend only to the rows of P, from one hypothesis for each sentence
    if not attention.reads_only_rows or query.size(1) != memory.key.size(0):
        return False
    return should_absorb(memory.key, query, (attention.unpack_q_proj, attention.out_proj))


def _can_absorb_query(attention: Any, query: Tensor, memory: Any) -> bool:
    if not attention.reads_only_rows or query.size(1) != memory.key.size(0):
        return False
    is_plain = can_absorb(attention.unpack_q_proj) and can_absorb(attention.out_proj)
    return is_plain and not isinstance(memory, AbsorbedMemory)


UNPACK_FORMS = FormTable(
    "unpack attention",
    Form(
        "prepared",
        "modules/memory.py",
        "decoding, and should_prepare: a CPU, no graph, a small batch, plain linear layers",
        "90 of 144 operator calls of six layers in a decoding step, and half of the memory read",
        _is_prepared,
        _is_prepared,
    ),
    Form(
        "absorbed",
        "ops/absorbed.py",
        "should_absorb: a CPU, no graph, long targets, one hypothesis a sentence, plain linear layers",
        "2.3 and 2.8 times as fast for 4 x 256 and 1 x 1,024 tokens, 0.86 times for 32 x 30",
        _should_absorb_query,
        _can_absorb_query,
    ),
    Form(
        "projected",
        "ops/attention.py",
        "otherwise, and if weights are wanted",
        "queries are projected, then SOFTMAX_FORMS or the forms of an extension",
        otherwise,
        lambda attention, query, memory: not isinstance(memory, AbsorbedMemory),
    ),
)
