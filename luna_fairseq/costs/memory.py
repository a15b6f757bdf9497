"""Memory of a training step: what a parameter takes, and what is kept of a batch for the backward pass."""

from typing import Dict

from luna_fairseq.costs.attention import ITEMSIZE
from luna_fairseq.costs.model import Batch, Model, Stack, parameters, projections

FLOAT = 4
# float32 numbers that an optimizer keeps for a parameter.
STATES = {"adam": 2, "apollo": 3}
# Numbers of a layer's width kept for a token, beside one for each projection: residuals, norms, dropout.
# With them the recorded training steps on a CPU come out within 10 per cent (docs/many_gpus.md).
KEPT = {"encoder": 4, "decoder": 6}
# Of its feed-forward width: what goes into the activation and what comes out of it; GELU works in float32.
KEPT_FFN = {"translation": 2.0, "masked LM": 3.0}
# Copies of the logits at the worst moment: in the model's type, and in float32.
LOGITS_HALF, LOGITS_FLOAT = 2, 3
CUDA_ITSELF = 1.5e9
# What the allocator cannot use, of all that is taken.
FRAGMENTS = 1.08


def memory(model: Model, batch: Batch, dtype: str, optimizer: str) -> Dict[str, float]:
    """Bytes by what they are for.

    Args:
        model: that is trained
        batch: of one GPU and one backward pass
        dtype: of the parameters in the model; with a half type the optimizer has its own in float32
        optimizer: a name of ``STATES``
    """
    item = ITEMSIZE[dtype]
    each = 2 * item + FLOAT * STATES[optimizer] + (2 * FLOAT if item < FLOAT else 0)
    stacks = stack_bytes(model, model.encoder, batch, item, "encoder")
    if model.decoder is not None:
        stacks += stack_bytes(model, model.decoder, batch, item, "decoder")
    logits = batch.tokens * batch.predicted * model.dictionary
    copies = LOGITS_FLOAT * FLOAT + (LOGITS_HALF * item if item < FLOAT else 0)
    return {
        "parameters, gradients, optimizer": float(parameters(model) * each),
        "activations": FRAGMENTS * stacks,
        "logits": FRAGMENTS * logits * copies,
        "CUDA": CUDA_ITSELF,
    }


def stack_bytes(model: Model, stack: Stack, batch: Batch, item: int, side: str) -> float:
    """Activations that one stack keeps; attention is fused and keeps its inputs alone."""
    on_tokens, on_packed = projections(model, side == "decoder")
    kind = "translation" if model.decoder is not None else "masked LM"
    of_token = stack.width * (KEPT[side] + on_tokens) + KEPT_FFN[kind] * stack.ffn
    rows = batch.sentences * min(model.projection_length, batch.length)
    layer = item * (batch.tokens * of_token + rows * stack.width * (4 + on_packed))
    if model.luna:
        # Pack weights of causal attention and the gradients behind them, in float32.
        layer += FLOAT * 2 * batch.tokens * stack.heads * min(model.projection_length, batch.length)
    if model.luna and side == "encoder" and model.local_parts:
        layer += of_window(model, stack, batch, item)
    if model.checkpoint:
        return item * batch.tokens * stack.width * stack.layers + layer
    return layer * stack.layers


def of_window(model: Model, stack: Stack, batch: Batch, item: int) -> float:
    """What a layer keeps of its windows where all parts are full: keys and values, which are laid out for
    every part, scaled queries, and weights before and after dropout."""
    rows = min(model.projection_length, batch.length)
    read = rows + model.local_parts * batch.length / rows
    of_token = (2 * model.local_parts + 1) * stack.width + 2 * stack.heads * read
    return item * batch.tokens * of_token
