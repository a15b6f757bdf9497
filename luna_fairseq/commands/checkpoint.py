"""What the commands of this package have in common: a checkpoint and a split of its data."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Iterable, Optional, Tuple

import torch

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils, utils
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress


def checkpoint_script(
    program: str, doc: Optional[str], report: Callable[[argparse.Namespace], Any]
) -> Callable[..., int]:
    """The entry point of the command ``program`` that gives DATA, ``--path``, ``--valid-subset`` and
    ``--batch-size`` to ``report``; see :func:`luna_fairseq.commands.reporting.console_script`."""

    def build_parser() -> CommandParser:
        parser = CommandParser(program, doc)
        parser.path("data", "folder of the data that fairseq-train had", "DATA")
        parser.path("--path", "a trained model", "CHECKPOINT", required=True)
        split = "split to read (default: %(default)s)"
        parser.add_argument("--valid-subset", default="valid", metavar="NAME", help=split)
        parser.count("--batch-size", 64, "sequences at a time")
        return parser

    return console_script(program, build_parser, report, place="data", hides_log=True)


def load(args: argparse.Namespace) -> Tuple[Any, Any]:
    """The model, in evaluation mode and on the GPU where there is one, and its task. Raises InputError where
    there is no such file."""
    if not args.path.is_file():
        raise InputError(f"{args.path} does not exist: give --path a checkpoint that fairseq-train wrote")
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(args.path)], {"data": str(args.data)}
    )
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


def load_split(args: argparse.Namespace, task: Any) -> Tuple[int, Iterable[Any]]:
    """Number of sequences in the split, and its batches. Raises InputError where it is empty, or a text that
    does not end."""
    if hasattr(task, "new_stream"):
        raise InputError(
            f"{args.path} was trained to read on where a batch before ended, and here every sequence stands "
            "for itself: give a checkpoint of a task of sequences, such as masked_lm"
        )
    task.load_dataset(args.valid_subset)
    dataset = task.dataset(args.valid_subset)
    if not len(dataset):
        raise InputError(f"{args.data} has no sentences in {args.valid_subset}")
    batches = task.get_batch_iterator(dataset, max_sentences=args.batch_size)
    return len(dataset), progress(batches.next_epoch_itr(shuffle=False), args.valid_subset, "batches")


def option_of(config: Any, name: str) -> Any:
    """An option of a checkpoint's configuration, of fairseq's old or new kind; None where it has none."""
    if name not in config:  # asked first: get() of omegaconf 2.0 raises
        return None
    return getattr(config, name) if isinstance(config, argparse.Namespace) else config[name]


def on_device_of(model: torch.nn.Module, batch: Any) -> Any:
    """The batch where the model's parameters are."""
    device = next(model.parameters()).device
    return utils.move_to_cuda(batch, device) if device.type == "cuda" else batch
