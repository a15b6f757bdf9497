"""Benchmarks ``train`` and ``lra``: training steps of complete models."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch.nn import functional as F

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from luna_fairseq.benchmark.models import (
    ModelTask,
    ModelVariant,
    absorb_projections_everywhere,
    explicit_attention_everywhere,
)
from luna_fairseq.benchmark.task import BatchSize, Case, Job, choice_option, number_options, require_equal

Loss = Callable[[], torch.Tensor]
# Sentence lengths for the check that runs before anything is timed.
CHECKED = (11, 7, 2)
# Every seventh token is predicted, about 15 % as in pretraining. The tokens are the same for every model.
PREDICTED = slice(1, None, 7)
BATCH_HELP = "batch sizes: number of sentences x tokens of each, such as 8x512"
TASKS = {"translate": BatchSize(32, 30), "masked-lm": BatchSize(1, 512), "classify": BatchSize(1, 1024)}


class Train(ModelTask):
    """Benchmark "train": forward pass, loss and backward pass of complete models on random tokens."""

    notes = """Measure a training step of Luna beside fairseq's Transformer or RoBERTa.

    A step consists of the forward pass with dropout 0.1, the loss, and the backward pass. The optimizer is
    not measured, because its time is the same for all models. Batches consist of random tokens without
    padding.

    --task translate trains a translation model whose source and target have the same length. --task masked-lm
    predicts every seventh token. --task classify trains the classifier of Long Range Arena's Text task, with
    two classes.

    Rows: transformer and roberta are fairseq's models. Their variants -sdpa use torch's
    scaled_dot_product_attention with its fast kernels, and their variants -softmax compute the attention
    weights explicitly. luna-16-tied is Luna with l = 16 and tied keys and values, luna-16-untied has separate
    keys and values, luna-16-anchored is the extended model.

    The extra memory includes the gradients. Before anything is timed, the loss and the gradients of every
    model are compared with those of the same model with explicit attention weights."""
    example = "--batch 8x512 --json train.json"
    rate = "tokens"
    options = {
        **ModelTask.options,
        "--task": choice_option(*TASKS, help="kind of model to train"),
        "--batch": dict(
            type=BatchSize.parse,
            nargs="+",
            metavar="NxT",
            help=f"{BATCH_HELP} (default: 32x30 to translate, 1x512 for masked-lm, 1x1024 to classify)",
        ),
        **number_options(projection_length=[16]),
    }

    def __init__(self, args: Namespace):
        super().__init__(args)
        self.task = args.task.replace("-", "_")

    def cases(self) -> List[Case]:
        return [batch._asdict() for batch in self.args.batch or [TASKS[self.args.task]]]

    def prepare_loss(
        self, model: Any, batch: BatchSize, lengths: Sequence[int] = (), all_outputs: bool = False
    ) -> Loss:
        """Create a random batch, and return a function that computes the model's loss on it as fairseq does.

        ``lengths`` are the numbers of tokens in the sentences, before the padding. If empty, nothing is
        padded. With ``all_outputs``, the last layer of a classifier computes the outputs of all tokens.
        """
        source, target = (self.random_sentences(batch) for _ in range(2))
        previous, task = target.roll(1, dims=1), self.fairseq_task(batch.T)
        pad = task.source_dictionary.pad()
        for tokens in (source, target, previous):
            for sentence, length in zip(tokens, lengths):
                sentence[length:] = pad
        if self.task == "classify":
            labels = torch.arange(batch.sentences, device=source.device) % 2
            return lambda: F.cross_entropy(model(source, all_outputs=all_outputs).float(), labels)
        counts = list(lengths) or [batch.T] * batch.sentences
        net_input = {"src_tokens": source}
        if self.task == "translate":
            source_lengths = torch.tensor(counts, device=source.device)
            net_input.update(src_lengths=source_lengths, prev_output_tokens=previous)
            criterion: Any = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
        else:
            masked = torch.full_like(target, pad)
            masked[:, PREDICTED] = target[:, PREDICTED]
            target, criterion = masked, MaskedLmLoss(Namespace(tpu=False), task)
        sizes = {"nsentences": batch.sentences, "ntokens": sum(counts)}
        sample = {"net_input": net_input, "target": target, **sizes}

        def loss() -> torch.Tensor:
            value, sample_size, _ = criterion(model, sample)
            return value / sample_size

        return loss

    def prepare_job(self, variant: ModelVariant, case: Case) -> Job:
        model = self.make_model(variant, case["T"])
        torch.manual_seed(self.args.seed)  # the same batch for every model
        return partial(step, model, self.prepare_loss(model, BatchSize(**case)))

    def check(self, variant: ModelVariant) -> float:
        """Compare a model's loss and gradients with those computed with explicit attention weights.

        Luna projects the packed sequence P in place of the tokens only for long sentences, so a second check
        forces this optimization for short ones. Return the largest ratio of an error to its tolerance.
        """
        actual = [self.loss_and_gradients(variant)]
        with absorb_projections_everywhere():
            actual.append(self.loss_and_gradients(variant))
        with explicit_attention_everywhere():
            expected = self.loss_and_gradients(variant.reference())
        messages = [
            f"its {what} differs from that of the model with explicit attention weights"
            for what in ("loss", "gradient")
        ]
        return max(error for form in actual for error in map(require_equal, messages, form, expected))

    def loss_and_gradients(self, variant: ModelVariant) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of a padded batch, and the gradients of all parameters as one vector.

        The model computes in float32 and without dropout.
        """
        batch = BatchSize(len(CHECKED), CHECKED[0])
        model = self.make_model(variant, batch.T, dropout=0.0).float()
        torch.manual_seed(self.args.seed)
        loss = self.prepare_loss(model, batch, CHECKED, all_outputs=True)()  # compares all attentions
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(gradients)


class LongRangeArena(Train):
    """Benchmark "lra": a training step on the Text task of Long Range Arena.

    The sequence lengths follow Table 2 of the Luna paper: 1, 2, 3 and 4 thousand bytes.
    """

    notes = """Measure a training step of Long Range Arena's Text task, as in Luna, table 2.

    This is train --task classify at lengths of 1, 2, 3 and 4 thousand bytes, with l = 16, 128 and 256. Luna
    has separate keys and values. luna-16-anchored is the extended model.

    The rows transformer-softmax and transformer-sdpa are fairseq's Transformer with explicit attention
    weights and with torch's scaled_dot_product_attention."""
    example = "--batch 1x1024 --projection-length 16"
    options = {**Train.options, **number_options(projection_length=[16, 128, 256])}
    options["--task"] = {**options["--task"], "default": "classify"}
    options["--batch"] = {
        **options["--batch"],
        "default": [BatchSize(1, 1024 * i) for i in (1, 2, 3, 4)],
        "help": f"{BATCH_HELP} (default: 1x1024 1x2048 1x3072 1x4096)",
    }


def step(model: torch.nn.Module, loss: Loss) -> None:
    """Run the forward and backward passes of a model, and free the gradients."""
    loss().backward()
    model.zero_grad(set_to_none=True)
