"""The training step of whole models: what ``train`` times for each of its tasks."""

import argparse
from functools import partial
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence

import torch

from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.measure import Case, Job
from luna_fairseq.benchmark.models import ModelTask, batch_cases, batch_of, pad_after, translation_task
from luna_fairseq.benchmark.options import MODEL_DTYPES, BatchSize, add_projection_length, batch_size
from luna_fairseq.benchmark.peers import Model

Loss = Callable[[], torch.Tensor]
# Sentences of different length, for the comparison before anything is timed.
CHECKED_LENGTHS = (11, 7, 2)


class Training(ModelTask):
    """Forward, loss, backward.

    A task says of what kind its models are (:meth:`options`) and what a batch's loss is (:meth:`loss`).

    Attributes:
        default_batches: without ``--batch``
    """

    default_batches: ClassVar[Sequence[BatchSize]]
    name = "train"
    rate = "tokens"

    def loss(self, model: Any, batch: BatchSize, lengths: Sequence[int] = ()) -> Loss:
        """The loss of a random batch, by token or sentence as fairseq divides it.

        Args:
            model: to train
            batch: sentences and tokens of each
            lengths: of each sentence, when some are shorter than the batch; they are padded
        """
        raise NotImplementedError

    def pad(self, rows: Sequence[torch.Tensor], lengths: Sequence[int]) -> int:
        """Pad tokens [B, T] after the lengths, when there are any; gives the padding symbol."""
        padding_idx = translation_task(self.dictionary_size).source_dictionary.pad()
        for tokens in rows:
            pad_after(tokens, lengths, padding_idx)
        return padding_idx

    def cases(self) -> List[Case]:
        return batch_cases(self.args.batch or self.default_batches)

    def count(self, case: Case) -> int:
        return case["sentences"] * case["T"]

    def build(self, row: Model, case: Case) -> Any:
        model = self.make_model(row, batch_of(case))
        torch.manual_seed(self.settings.seed)  # the same batch for every model
        return model, self.loss(model, batch_of(case))

    def step(self, row: Model, built: Any, case: Case) -> Job:
        return partial(step, *built)

    def check(self, rows: Dict[str, Model]) -> None:
        """Loss and gradients must be those of the row's definition with the same parameters."""
        for name, row in rows.items():
            if row.definition is None:
                continue
            pair = (self.loss_and_gradients(r) for r in (row, row.definition(row)))
            for what, ours, theirs in zip(("loss", "gradient"), *pair):
                require_equal(
                    name, f"its {what} differs from that of the written-out model", relative_rms(ours, theirs)
                )

    def loss_and_gradients(self, row: Model) -> List[torch.Tensor]:
        """Of a batch with padding, without dropout, in float32; the gradients of all parameters as one
        vector.
        """
        batch = BatchSize(len(CHECKED_LENGTHS), CHECKED_LENGTHS[0])
        model = self.make_model(row, batch, dropout=0.0).float()
        torch.manual_seed(self.settings.seed)
        loss = self.loss(model, batch, CHECKED_LENGTHS)()
        loss.backward()
        # Sorted, because a parameter that moved to another module comes at another place.
        parameters = sorted(model.named_parameters())
        return [loss.detach(), torch.cat([p.grad.flatten() for _, p in parameters if p.grad is not None])]

    def describe(self) -> str:
        return f"{self.task.replace('_', '-')}: {super().describe()}"


def add_run_options(
    parser: argparse.ArgumentParser,
    batches: Optional[Sequence[BatchSize]] = None,
    projection_lengths: Sequence[int] = (16,),
) -> None:
    """``--batch``, ``--projection-length`` and ``--dtype``."""
    add = parser.add_argument
    default = " ".join(map(str, batches)) if batches else "32x30, masked-lm 1x512, classify 1x1024"
    add(
        "--batch",
        type=batch_size,
        nargs="+",
        default=batches,
        metavar="NxT",
        help=f"sentences x tokens in each, several allowed (default: {default})",
    )
    add_projection_length(parser, projection_lengths)
    add("--dtype", choices=list(MODEL_DTYPES), default="float32", help="of the parameters (default: float32)")


def step(model: torch.nn.Module, loss: Loss) -> None:
    """Forward, loss, backward; the gradients are dropped, as an optimizer's step would have used them."""
    loss().backward()
    model.zero_grad(set_to_none=True)
