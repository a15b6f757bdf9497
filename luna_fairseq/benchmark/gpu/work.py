"""Operations and bytes of the benchmark's rows, for the roofline beside each figure."""

from typing import Any, Dict, Optional

from luna_fairseq.costs import attention
from luna_fairseq.costs.attention import Heads
from luna_fairseq.costs.roofline import Work

# Positions of a chunk, as the kernels have them at most sizes.
CHUNK = 32


def work_of(task: Any, case: Dict[str, Any], form: str) -> Optional[Work]:
    """Of one job of a row; None where it is not counted.

    Args:
        task: the benchmark's
        case: one of its cases
        form: name of the row
    """
    if task.name in ("causal", "attention"):
        return of_attention(task, case, form)
    return None


def of_attention(task: Any, case: Dict[str, Any], form: str) -> Work:
    """Attention on projected heads; whatever form Luna takes, what counts is its chunkwise algorithm."""
    shape, backward = task.shape(case), case["pass"] != "forward"
    heads = Heads(
        shape.batch * shape.heads, case["T"], shape.head_dim, shape.projection_length, shape.dtype, shape.tied
    )
    if form.startswith(("sdpa", "softmax")):
        return attention.softmax(heads, backward, causal=task.name == "causal")
    if task.name == "causal":
        return attention.causal_luna(heads, backward, CHUNK)
    return attention.pack_and_unpack(heads, backward)
