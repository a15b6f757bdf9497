"""``train`` and ``lra``: training steps in translation, masked language modelling and classification."""

import argparse
from argparse import Namespace
from functools import partial
from typing import Any, Dict, List, Sequence, Type

import torch
from torch import nn
from torch.nn import functional as F

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.models import add_size_options, translation_options, translation_task
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.benchmark.training import Loss, Training, add_run_options

# About the 15 per cent that are masked in pretraining; the same tokens for every model.
PREDICTED = slice(1, None, 7)


class Translate(Training):
    """Encoder-decoders."""

    notes = """
    Forward pass in training mode (dropout 0.1), label-smoothed cross entropy, backward pass. The optimizer is
    left out: it would cost all models the same and draw the ratios towards 1. Batches of random tokens,
    source and target of the same length, without padding. tokens are the target's. transformer is fairseq's,
    which passes a float mask to torch's attention function; transformer-sdpa the same on
    scaled_dot_product_attention with is_causal. Extra memory includes the gradients.
    """
    task = "translate"
    default_batches = (BatchSize(32, 30),)

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        return translation_options(self.sizes, max(1024, batch.tokens), dropout)

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        source, target = (self.random_sentences(batch) for _ in range(2))
        previous = target.roll(1, dims=1)
        self.pad((source, target, previous), lengths)
        counts: List[int] = list(lengths) or [batch.tokens] * batch.sentences
        net_input = {
            "src_tokens": source,
            "src_lengths": torch.tensor(counts, device=source.device),
            "prev_output_tokens": previous,
        }
        task = translation_task(self.dictionary_size)
        criterion = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
        sample = {"net_input": net_input, "target": target, "ntokens": sum(counts)}
        return partial(loss_per_token, criterion, model, sample)


class MaskedLM(Training):
    """Encoders that predict some of their tokens."""

    notes = """
    Forward pass in training mode (dropout 0.1), cross entropy at every seventh token, backward pass, no
    optimizer. roberta-softmax is fairseq's RoBERTa with the attention weights written out, roberta-sdpa the
    same on scaled_dot_product_attention. Random tokens, no padding, as many positions as tokens. Extra memory
    includes the gradients.
    """
    task = "masked_lm"
    presets = {
        "base": {"layers": 12, "embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12},
        "small": {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4},
    }
    default_batches = (BatchSize(1, 512),)

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        sizes = {f"encoder_{name}": value for name, value in self.sizes.items()}
        return {**sizes, "dropout": dropout, "attention_dropout": dropout, "max_positions": batch.tokens}

    def fairseq_task(self, batch: BatchSize) -> Namespace:
        dictionary = translation_task(self.dictionary_size).source_dictionary
        return Namespace(source_dictionary=dictionary, max_positions=lambda: batch.tokens)

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        tokens, answers = (self.random_sentences(batch) for _ in range(2))
        target = torch.full_like(tokens, self.pad((tokens,), lengths))
        target[:, PREDICTED] = answers[:, PREDICTED]
        self.pad((target,), lengths)
        sample = {
            "net_input": {"src_tokens": tokens},
            "target": target,
            "nsentences": batch.sentences,
            "ntokens": target.numel(),
        }
        criterion = MaskedLmLoss(Namespace(tpu=False), translation_task(self.dictionary_size))
        return partial(loss_per_token, criterion, model, sample)


class Classify(Training):
    """Long Range Arena's classifiers of bytes; Luna's keys and values are untied in this benchmark."""

    notes = """
    Two-class classifiers of random bytes, of the architectures luna_lra_imdb and transformer_lra_imdb with
    [CLS]; forward pass in training mode (dropout 0.1), cross entropy, backward pass, no optimizer.
    transformer-softmax is fairseq's attention with the weights written out, transformer-sdpa the same on
    scaled_dot_product_attention. No padding. Extra memory includes the gradients.
    """
    task = "classify"
    presets = {"base": {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4}}
    # Every byte, and fairseq's four special symbols.
    default_dictionary_size = 260
    default_batches = (BatchSize(1, 1024),)

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        sizes = {f"encoder_{name}": value for name, value in self.sizes.items()}
        positions = max(1024, batch.tokens)
        return {**sizes, "dropout": dropout, "attention_dropout": dropout, "max_positions": positions}

    def fairseq_task(self, batch: BatchSize) -> Namespace:
        dictionary = translation_task(self.dictionary_size).source_dictionary
        return Namespace(source_dictionary=dictionary, pairs=False)

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        tokens = self.random_sentences(batch)
        self.pad((tokens,), lengths)
        labels = torch.arange(batch.sentences, device=tokens.device) % 2
        return partial(loss_per_sentence, model, tokens, labels)


# By the value of --task.
TASKS: Dict[str, Type[Training]] = {"translate": Translate, "masked-lm": MaskedLM, "classify": Classify}


class Train(Training):
    """``train``: one of the tasks."""

    help = "training step of a whole model: Luna beside fairseq's Transformer or RoBERTa"

    @classmethod
    def of(cls, args: argparse.Namespace, settings: Settings) -> Training:
        return TASKS[args.task](args, settings)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--task",
            choices=list(TASKS),
            default="translate",
            help="encoder-decoders, masked language models, or classifiers of bytes (default: translate)",
        )
        add_size_options(parser)
        add_run_options(parser)


class LongRangeArena(Classify):
    """``lra``: the costs of Long Range Arena's Text task at the lengths of the paper's Table 2."""

    name = "lra"
    help = "training step of Long Range Arena's byte classifiers, as in the paper's Table 2"

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        lengths = [BatchSize(1, 1024 * thousands) for thousands in (1, 2, 3, 4)]
        add_run_options(parser, lengths, projection_lengths=(16, 128, 256))
        parser.set_defaults(preset=None, dictionary_size=None)


def loss_per_token(criterion: Any, model: nn.Module, sample: Dict[str, Any]) -> torch.Tensor:
    """The mean over what the criterion counts: the target's tokens."""
    loss, sample_size, _ = criterion(model, sample)
    return loss / sample_size


def loss_per_sentence(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy."""
    return F.cross_entropy(model(tokens).float(), labels)
