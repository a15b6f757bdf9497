"""Whole models of one size, and batches of random tokens for them."""

import argparse
import copy
from argparse import Namespace
from typing import Any, ClassVar, Dict, List, Mapping, Sequence, Tuple

import torch

import luna_fairseq.models  # noqa: F401  (registers the architectures)
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from luna_fairseq.benchmark.fused_softmax import why_no_sdpa
from luna_fairseq.benchmark.measure import Case, Settings
from luna_fairseq.benchmark.options import MODEL_DTYPES, BatchSize, at_least
from luna_fairseq.benchmark.peers import Model, models_of
from luna_fairseq.benchmark.task import Task
from luna_fairseq.errors import InputError

Sizes = Dict[str, int]
TRANSLATION_PRESETS: Dict[str, Sizes] = {
    "base": {"layers": 6, "embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8},
    "small": {"layers": 3, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
}
TINY = {"layers": 1, "embed_dim": 8, "ffn_embed_dim": 8, "attention_heads": 2}


class ModelTask(Task):
    """A job of whole models of one size.

    Attributes:
        task: its models are those of the table that have an architecture for it
        presets: sizes by name; the first is the default
        sizes: of all models
        default_dictionary_size: special symbols included
    """

    task: ClassVar[str]
    presets: ClassVar[Mapping[str, Sizes]] = TRANSLATION_PRESETS
    default_dictionary_size: ClassVar[int] = 32000
    length = "T"

    def __init__(self, args: argparse.Namespace, settings: Settings):
        super().__init__(args, settings)
        self.preset: str = args.preset or "base"
        if self.preset not in self.presets:
            raise InputError(f"--preset {self.preset}: --task {self.task} has only {', '.join(self.presets)}")
        self.sizes: Sizes = self.presets[self.preset]
        self.dictionary_size: int = args.dictionary_size or self.default_dictionary_size

    def rows(self) -> Dict[str, Model]:
        return models_of(self.task, self.args.projection_length)

    def why_not(self, row: Model, case: Case) -> str:
        return why_no_sdpa() if row.needs_sdpa else ""

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        """What all models have in common, under fairseq's names."""
        raise NotImplementedError

    def make_model(self, row: Model, batch: BatchSize, dropout: float = 0.1) -> BaseFairseqModel:
        """A model with random weights, in training mode."""
        torch.manual_seed(self.settings.seed)
        architecture = row.architectures[self.task]
        options = Namespace(**{**self.options(batch, dropout), **row.options})
        ARCH_CONFIG_REGISTRY[architecture](options)
        model = ARCH_MODEL_REGISTRY[architecture].build_model(options, self.fairseq_task(batch))
        if row.attention is not None:
            row.attention(model)  # last: a new module draws random numbers
        return model.to(self.settings.device, MODEL_DTYPES[self.args.dtype]).train()

    def fairseq_task(self, batch: BatchSize) -> Any:
        """What the model is built for."""
        return translation_task(self.dictionary_size)

    def random_sentences(self, batch: BatchSize) -> torch.Tensor:
        """Random tokens [B, T], EOS last."""
        dictionary = translation_task(self.dictionary_size).source_dictionary
        tokens = torch.randint(dictionary.nspecial, len(dictionary), tuple(batch))
        tokens[:, -1] = dictionary.eos()
        return tokens.to(self.settings.device)

    def tiny(self, case: Case) -> Tuple["ModelTask", Case]:
        small = copy.copy(self)
        small.sizes, small.dictionary_size = TINY, 12
        return small, {"sentences": 1, "T": 4}

    def describe(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
        return f"{values}, dictionary {self.dictionary_size} (one embedding for all), {self.args.dtype}"


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """``--preset`` and ``--dictionary-size``."""
    add = parser.add_argument
    names = list(TRANSLATION_PRESETS)
    add("--preset", choices=names, help="6+6 layers of 512, or 3+3 of 256 in translation (default: base)")
    add("--dictionary-size", type=at_least(8), metavar="N", help="shared (default: 32000, of bytes 260)")


def batch_of(case: Case) -> BatchSize:
    """Sentences and tokens of a case."""
    return BatchSize(case["sentences"], case["T"])


def batch_cases(batches: Sequence[BatchSize]) -> List[Case]:
    """The cases of those batches."""
    return [{"sentences": batch.sentences, "T": batch.tokens} for batch in batches]


def translation_options(sizes: Sizes, positions: int, dropout: float = 0.1) -> Dict[str, Any]:
    """Of an encoder-decoder, under fairseq's names."""
    return {
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()},
        "dropout": dropout,
        "share_all_embeddings": True,
        "max_source_positions": positions,
        "max_target_positions": positions,
    }


def translation_task(dictionary_size: int) -> TranslationTask:
    """A translation task with one dictionary of that size, its special symbols included."""
    dictionary = Dictionary()
    for i in range(dictionary_size - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return TranslationTask(TranslationConfig(), dictionary, dictionary)


def pad_after(tokens: torch.Tensor, lengths: Sequence[int], padding_idx: int) -> None:
    """Put padding into every row of tokens [B, T] after its length."""
    for row, length in zip(tokens, lengths):
        row[length:] = padding_idx
