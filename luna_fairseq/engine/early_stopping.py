"""Counter of fairseq-train's ``--patience``, which fairseq keeps in attributes of a function."""

import sys
from typing import Any, Dict


def patience_state() -> Dict[str, Any]:
    """Return the counter as an entry of a checkpoint's ``extra_state``; empty before the first validation."""
    function = _find_function()
    if not hasattr(function, "best"):
        return {}
    return {"patience": [float(function.best), function.num_runs]}


def restore_patience(extra_state: Dict[str, Any]) -> None:
    """Restore the counter from a checkpoint's ``extra_state``, if it has one."""
    function = _find_function()
    if function is not None and "patience" in extra_state:
        function.best, function.num_runs = extra_state["patience"]


def has_run_out_of_patience(patience: int) -> bool:
    """Return True if as many validations in a row as ``--patience`` allows have brought no improvement."""
    return 0 < patience <= getattr(_find_function(), "num_runs", 0)


def _find_function() -> Any:
    """Return the function, or None if this process does not run fairseq-train."""
    for program in ("__main__", "fairseq_cli.train"):
        function = getattr(sys.modules.get(program), "should_stop_early", None)
        if function is not None:
            return function
    return None
