"""The masked language models of ``train``: Luna's beside fairseq's RoBERTa, and their training step."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, Dict, Sequence

import torch

from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.models.roberta import RobertaModel
from luna_fairseq.benchmark.models import Kind, attending, luna_kinds, make_task, pad_after, random_sentences
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.benchmark.translate import loss_per_token
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

NOTES = (
    "Forward pass in training mode (dropout 0.1), cross entropy at every seventh token, backward pass, no optimizer.",
    "roberta-softmax is fairseq's RoBERTa with the attention weights written out, roberta-sdpa the same on",
    "scaled_dot_product_attention. Random tokens, no padding, as many positions as tokens. Extra memory includes the",
    "gradients.",
)
SOFTMAX, SDPA = "roberta-softmax", "roberta-sdpa"
PEERS = (SOFTMAX, SDPA)
PRESETS = {
    "base": {"layers": 12, "embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12},
    "small": {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
}
DICTIONARY_SIZE = 32000
BATCHES = (BatchSize(1, 512),)
# About the 15 per cent that are masked in pretraining; the same tokens for every model.
PREDICTED = slice(1, None, 7)


def kinds(projection_lengths: Sequence[int]) -> Dict[str, Kind]:
    """The models by the names of the table's rows."""
    return {
        SOFTMAX: Kind(attention="written out"),
        SDPA: Kind(attention="fused"),
        **luna_kinds(projection_lengths),
    }


def build(
    kind: Kind, preset: Dict[str, int], dictionary_size: int, batch: BatchSize, dropout: float = 0.1
) -> torch.nn.Module:
    """A model with random weights and positions for the batch, in training mode."""
    sizes = {f"encoder_{name}": value for name, value in preset.items()}
    options = Namespace(
        **sizes,
        **kind.options(),
        dropout=dropout,
        attention_dropout=dropout,
        max_positions=batch.tokens,
    )
    dictionary = make_task(dictionary_size).source_dictionary
    task = Namespace(source_dictionary=dictionary, max_positions=lambda: batch.tokens)
    family = LunaMaskedLM if kind.luna else RobertaModel
    return attending(family.build_model(options, task), kind)


def make_loss(
    model: Any, dictionary_size: int, batch: BatchSize, device: str, lengths: Sequence[int] = ()
) -> Callable[[], torch.Tensor]:
    """The loss of a batch; arguments as in :func:`luna_fairseq.benchmark.translate.make_loss`."""
    task = make_task(dictionary_size)
    padding_idx = task.target_dictionary.pad()
    tokens, answers = (random_sentences(task.target_dictionary, batch, device) for _ in range(2))
    target = torch.full_like(tokens, padding_idx)
    target[:, PREDICTED] = answers[:, PREDICTED]
    for rows in (tokens, target):
        pad_after(rows, lengths, padding_idx)
    sample = {
        "net_input": {"src_tokens": tokens},
        "target": target,
        "nsentences": batch.sentences,
        "ntokens": target.numel(),
    }
    return partial(loss_per_token, MaskedLmLoss(Namespace(tpu=False), task), model, sample)
