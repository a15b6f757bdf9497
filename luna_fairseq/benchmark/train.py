"""``train`` and ``lra``: training steps in translation, masked language modelling and classification."""

import argparse
from argparse import Namespace
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch.nn import functional as F

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from luna_fairseq.benchmark.measure import Case, Job
from luna_fairseq.benchmark.models import Model, ModelTask, attention_written_out, batch_cases
from luna_fairseq.benchmark.task import BatchSize, add_numbers, require_equal

FOUR = {"layers": 4, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4}
ROBERTA = {"layers": 12, "embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12}
PRESETS = {"masked-lm": {"base": ROBERTA, "small": FOUR}, "classify": {"base": FOUR}}
Loss = Callable[[], torch.Tensor]
# Sentences of different length, for the comparison before anything is timed.
CHECKED = (11, 7, 2)
# About the 15 per cent that are masked in pretraining; the same tokens for every model.
PREDICTED = slice(1, None, 7)
TASKS = {"translate": BatchSize(32, 30), "masked-lm": BatchSize(1, 512), "classify": BatchSize(1, 1024)}


class Train(ModelTask):
    """``train``: forward, loss, backward."""

    name = "train"
    notes = """training step of a whole model: Luna beside fairseq's Transformer or RoBERTa
    with dropout 0.1: forward, loss as fairseq divides it, backward. The optimizer is left out: it would cost
    all models the same and draw the ratios towards 1. Batches of random tokens without padding, source and
    target of the same length; masked-lm predicts every seventh token; classify has two classes of bytes,
    [CLS], and the architectures of Long Range Arena's Text. transformer is fairseq's, which passes a float
    mask to torch's attention function; -sdpa the same on scaled_dot_product_attention with is_causal;
    -softmax has its weights written out. Extra memory includes the gradients. Before anything is timed, loss
    and gradients were compared with those of the same model with all attention written out.
    """
    rate = "tokens"

    def __init__(self, args: argparse.Namespace, settings: Any):
        super().__init__(args, settings)
        self.kind: str = args.task
        self.task = self.kind.replace("-", "_")
        self.presets = PRESETS.get(self.kind, self.presets)
        if self.kind == "classify":
            self.types = 260  # every byte, and fairseq's four special symbols

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--task", choices=list(TASKS), default="translate", help="what is trained (default: translate)")
        add("--batch", type=BatchSize.read, nargs="+", metavar="NxT", help="sentences x tokens in each")
        add_numbers(parser, projection_length=[16])

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        if self.kind == "translate":
            return super().options(batch, dropout)
        sizes = {f"encoder_{name}": value for name, value in self.sizes.items()}
        positions = batch.tokens if self.kind == "masked-lm" else max(1024, batch.tokens)
        return {**sizes, "dropout": dropout, "attention_dropout": dropout, "max_positions": positions}

    def fairseq_task(self, batch: BatchSize) -> Any:
        if self.kind == "translate":
            return self.translation_task()
        limits = {"max_positions": lambda: batch.tokens, "pairs": False}
        return Namespace(source_dictionary=self.dictionary(), **limits)

    def cases(self) -> List[Case]:
        return batch_cases(self.args.batch or [TASKS[self.kind]])

    def count(self, case: Case) -> int:
        return case["sentences"] * case["T"]

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        """The loss of a random batch, by token or sentence as fairseq divides it.

        Args:
            model: to train
            batch: sentences and tokens of each
            lengths: of each sentence, when some are shorter than the batch; they are padded
        """
        source, target = (self.random_sentences(batch) for _ in range(2))
        previous, task = target.roll(1, dims=1), self.translation_task()
        for tokens in (source, target, previous):
            for row, length in zip(tokens, lengths):
                row[length:] = task.source_dictionary.pad()
        if self.kind == "classify":
            labels = torch.arange(batch.sentences, device=source.device) % 2
            return lambda: F.cross_entropy(model(source).float(), labels)
        counts: List[int] = list(lengths) or [batch.tokens] * batch.sentences
        net_input = {"src_tokens": source}
        if self.kind == "translate":
            of_lengths = torch.tensor(counts, device=source.device)
            net_input.update(src_lengths=of_lengths, prev_output_tokens=previous)
            criterion: Any = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
        else:
            masked = torch.full_like(target, task.source_dictionary.pad())
            masked[:, PREDICTED] = target[:, PREDICTED]
            target, criterion = masked, MaskedLmLoss(Namespace(tpu=False), task)
        sizes = {"nsentences": batch.sentences, "ntokens": sum(counts)}
        sample = {"net_input": net_input, "target": target, **sizes}
        return partial(loss_per_token, criterion, model, sample)

    def job(self, row: Model, case: Case) -> Job:
        model = self.make_model(row, self.batch(case))
        torch.manual_seed(self.settings.seed)  # the same batch for every model
        return partial(step, model, self.loss(model, self.batch(case)))

    def check(self, row: Model) -> float:
        actual = self.loss_and_gradients(row)
        with attention_written_out():
            expected = self.loss_and_gradients(row.definition())
        return max(
            require_equal(f"its {what} differs from that of the written-out model", ours, theirs)
            for what, ours, theirs in zip(("loss", "gradient"), actual, expected)
        )

    def loss_and_gradients(self, row: Model) -> Tuple[torch.Tensor, torch.Tensor]:
        """Of a batch with padding, without dropout, in float32; all gradients as one vector."""
        batch = BatchSize(len(CHECKED), CHECKED[0])
        model = self.make_model(row, batch, dropout=0.0).float()
        torch.manual_seed(self.settings.seed)
        loss = self.loss(model, batch, CHECKED)()
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(gradients)


class LongRangeArena(Train):
    """``lra``: the costs of Long Range Arena's Text task at the lengths of the paper's Table 2."""

    name = "lra"
    notes = """training step of Long Range Arena's byte classifiers, as in the paper's Table 2
    by what train --task classify measures; Luna's keys and values are untied."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        lengths = [BatchSize(1, 1024 * thousands) for thousands in (1, 2, 3, 4)]
        parser.set_defaults(task="classify", batch=lengths, projection_length=[16, 128, 256])


def loss_per_token(criterion: Any, model: Any, sample: Dict[str, Any]) -> torch.Tensor:
    """The mean over what the criterion counts: the target's tokens."""
    loss, sample_size, _ = criterion(model, sample)
    return loss / sample_size


def step(model: torch.nn.Module, loss: Loss) -> None:
    """Forward, loss, backward; the gradients are dropped, as an optimizer's step would have used them."""
    loss().backward()
    model.zero_grad(set_to_none=True)
