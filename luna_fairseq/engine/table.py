"""Table of all changes to fairseq.

fairseq is changed only if it would otherwise not run with a supported version of its dependencies, or if a
model, task or recipe of this project would give wrong results or lose work. Each module that changes fairseq
defines its own :class:`~luna_fairseq.engine.patch.Patch`. No fairseq function is replaced by more than one
patch.
"""

import os
from importlib import import_module
from typing import FrozenSet, List, Tuple

from luna_fairseq.engine.patch import Patch
from luna_fairseq.errors import InputError

# Environment variable that lists the patches to skip.
SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"
# Modules in this package that define patches.
_MODULES = (
    "averages",
    "batches",
    "checkpoint_contents",
    "checkpoints",
    "correlations",
    "data_loaders",
    "entry_points",
    "loader_threads",
    "numpy_2",
    "old_layers",
    "place_in_epoch",
    "precision",
    "prepared_data",
    "processes",
    "schedules",
    "starting_point",
    "stopping",
)


def _collect_patches() -> Tuple[Patch, ...]:
    """Return all fairseq patches. Patches without which fairseq does not run come first."""
    patches: List[Patch] = []
    for name in _MODULES:
        module = import_module(f"luna_fairseq.engine.{name}")
        patches += [value for value in vars(module).values() if isinstance(value, Patch)]
    return tuple(sorted(patches, key=lambda patch: patch.importance))


TABLE = _collect_patches()


def patch_fairseq() -> None:
    """Apply every fairseq patch that the installed versions need, except disabled patches.

    The environment variable LUNA_FAIRSEQ_LEAVE_OUT lists the disabled patches. A second call does nothing.
    """
    left_out = left_out_patches()
    for patch in TABLE:
        patch.apply(patch.name in left_out)


def left_out_patches() -> FrozenSet[str]:
    """Return the names of the patches that the user has disabled. Raise InputError for an unknown name."""
    names = [name.strip() for name in os.environ.get(SWITCH, "").split(",")]
    known = [patch.name for patch in TABLE]
    unknown = [name for name in names if name and name not in known]
    if unknown:
        raise InputError(
            f"{SWITCH} has the unknown name {', '.join(unknown)}: choose from {', '.join(known)}"
        )
    return frozenset(filter(None, names))
