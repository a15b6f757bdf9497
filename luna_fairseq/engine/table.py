"""Every change to fairseq's own behaviour: what it needs to run, to be right, to be kind.

An entry stands beside the code that does it, in the file of its subject. What is around one function of
fairseq is one function, whose steps stand in order.
"""

import os
from importlib import import_module
from typing import FrozenSet, Tuple

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError

SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"
# The files with entries.
_SUBJECTS = (
    *("checkpoint_contents", "checkpoints", "decoding", "entry_points", "memory", "numpy_2", "old_layers"),
    *("place_in_epoch", "precision", "presets", "processes", "reading", "starting_point", "statistics"),
    "termination",
)
_FOUND = (vars(import_module(f"luna_fairseq.engine.{subject}")).values() for subject in _SUBJECTS)
TABLE: Tuple[Mend, ...] = tuple(
    sorted((x for found in _FOUND for x in found if isinstance(x, Mend)), key=lambda mend: mend.importance)
)


def mend_fairseq() -> None:
    """Make the changes of the table that are needed here and not left out; again, it changes nothing.

    Raises:
        InputError: the switch names something that is not in the table.
    """
    left_out = names_left_out()
    for mend in TABLE:
        mend.apply(mend.name in left_out)


def names_left_out() -> FrozenSet[str]:
    """The entries that the environment variable LUNA_FAIRSEQ_LEAVE_OUT names, with commas between."""
    names = [name.strip() for name in os.environ.get(SWITCH, "").split(",")]
    known = [mend.name for mend in TABLE]
    unknown = [name for name in names if name and name not in known]
    if unknown:
        raise InputError(f"{SWITCH} names {', '.join(unknown)}; what can be left out is {', '.join(known)}")
    return frozenset(filter(None, names))
