"""Forms of unpack attention, in which queries attend to the packed context."""

from typing import Any

from torch import Tensor

from luna_fairseq.modules.memory import AbsorbedMemory
from luna_fairseq.ops.absorbed import should_absorb
from luna_fairseq.ops.attention import is_eager_on_cpu
from luna_fairseq.ops.forms import Form, FormTable, otherwise
from luna_fairseq.ops.plain_linear import linear_parameters


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
    return forced in (None, "prepared") and _has_plain_projections(attention)


def _has_plain_projections(attention: Any) -> bool:
    return all(linear_parameters(x) is not None for x in (attention.unpack_q_proj, attention.out_proj))


def _can_absorb(attention: Any, query: Tensor, memory: Any) -> bool:
    is_one_each = query.size(1) == memory.key.size(0)  # one hypothesis for each sentence
    has_rows_only = attention.reads_only_rows and not isinstance(memory, AbsorbedMemory)
    return is_one_each and has_rows_only and _has_plain_projections(attention)


def _is_prepared(attention: Any, query: Tensor, memory: Any) -> bool:
    return isinstance(memory, AbsorbedMemory)


def _should_absorb(attention: Any, query: Tensor, memory: Any) -> bool:
    if not _can_absorb(attention, query, memory):
        return False
    return should_absorb(memory.key, query, attention.unpack_q_proj, attention.out_proj)


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
        _should_absorb,
        _can_absorb,
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
