"""The metrics by which GLUE and the multiple-choice tasks are reported, in percent."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

from luna_fairseq.errors import MissingRequirementError
from luna_fairseq.masked_lm.finetuning.task import FineTuningTask


def score(task: FineTuningTask, predicted: Sequence[Any], expected: Sequence[Any]) -> Dict[str, float]:
    """All metrics of ``task``, by name.

    Args:
        task: what is scored.
        predicted: labels, or numbers of a regression.
        expected: the same for the right answers.

    Raises:
        MissingRequirementError: scikit-learn, which brings scipy, is not installed.
    """
    known = _metrics()
    return {name: 100.0 * float(known[name](expected, predicted)) for name in task.metrics}


def _metrics() -> Dict[str, Callable[[Sequence[Any], Sequence[Any]], float]]:
    try:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
    except ImportError as error:
        raise MissingRequirementError("the metrics need scikit-learn: pip install scikit-learn") from error
    return {
        "accuracy": accuracy_score,
        "f1": lambda expected, predicted: f1_score(expected, predicted, pos_label="1"),
        "matthews": matthews_corrcoef,
        "pearson": lambda expected, predicted: pearsonr(expected, predicted)[0],
        "spearman": lambda expected, predicted: spearmanr(expected, predicted)[0],
        "pearson_spearman": lambda expected, predicted: (
            (pearsonr(expected, predicted)[0] + spearmanr(expected, predicted)[0]) / 2
        ),
    }
