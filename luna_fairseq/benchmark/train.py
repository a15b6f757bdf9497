"""Tasks ``train`` and ``lra``: training steps in translation, masked LM and classification."""

from argparse import Namespace
from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

import torch
from torch.nn import functional as F

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from luna_fairseq.benchmark.models import Model, ModelTask, attention_written_out
from luna_fairseq.benchmark.task import BatchSize, Case, Job, choice, numbers, require_equal

Loss = Callable[[], torch.Tensor]
# Lengths of the sentences for the comparison before anything is timed.
CHECKED = (11, 7, 2)
# About 15 % of the tokens are predicted, as in pretraining; the same tokens for every model.
PREDICTED = slice(1, None, 7)
TASKS = {"translate": BatchSize(32, 30), "masked-lm": BatchSize(1, 512), "classify": BatchSize(1, 1024)}


class Train(ModelTask):
    """Task ``train``: forward pass, loss and backward pass of a whole model."""

    notes = """training step of a whole model: Luna beside fairseq's Transformer or RoBERTa
    with dropout 0.1: forward, loss as fairseq divides it, backward. The optimizer is left out: it would cost
    all models the same and draw the ratios towards 1. Batches of random tokens without padding, source and
    target of the same length; masked-lm predicts every seventh token; classify has two classes of bytes,
    [CLS], and the architectures of Long Range Arena's Text. transformer is fairseq's, which passes a float
    mask to torch's attention function; -sdpa the same on scaled_dot_product_attention with is_causal;
    -softmax has its weights written out. Extra memory includes the gradients. Before anything is timed, loss
    and gradients were compared with those of the same model with all attention written out."""
    rate = "tokens"
    options = {
        **ModelTask.options,
        "--task": choice(*TASKS, what="what is trained; "),
        "--batch": dict(type=BatchSize.read, nargs="+", metavar="NxT", help="sentences x tokens in each"),
        **numbers(projection_length=[16]),
    }

    def __init__(self, args: Namespace):
        super().__init__(args)
        self.task = args.task.replace("-", "_")

    def cases(self) -> List[Case]:
        return [batch._asdict() for batch in self.args.batch or [TASKS[self.args.task]]]

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        """Return a function that computes the loss of a random batch, divided as fairseq divides it.

        Args:
            model: model to train.
            batch: size of the batch.
            lengths: number of tokens of each sentence, before its padding (default: no padding).
        """
        source, target = (self.random_sentences(batch) for _ in range(2))
        previous, task = target.roll(1, dims=1), self.fairseq_task(batch.T)
        pad = task.source_dictionary.pad()
        for tokens in (source, target, previous):
            for row, length in zip(tokens, lengths):
                row[length:] = pad
        if self.task == "classify":
            labels = torch.arange(batch.sentences, device=source.device) % 2
            return lambda: F.cross_entropy(model(source).float(), labels)
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

    def job(self, row: Model, case: Case) -> Job:
        model = self.make_model(row, case["T"])
        torch.manual_seed(self.args.seed)  # the same batch for every model
        return partial(step, model, self.loss(model, BatchSize(**case)))

    def check(self, row: Model) -> float:
        actual = self.loss_and_gradients(row)
        with attention_written_out():
            expected = self.loss_and_gradients(row.definition())
        said = (f"its {what} differs from that of the written-out model" for what in ("loss", "gradient"))
        return max(map(require_equal, said, actual, expected))

    def loss_and_gradients(self, row: Model) -> Tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss and all gradients of a batch with padding, without dropout, in float32.

        Args:
            row: row of the table.

        Returns:
            The loss, and the gradients of all parameters as one vector.
        """
        batch = BatchSize(len(CHECKED), CHECKED[0])
        model = self.make_model(row, batch.T, dropout=0.0).float()
        torch.manual_seed(self.args.seed)
        loss = self.loss(model, batch, CHECKED)()
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return loss.detach(), torch.cat(gradients)


class LongRangeArena(Train):
    """Task ``lra``: training steps of Long Range Arena's Text task at the lengths of the paper's Table 2."""

    notes = """training step of Long Range Arena's byte classifiers, as in the paper's Table 2
    by what train --task classify measures; Luna's keys and values are untied."""
    options = {**Train.options, **numbers(projection_length=[16, 128, 256])}
    options["--task"] = {**options["--task"], "default": "classify"}
    options["--batch"] = {**options["--batch"], "default": [BatchSize(1, 1024 * i) for i in (1, 2, 3, 4)]}


def step(model: torch.nn.Module, loss: Loss) -> None:
    """Run the forward and backward pass, and free the gradients as a training loop does after its step.

    Args:
        model: model to train.
        loss: function that computes the loss.
    """
    loss().backward()
    model.zero_grad(set_to_none=True)
