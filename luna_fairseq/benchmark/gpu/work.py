"""Operations and bytes of the benchmark's rows, for the roofline beside each figure."""

from dataclasses import replace
from typing import Any, Dict, Optional

from luna_fairseq.costs import attention
from luna_fairseq.costs.attention import ITEMSIZE, Heads
from luna_fairseq.costs.model import Batch, Model, Stack, parameters, step_work
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
    if task.name in ("train", "lra"):
        return of_training(task, case, form)
    return of_decoding(task, case, form) if task.name == "decode" else None


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


def of_training(task: Any, case: Dict[str, Any], form: str) -> Optional[Work]:
    """The training step of a whole model."""
    model = model_of_row(task, form)
    if model is None:
        return None
    predicted = {"translate": 1.0, "masked_lm": 1 / 7, "classify": 0.0}[task.task]
    parts = step_work(model, Batch(case["sentences"], case["T"], predicted), task.args.dtype).values()
    return sum(parts, Work())


def of_decoding(task: Any, case: Dict[str, Any], form: str) -> Optional[Work]:
    """Beam search: every step reads the decoder's weights once, and softmax attention its keys and values."""
    model = model_of_row(task, form)
    if model is None or model.decoder is None:
        return None
    stack, hypotheses, steps = model.decoder, case["sentences"] * task.args.beam, case["T"]
    whole = parameters(model)
    of_decoder = whole - parameters(replace(model, decoder=None, dictionary=0, positions=0))
    item, kept = ITEMSIZE[task.args.dtype], 0.0
    if not model.luna:
        kept = 2 * (steps / 2 + steps) * stack.width * stack.layers * hypotheses
    work = Work({task.args.dtype: 2.0 * of_decoder * hypotheses}, item * (of_decoder + kept))
    return work * steps


def model_of_row(task: Any, form: str) -> Optional[Model]:
    """What counts of a row's model; None for a peer's attention."""
    if not form.startswith(("luna-", "transformer", "roberta")) or form.endswith("anchored"):
        return None
    stack = Stack(*(task.sizes[name] for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")))
    luna = form.startswith("luna-")
    return Model(
        stack,
        stack if task.task in ("translate", "decode") else None,
        dictionary=task.dictionary_size,
        embeddings=1,
        positions=0,
        luna=luna,
        projection_length=int(form.split("-")[1]) if luna else 0,
        untied=form.endswith("-untied") or task.task == "classify",
    )
