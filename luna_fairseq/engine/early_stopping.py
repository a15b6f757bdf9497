"""Saving and restoring of the early-stopping counter that fairseq-train compares with ``--patience``.

fairseq counts the validations without improvement in attributes of its ``should_stop_early``, and keeps the
best score in an attribute of ``save_checkpoint``.
"""

import sys
from typing import Any, Dict


def patience_state() -> Dict[str, Any]:
    """Return a checkpoint entry with the best score and the early-stopping counter. {} if neither exists."""
    function = _find_function()
    if not hasattr(function, "best"):
        return {}
    return {"patience": [float(function.best), function.num_runs]}


def forget_earlier_training() -> None:
    """Delete the scores and the early-stopping counter of an earlier training in this process, if any."""
    from fairseq import checkpoint_utils

    for function in filter(None, (_find_function(), checkpoint_utils.save_checkpoint)):
        for name in ("best", "num_runs"):
            vars(function).pop(name, None)


def restore_patience(extra_state: Dict[str, Any]) -> None:
    """Restore the early-stopping counter (--patience) and the best score from ``extra_state``, if present."""
    function = _find_function()
    if function is not None and "patience" in extra_state:
        function.best, function.num_runs = extra_state["patience"]


def has_run_out_of_patience(patience: int) -> bool:
    """Return True if the last ``patience`` validations brought no improvement, and ``patience`` > 0."""
    return 0 < patience <= getattr(_find_function(), "num_runs", 0)


def _find_function() -> Any:
    """Return fairseq's ``should_stop_early``. None if this process does not run fairseq-train."""
    for program in ("__main__", "fairseq_cli.train"):
        function = getattr(sys.modules.get(program), "should_stop_early", None)
        if function is not None:
            return function
    return None
