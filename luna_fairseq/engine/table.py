"""Table of all changes to fairseq.

We change fairseq only if it does not run on a supported version, or if one of our models, tasks or recipes
gives a wrong result or loses work without the change. Each :class:`~luna_fairseq.engine.patch.Patch` is
defined in the module with its code. No function of fairseq is replaced by two patches.
"""

import os
from importlib import import_module
from typing import FrozenSet, Tuple

from luna_fairseq.engine.patch import Patch
from luna_fairseq.errors import InputError

# Environment variable with the names of patches that are not applied.
SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"
# The modules with patches.
_SUBJECTS = (
    *("batches", "checkpoint_contents", "checkpoints", "entry_points", "loader_threads", "numpy_2"),
    *(
        "old_layers",
        "place_in_epoch",
        "precision",
        "prepared_data",
        "processes",
        "starting_point",
        "stopping",
    ),
)
_CONTENTS = (vars(import_module(f"luna_fairseq.engine.{subject}")).values() for subject in _SUBJECTS)
TABLE: Tuple[Patch, ...] = tuple(
    sorted(
        (value for values in _CONTENTS for value in values if isinstance(value, Patch)),
        key=lambda patch: patch.importance,
    )
)


def patch_fairseq() -> None:
    """Apply every patch that the installed versions need and that is not left out.

    A second call does nothing.

    Raises:
        InputError: LUNA_FAIRSEQ_LEAVE_OUT names a patch that does not exist.
    """
    left_out = names_left_out()
    for patch in TABLE:
        patch.apply(patch.name in left_out)


def names_left_out() -> FrozenSet[str]:
    """Return the names in the environment variable LUNA_FAIRSEQ_LEAVE_OUT, separated by commas.

    Raises:
        InputError: The variable names a patch that does not exist.
    """
    names = [name.strip() for name in os.environ.get(SWITCH, "").split(",")]
    known = [patch.name for patch in TABLE]
    unknown = [name for name in names if name and name not in known]
    if unknown:
        raise InputError(
            f"{SWITCH} has the unknown name {', '.join(unknown)}: choose from {', '.join(known)}"
        )
    return frozenset(filter(None, names))
