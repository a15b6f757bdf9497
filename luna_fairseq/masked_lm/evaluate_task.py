"""``luna-evaluate-task``: a fine-tuned checkpoint's metrics on a split of a prepared task, and its
predictions.

DATA is what luna-prepare-task made. The metrics are the task's own, in percent; predictions are written one a
line, in the order of the task's file, as the task writes labels. A split without answers has predictions
only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import torch

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import overwrite_args_by_name
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.checkpoint import option_of
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.masked_lm.finetuning import TASKS, FineTuningTask
from luna_fairseq.masked_lm.finetuning.metrics import score
from luna_fairseq.masked_lm.finetuning.prepared import DESCRIPTION, HIGHEST_SCORE, PreparedTask
from luna_fairseq.progress import progress

PROGRAM = "luna-evaluate-task"


def _evaluate(args: argparse.Namespace) -> None:
    data = PreparedTask.load(args.data)
    results, predicted, cut = evaluate(data, args.path, args.split, args.batch_size)
    if args.predictions is not None:
        write_text(args.predictions, "".join(f"{value}\n" for value in predicted))
    shown = "".join(f"  {name} {value:.2f}" for name, value in results.items())
    shown = shown or "  no answers to compare with"
    print(f"{data.task} {args.split}, {len(predicted):,} examples{cut}:{shown}")


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("data", "folder of the prepared task", "DATA")
    parser.path("--path", "fine-tuned checkpoint", "CHECKPOINT", required=True)
    splits = "valid, valid1, test, test1 (default: valid)"
    parser.add_argument("--split", default="valid", metavar="NAME", help=splits)
    parser.count("--batch-size", 32, "examples at a time")
    parser.path("--predictions", "file to write the predictions to")
    return parser


def evaluate(
    data: PreparedTask, path: Path, split: str, batch_size: int
) -> Tuple[Dict[str, float], List[Any], str]:
    """Evaluate a checkpoint that was fine-tuned on ``data``.

    Returns:
        metrics by name, none for a split without answers; the predictions in the order of the data; and how
        many examples were cut to the model's positions, in words, "" if none was

    Raises:
        InputError: there is no such split or checkpoint, or the checkpoint was trained on something else
    """
    if split not in data.examples:
        raise InputError(f"{data.folder} has no split {split!r}; it has {', '.join(data.examples)}")
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    model, config, task = _load(path, data)
    cut = _count_cut(task, split)
    task.load_dataset(split)
    asked, published = config.criterion, TASKS[data.task]
    head = option_of(asked, "classification_head_name") or option_of(asked, "ranking_head_name")
    if head not in model.classification_heads:
        raise InputError(f"the checkpoint has no classification head {head!r}")
    predicted: List[Any] = [None] * data.examples[split]
    expected: List[Any] = [None] * data.examples[split]
    batches = -(-data.examples[split] // batch_size)
    for sample in progress(_batches(task.dataset(split), batch_size), split, "batches", batches):
        # One, or of multiple choice one for each candidate.
        inputs = [sample[name] for name in sorted(sample) if name.startswith("net_input")]
        with torch.no_grad():
            logits = torch.cat([model(**x, classification_head_name=head)[0] for x in inputs], dim=1)
        answers = sample["target"].view(-1).tolist() if "target" in sample else [None] * len(logits)
        values = logits.view(-1).tolist() if published.is_regression else logits.argmax(dim=1).tolist()
        for index, value, answer in zip(sample["id"].tolist(), values, answers):
            predicted[index], expected[index] = _written(published, value), _written(published, answer)
    return (score(published, predicted, expected) if split in data.labelled else {}), predicted, cut


def _count_cut(task: Any, split: str) -> str:
    """Say how many examples are longer than the model's positions, and have ``task`` cut them as in
    training."""
    options, positions = task.args if task.cfg is None else task.cfg, task.max_positions()
    options.shorten_method = "none"
    task.load_dataset(split)
    dataset = task.dataset(split)
    longer = sum(int(dataset.num_tokens(index)) > positions for index in range(len(dataset)))
    options.shorten_method, options.shorten_data_split_list = "truncate", ""
    return f" ({longer:,} were cut to the model's {positions:,} positions)" if longer else ""


def _load(path: Path, data: PreparedTask) -> Tuple[torch.nn.Module, Any, Any]:
    task_kind = "sentence_ranking" if TASKS[data.task].is_multiple_choice else "sentence_prediction"
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    asked = state["cfg"]["task"]
    found = option_of(asked, "_name") or option_of(asked, "task")
    if found != task_kind or option_of(asked, "num_classes") != max(1, len(TASKS[data.task].labels)):
        raise InputError(f"{path} was not fine-tuned on {data.task}: it is of the task {found}")
    trained = Path(str(option_of(asked, "data")))
    # Tasks of as many classes have labels of the same names. (A folder that is gone says nothing.)
    if (trained / DESCRIPTION).is_file() and PreparedTask.load(trained).task != data.task:
        raise InputError(f"{path} was fine-tuned on {PreparedTask.load(trained).task}, not on {data.task}")
    overwrite_args_by_name(state["cfg"], {"data": str(data.folder)})
    models, config, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), config, task


def _batches(dataset: Any, batch_size: int) -> Iterator[Dict[str, Any]]:
    for start in range(0, len(dataset), batch_size):
        rows = [dataset[index] for index in range(start, min(start + batch_size, len(dataset)))]
        sample = dataset.collater(rows)
        yield utils.move_to_cuda(sample) if torch.cuda.is_available() else sample


def _written(task: FineTuningTask, value: Any) -> Any:
    """As the task writes its labels."""
    if value is None:
        return None
    return value * HIGHEST_SCORE if task.is_regression else task.labels[int(value)]


main = console_script(PROGRAM, build_parser, _evaluate, place="data", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
