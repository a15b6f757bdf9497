"""The translation models of ``train``, their training step, and how their equality is checked."""

from functools import partial
from typing import Any, Callable, Dict, List, Sequence

import torch

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from luna_fairseq.benchmark.models import PRESETS as MODEL_PRESETS
from luna_fairseq.benchmark.models import (
    SDPA,
    TRANSFORMER,
    Kind,
    build_translator,
    luna_kinds,
    make_task,
    model_sizes,
    pad_after,
    random_sentences,
)
from luna_fairseq.benchmark.options import BatchSize

NOTES = (
    "Forward pass in training mode (dropout 0.1), label-smoothed cross entropy, backward pass. The optimizer is left",
    "out: it would cost all models the same and draw the ratios towards 1. Batches of random tokens, source and target",
    "of the same length, without padding. tokens are the target's. transformer is fairseq's, which passes a float mask",
    "to torch's attention function; transformer-sdpa the same on scaled_dot_product_attention with is_causal. Extra",
    "memory includes the gradients.",
)
PEERS = (TRANSFORMER, SDPA)
PRESETS = MODEL_PRESETS
DICTIONARY_SIZE = 32000
BATCHES = (BatchSize(32, 30),)


def kinds(projection_lengths: Sequence[int]) -> Dict[str, Kind]:
    """The models by the names of the table's rows."""
    return {TRANSFORMER: Kind(), SDPA: Kind(attention="fused"), **luna_kinds(projection_lengths)}


def build(
    kind: Kind, preset: Dict[str, int], dictionary_size: int, batch: BatchSize, dropout: float = 0.1
) -> torch.nn.Module:
    """A model for sentences of that length, and its criterion."""
    sizes = model_sizes(preset, max(1024, batch.tokens), dropout)
    return build_translator(kind, sizes, dictionary_size)


def make_loss(
    model: Any, dictionary_size: int, batch: BatchSize, device: str, lengths: Sequence[int] = ()
) -> Callable[[], torch.Tensor]:
    """The loss of a batch, by sentence and token as fairseq divides it.

    Args:
        model: to train
        dictionary_size: of its dictionary
        batch: sentences and tokens of each
        device: of the batch
        lengths: of each sentence, when some are shorter than the batch; they are padded
    """
    task = make_task(dictionary_size)
    dictionary = task.target_dictionary
    source, target = (random_sentences(dictionary, batch, device) for _ in range(2))
    previous = target.roll(1, dims=1)
    for tokens in (source, target, previous):
        pad_after(tokens, lengths, dictionary.pad())
    counts: List[int] = list(lengths) or [batch.tokens] * batch.sentences
    net_input = {
        "src_tokens": source,
        "src_lengths": torch.tensor(counts, device=device),
        "prev_output_tokens": previous,
    }
    criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    sample = {"net_input": net_input, "target": target, "ntokens": sum(counts)}
    return partial(loss_per_token, criterion, model, sample)


def loss_per_token(criterion: Any, model: torch.nn.Module, sample: Dict[str, Any]) -> torch.Tensor:
    """The mean over what the criterion counts: the target's tokens."""
    loss, sample_size, _ = criterion(model, sample)
    return loss / sample_size
