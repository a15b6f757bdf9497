"""Metrics of GLUE and the multiple-choice tasks, in percent."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from luna_fairseq.masked_lm.finetuning.task import FineTuningTask
from luna_fairseq.requirements import import_package


def score(task: FineTuningTask, predicted: Sequence[Any], expected: Sequence[Any]) -> Dict[str, float]:
    """Compute all metrics of a task.

    Args:
        task: task that is scored.
        predicted: predicted labels, or numbers for regression.
        expected: correct labels, or numbers for regression, in the same order.

    Returns:
        Value of each metric in percent, by the name of the metric.

    Raises:
        MissingRequirementError: scikit-learn, which also installs scipy, is missing.
    """
    metrics = import_package("sklearn.metrics", f"the metric of {task.name}")
    stats = import_package("scipy.stats", f"the metric of {task.name}")
    known: Dict[str, Callable[[], float]] = {
        "accuracy": lambda: metrics.accuracy_score(expected, predicted),
        "f1": lambda: metrics.f1_score(expected, predicted, pos_label="1"),
        "matthews": lambda: metrics.matthews_corrcoef(expected, predicted),
        "pearson": lambda: stats.pearsonr(expected, predicted)[0],
        "spearman": lambda: stats.spearmanr(expected, predicted)[0],
        "pearson_spearman": lambda: (known["pearson"]() + known["spearman"]()) / 2,
    }
    return {name: 100.0 * float(known[name]()) for name in task.metrics}
