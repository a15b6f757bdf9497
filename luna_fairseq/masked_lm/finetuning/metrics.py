"""Metrics of GLUE and the multiple-choice tasks, in percent."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Sequence

from luna_fairseq.masked_lm.finetuning.task import FineTuningTask
from luna_fairseq.requirements import import_package


def compute_metrics(
    task: FineTuningTask, predicted: Sequence[Any], expected: Sequence[Any]
) -> Dict[str, float]:
    """Compare predicted with expected labels. Return a dictionary of the task's metrics in percent.

    A correlation is NaN for a single example, or if all predictions are equal.
    """
    if task.is_regression and len(expected) < 2:
        return dict.fromkeys(task.metrics, math.nan)
    metrics = import_package("sklearn.metrics", f"the metric of {task.name}")
    stats = import_package("scipy.stats", f"the metric of {task.name}")
    functions: Dict[str, Callable[[], float]] = {
        "accuracy": lambda: metrics.accuracy_score(expected, predicted),
        "f1": lambda: metrics.f1_score(expected, predicted, pos_label="1"),
        "matthews": lambda: metrics.matthews_corrcoef(expected, predicted),
        "pearson": lambda: stats.pearsonr(expected, predicted)[0],
        "spearman": lambda: stats.spearmanr(expected, predicted)[0],
        "pearson_spearman": lambda: (functions["pearson"]() + functions["spearman"]()) / 2,
    }
    return {name: 100.0 * float(functions[name]()) for name in task.metrics}
