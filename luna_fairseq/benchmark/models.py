"""The models that are trained and decoded, of one size each, and batches of random tokens for them."""

import argparse
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any, Dict, Optional, Sequence

import torch

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.options import BatchSize, at_least
from luna_fairseq.benchmark.peers import ATTENTIONS
from luna_fairseq.models.luna import LunaModel

PRESETS: Dict[str, Dict[str, int]] = {
    "base": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8},
    "small": {"layers": 3, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
}
TINY = {"layers": 1, "embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2}
TRANSFORMER = "transformer"
SDPA = "transformer-sdpa"


@dataclass(frozen=True)
class Kind:
    """What a model is apart from its size.

    Attributes:
        luna: whether it is Luna, otherwise fairseq's Transformer
        projection_length: Luna's l
        untied: Luna with separate projections for keys and values
        backend: of Luna's causal attention
        attention: one of ``peers.ATTENTIONS`` (default: the model's own)
    """

    luna: bool = False
    projection_length: int = 16
    untied: bool = False
    backend: str = "auto"
    attention: Optional[str] = None

    def definition(self) -> "Kind":
        """The kind whose loss and gradients must be the same."""
        return replace(self, backend="naive", attention="written out") if self.luna else Kind()

    def options(self) -> Dict[str, Any]:
        """Under the names of the command line."""
        if not self.luna:
            return {}
        return {
            "projection_length": self.projection_length,
            "untie_luna_kv": self.untied,
            "luna_backend": self.backend,
        }


def luna_kinds(projection_lengths: Sequence[int]) -> Dict[str, Kind]:
    """Tied and untied Luna for every projection length, by the names of the table's rows."""
    return {
        f"luna-{l}-{'untied' if untied else 'tied'}": Kind(True, l, untied)
        for l in projection_lengths  # noqa: E741
        for untied in (False, True)
    }


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """``--preset`` and ``--dictionary-size``."""
    add = parser.add_argument
    add("--preset", choices=list(PRESETS), default="base", help="6+6 layers of 512, or 3+3 of 256 (default: base)")
    add("--dictionary-size", type=at_least(8), default=32000, metavar="N", help="shared (default: 32000)")


def add_projection_length(parser: argparse.ArgumentParser, default: Sequence[int] = (16,)) -> None:
    """``--projection-length``."""
    parser.add_argument(
        "--projection-length",
        type=at_least(1),
        nargs="+",
        default=list(default),
        metavar="N",
        help=f"Luna's l, several allowed (default: {' '.join(map(str, default))})",
    )


def model_sizes(preset: Dict[str, int], positions: int, dropout: float = 0.1) -> Dict[str, Any]:
    """Options that all models have in common, under fairseq's names."""
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in preset.items()}
    return {
        **sizes,
        "dropout": dropout,
        "share_all_embeddings": True,
        "max_source_positions": positions,
        "max_target_positions": positions,
    }


def make_task(dictionary_size: int) -> TranslationTask:
    """A translation task with one dictionary of that size, its special symbols included."""
    dictionary = Dictionary()
    for i in range(dictionary_size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


def build_translator(kind: Kind, sizes: Dict[str, Any], dictionary_size: int) -> BaseFairseqModel:
    """An encoder-decoder with random weights, in training mode."""
    options = Namespace(**sizes, **kind.options())
    if not kind.luna:
        base_architecture(options)
    family = LunaModel if kind.luna else TransformerModel
    return attending(family.build_model(options, make_task(dictionary_size)), kind)


def attending(model: BaseFairseqModel, kind: Kind) -> BaseFairseqModel:
    """The model in training mode, with the attention of its kind."""
    if kind.attention is not None:
        ATTENTIONS[kind.attention](model)  # last: a new module draws random numbers
    return model.train()


def random_sentences(dictionary: Dictionary, batch: BatchSize, device: str) -> torch.Tensor:
    """Random tokens [B, T], EOS last."""
    tokens = torch.randint(dictionary.nspecial, len(dictionary), (batch.sentences, batch.tokens))
    tokens[:, -1] = dictionary.eos()
    return tokens.to(device)


def pad_after(tokens: torch.Tensor, lengths: Sequence[int], padding_idx: int) -> None:
    """Put padding into every row of tokens [B, T] after its length."""
    for row, length in zip(tokens, lengths):
        row[length:] = padding_idx


def describe(preset: Dict[str, int], dictionary_size: int) -> str:
    """The sizes in one line."""
    values = ", ".join(f"{name} {value}" for name, value in preset.items())
    return f"{values}, dictionary {dictionary_size} (one embedding for all)"
