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
    try:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
    except ImportError as error:
        raise MissingRequirementError("the metrics need scikit-learn: pip install scikit-learn") from error
    known: Dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(expected, predicted),
        "f1": lambda: f1_score(expected, predicted, pos_label="1"),
        "matthews": lambda: matthews_corrcoef(expected, predicted),
        "pearson": lambda: pearsonr(expected, predicted)[0],
        "spearman": lambda: spearmanr(expected, predicted)[0],
        "pearson_spearman": lambda: (known["pearson"]() + known["spearman"]()) / 2,
    }
    return {name: 100.0 * float(known[name]()) for name in task.metrics}
