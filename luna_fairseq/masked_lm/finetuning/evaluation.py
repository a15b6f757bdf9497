"""Evaluation of a fine-tuned checkpoint on a split of its task (``luna-evaluate-task``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import torch

import luna_fairseq.models  # noqa: F401  (registers the models of checkpoints)
from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import overwrite_args_by_name
from luna_fairseq.checks.model_options import get_option
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning import TASKS, FineTuningTask
from luna_fairseq.masked_lm.finetuning.metrics import compute_metrics
from luna_fairseq.masked_lm.finetuning.prepared import DESCRIPTION, HIGHEST_SCORE, PreparedTask
from luna_fairseq.progress import progress


def evaluate(
    data: PreparedTask, path: Path, split: str, batch_size: int
) -> Tuple[Dict[str, float], List[Any], str]:
    """Evaluate a fine-tuned checkpoint on a split of the prepared task ``data``.

    Returns:
        - dictionary from metric name to value in percent, empty if the split has no labels.
        - predictions in the order of the data: labels or, for regression, numbers.
        - note on the number of truncated examples, or "" if no example was truncated.
    """
    if split not in data.examples:
        raise InputError(f"{data.folder} has no split {split!r}. Give one of {', '.join(data.examples)}.")
    if not path.is_file():
        raise InputError(f"{path} does not exist. Give a fine-tuned checkpoint.")
    model, config, task = _load_checkpoint(path, data)
    truncation_note = _describe_truncation(task, split)
    task.load_dataset(split)
    criterion, published = config.criterion, TASKS[data.task]
    head = get_option(criterion, "classification_head_name") or get_option(criterion, "ranking_head_name")
    if head not in model.classification_heads:
        raise InputError(f"{path} has no classification head {head!r}. Give a fine-tuned checkpoint.")
    predicted: List[Any] = [None] * data.examples[split]
    expected: List[Any] = [None] * data.examples[split]
    batches = -(-data.examples[split] // batch_size)
    for sample in progress(_batches(task.dataset(split), batch_size), split, "batches", batches):
        # Multiple choice has one input per candidate.
        inputs = [sample[name] for name in sorted(sample) if name.startswith("net_input")]
        with torch.no_grad():
            logits = torch.cat([model(**x, classification_head_name=head)[0] for x in inputs], dim=1)
        answers = sample["target"].view(-1).tolist() if "target" in sample else [None] * len(logits)
        values = logits.view(-1).tolist() if published.is_regression else logits.argmax(dim=1).tolist()
        for index, value, answer in zip(sample["id"].tolist(), values, answers):
            predicted[index] = _to_label(published, value)
            expected[index] = _to_label(published, answer)
    metrics = compute_metrics(published, predicted, expected) if split in data.labelled else {}
    return metrics, predicted, truncation_note


def _describe_truncation(task: Any, split: str) -> str:
    """Enable truncation in a fairseq task, and return a note on the number of truncated examples.

    The note is "" or, for example, " (4 were truncated to the model's 512 positions)".
    """
    options, positions = task.args if task.cfg is None else task.cfg, task.max_positions()
    options.shorten_method = "none"
    task.load_dataset(split)
    dataset = task.dataset(split)
    longer = sum(int(dataset.num_tokens(index)) > positions for index in range(len(dataset)))
    options.shorten_method, options.shorten_data_split_list = "truncate", ""
    return f" ({longer:,} were truncated to the model's {positions:,} positions)" if longer else ""


def _load_checkpoint(path: Path, data: PreparedTask) -> Tuple[torch.nn.Module, Any, Any]:
    """Load a fine-tuned checkpoint. Return its model, configuration and fairseq task.

    Raises InputError if the checkpoint was fine-tuned on a task other than ``data``.
    """
    task_kind = "sentence_ranking" if TASKS[data.task].is_multiple_choice else "sentence_prediction"
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    options = state["cfg"]["task"]
    name = get_option(options, "_name") or get_option(options, "task")
    if name != task_kind or get_option(options, "num_classes") != max(1, len(TASKS[data.task].labels)):
        raise InputError(
            f"{path} was trained on fairseq's task {name}. "
            f"Give a checkpoint that was fine-tuned on {data.task}."
        )
    training_data = Path(str(get_option(options, "data")))
    # Different tasks can have the same labels, so the training data folders are compared.
    if (training_data / DESCRIPTION).is_file() and PreparedTask.load(training_data).task != data.task:
        raise InputError(
            f"{path} was fine-tuned on {PreparedTask.load(training_data).task}, not on {data.task}. "
            f"Give a checkpoint of {data.task}."
        )
    overwrite_args_by_name(state["cfg"], {"data": str(data.folder)})
    models, config, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), config, task


def _batches(dataset: Any, batch_size: int) -> Iterator[Dict[str, Any]]:
    """Yield the batches of a fairseq dataset in order, on the GPU if available."""
    for start in range(0, len(dataset), batch_size):
        examples = [dataset[index] for index in range(start, min(start + batch_size, len(dataset)))]
        sample = dataset.collater(examples)
        yield utils.move_to_cuda(sample) if torch.cuda.is_available() else sample


def _to_label(task: FineTuningTask, value: Any) -> Any:
    """Convert a class index to its label or, for regression, a normalized score to the task's scale.

    Return None if ``value`` is None, for an example without a label.
    """
    if value is None:
        return None
    return value * HIGHEST_SCORE if task.is_regression else task.labels[int(value)]
