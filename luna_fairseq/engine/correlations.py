"""fairseq patch ``correlations``: report a correlation that does not exist as -1, the lowest one.

Correlations select the best epoch of STS-B. Between equal predictions, or for a single example, they do not
exist.
"""

import math
from typing import Any, Dict

from luna_fairseq.engine.patch import RESULTS, Function, Patch


def _has_correlations() -> bool:
    """Return True if the installed fairseq computes correlations."""
    from fairseq.criterions import sentence_prediction

    return hasattr(sentence_prediction, "pearson_and_spearman")


CORRELATIONS = Patch(
    "correlations",
    RESULTS,
    "luna-finetune STS-B stops in a traceback if a validation batch has one example. After a validation with "
    "equal predictions, whose correlation is NaN, --patience ends the run although it improves, or a worse "
    "epoch replaces checkpoint_best.pt.",
    versions="fairseq 0.12.3 (fairseq-fixed)",
    is_needed=_has_correlations,
)


@CORRELATIONS.replaces("fairseq.criterions.sentence_prediction:pearson_and_spearman")
def _correlate(pearson_and_spearman: Function, preds: Any, labels: Any) -> Dict[str, float]:
    """Replacement for ``pearson_and_spearman`` that returns -1 in place of NaN or an error."""
    if len(preds) < 2:
        return {"pearson": -1.0, "spearmanr": -1.0, "corr": -1.0}
    values = pearson_and_spearman(preds, labels)
    return {name: -1.0 if math.isnan(value) else value for name, value in values.items()}
