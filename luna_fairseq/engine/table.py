"""Every change to fairseq's own behaviour: what it needs to run, to be right, to be kind.

What is around one function of fairseq is one function, whose steps stand in order. An entry stands beside the
code that does it, in the file of its subject; a new one is added there and here.
"""

import os
from typing import FrozenSet, Tuple

from luna_fairseq.engine.batches import INCOMPLETE_BATCHES
from luna_fairseq.engine.checkpoint_contents import CHECKED_CHECKPOINTS
from luna_fairseq.engine.checkpoints import CHECKPOINT_CLASSES, WHOLE_FILES
from luna_fairseq.engine.diverse_beams import DIVERSE_BEAMS
from luna_fairseq.engine.entry_points import ONE_PLUGIN, POSSIBLE_OPTIONS
from luna_fairseq.engine.memory import KEPT_MEMORY
from luna_fairseq.engine.mend import Mend
from luna_fairseq.engine.numpy_2 import NUMPY_COMPAT
from luna_fairseq.engine.old_layers import OLD_LAYERS
from luna_fairseq.engine.place_in_epoch import PLACE_IN_EPOCH
from luna_fairseq.engine.precision import CLIPPING, FLOAT32_WEIGHTS
from luna_fairseq.engine.presets import ARCHITECTURES
from luna_fairseq.engine.processes import PROCESSES
from luna_fairseq.engine.reading import CHECKED_DATA, NAMED_VALIDATION, PLAIN_TEXT, SOMETHING_TO_READ
from luna_fairseq.engine.starting_point import STARTING_POINT
from luna_fairseq.engine.statistics import STATISTICS
from luna_fairseq.engine.termination import SIGTERM
from luna_fairseq.errors import InputError

SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"

TABLE: Tuple[Mend, ...] = (
    CHECKPOINT_CLASSES,
    NUMPY_COMPAT,
    OLD_LAYERS,
    PROCESSES,
    CHECKED_CHECKPOINTS,
    WHOLE_FILES,
    CHECKED_DATA,
    SOMETHING_TO_READ,
    NAMED_VALIDATION,
    INCOMPLETE_BATCHES,
    DIVERSE_BEAMS,
    PLAIN_TEXT,
    ARCHITECTURES,
    STARTING_POINT,
    PLACE_IN_EPOCH,
    FLOAT32_WEIGHTS,
    CLIPPING,
    SIGTERM,
    STATISTICS,
    KEPT_MEMORY,
    POSSIBLE_OPTIONS,
    ONE_PLUGIN,
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
