"""The table of all changes to fairseq.

We change fairseq only if it does not run on a supported version, or if one of our models, tasks or recipes
gives a wrong result or loses work without the change. Each entry stands beside its code, in the file of its
subject. One function of fairseq is replaced by one function, whose steps stand in order.
"""

import os
from importlib import import_module
from typing import FrozenSet, Tuple

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError

SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"
# The files with entries.
_SUBJECTS = (
    *("batches", "checkpoint_contents", "checkpoints", "entry_points", "loader_threads", "numpy_2"),
    *("old_layers", "place_in_epoch", "precision", "processes", "reading", "starting_point", "stopping"),
)
_FOUND = (vars(import_module(f"luna_fairseq.engine.{subject}")).values() for subject in _SUBJECTS)
TABLE: Tuple[Mend, ...] = tuple(
    sorted((x for found in _FOUND for x in found if isinstance(x, Mend)), key=lambda mend: mend.importance)
)


def mend_fairseq() -> None:
    """Apply every entry of the table that is needed here and not left out. A second call does nothing.

    Raises:
        InputError: LUNA_FAIRSEQ_LEAVE_OUT names an entry that the table does not have.
    """
    left_out = names_left_out()
    for mend in TABLE:
        mend.apply(mend.name in left_out)


def names_left_out() -> FrozenSet[str]:
    """Return the entries that the environment variable LUNA_FAIRSEQ_LEAVE_OUT names, separated by commas."""
    names = [name.strip() for name in os.environ.get(SWITCH, "").split(",")]
    known = [mend.name for mend in TABLE]
    unknown = [name for name in names if name and name not in known]
    if unknown:
        raise InputError(f"{SWITCH} names {', '.join(unknown)}; what can be left out is {', '.join(known)}")
    return frozenset(filter(None, names))
