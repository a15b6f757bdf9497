"""The byte classifiers of ``train`` and ``lra``: Long Range Arena's Text task, and their training step."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, Dict, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.benchmark.models import SDPA, Kind, attending, make_task, pad_after, random_sentences
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.models.luna_classifier import ARCHITECTURES, LunaClassifier

NOTES = (
    "Two-class classifiers of random bytes, of the architectures luna_lra_imdb and transformer_lra_imdb with [CLS]; forward",
    "pass in training mode (dropout 0.1), cross entropy, backward pass, no optimizer. transformer-softmax is fairseq's",
    "attention with the weights written out, transformer-sdpa the same on scaled_dot_product_attention. No padding.",
    "Extra memory includes the gradients.",
)
SOFTMAX = "transformer-softmax"
PEERS = (SOFTMAX, SDPA)
PRESETS = {"base": {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4}}
# Every byte, and fairseq's four special symbols.
DICTIONARY_SIZE = 260
BATCHES = (BatchSize(1, 1024),)


def kinds(projection_lengths: Sequence[int]) -> Dict[str, Kind]:
    """The models by the names of the table's rows; Luna's keys and values are untied in this benchmark."""
    return {
        SOFTMAX: Kind(attention="written out"),
        SDPA: Kind(attention="fused"),
        **{f"luna-{length}": Kind(True, length, untied=True) for length in projection_lengths},
    }


def build(
    kind: Kind, preset: Dict[str, int], dictionary_size: int, batch: BatchSize, dropout: float = 0.1
) -> nn.Module:
    """A classifier with random weights, in training mode."""
    options = {
        **ARCHITECTURES["luna_lra_imdb" if kind.luna else "transformer_lra_imdb"],
        **{f"encoder_{name}": value for name, value in preset.items()},
        "encoder_projection_length": kind.projection_length,
        "dropout": dropout,
        "attention_dropout": dropout,
        "max_positions": max(1024, batch.tokens),
    }
    task = Namespace(source_dictionary=make_task(dictionary_size).source_dictionary, pairs=False)
    return attending(LunaClassifier.build_model(Namespace(**options), task), kind)


def make_loss(
    model: Any, dictionary_size: int, batch: BatchSize, device: str, lengths: Sequence[int] = ()
) -> Callable[[], Tensor]:
    """The loss of a batch; arguments as in :func:`luna_fairseq.benchmark.translate.make_loss`."""
    dictionary = make_task(dictionary_size).source_dictionary
    tokens = random_sentences(dictionary, batch, device)
    pad_after(tokens, lengths, dictionary.pad())
    labels = torch.arange(batch.sentences, device=device) % 2
    return partial(cross_entropy, model, tokens, labels)


def cross_entropy(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """The mean over the sentences."""
    return F.cross_entropy(model(tokens).float(), labels)
