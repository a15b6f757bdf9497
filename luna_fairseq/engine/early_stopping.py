"""Save and restore the counter of fairseq-train's ``--patience``: validations without improvement.

fairseq keeps this counter in attributes of its function ``should_stop_early``.
"""

import sys
from typing import Any, Dict


def patience_state() -> Dict[str, Any]:
    """Return the counter of --patience as an entry for a checkpoint, or {} before any validation."""
    function = _find_function()
    if not hasattr(function, "best"):
        return {}
    return {"patience": [float(function.best), function.num_runs]}


def restore_patience(extra_state: Dict[str, Any]) -> None:
    """Restore the counter of --patience from a checkpoint's ``extra_state``, if the state contains it."""
    function = _find_function()
    if function is not None and "patience" in extra_state:
        function.best, function.num_runs = extra_state["patience"]


def has_run_out_of_patience(patience: int) -> bool:
    """Return True if the last ``patience`` validations brought no improvement. False if ``patience`` <= 0."""
    return 0 < patience <= getattr(_find_function(), "num_runs", 0)


def _find_function() -> Any:
    """Return fairseq's ``should_stop_early``, or None if this process does not run fairseq-train."""
    for program in ("__main__", "fairseq_cli.train"):
        function = getattr(sys.modules.get(program), "should_stop_early", None)
        if function is not None:
            return function
    return None
