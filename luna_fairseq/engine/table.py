"""Every change to fairseq's own behaviour, in the order in which they are made.

Where two are around one function, the later one is around the earlier one. An entry stands beside the code
that does it, in the file of its subject; a new one is added there and here.
"""

import os
from typing import FrozenSet, Tuple

from luna_fairseq.engine.batches import INCOMPLETE_BATCHES
from luna_fairseq.engine.checked_data import CHECKED_DATA
from luna_fairseq.engine.checkpoints import (
    CHECKPOINT_CLASSES,
    DAMAGED_CHECKPOINTS,
    OLDER_OPTIONS,
    TRAINED_OPTIONS,
    WHOLE_COPIES,
    WRITTEN_ONCE,
)
from luna_fairseq.engine.dictionaries import SAME_DICTIONARY
from luna_fairseq.engine.diverse_beams import DIVERSE_BEAMS
from luna_fairseq.engine.entry_points import ONE_PLUGIN, POSSIBLE_OPTIONS
from luna_fairseq.engine.figures import FIGURES
from luna_fairseq.engine.memory import KEPT_MEMORY
from luna_fairseq.engine.mend import Mend
from luna_fairseq.engine.newest_checkpoint import NEWEST_CHECKPOINT
from luna_fairseq.engine.numpy_2 import NUMPY_COMPAT
from luna_fairseq.engine.old_layers import POSITIONS, WEIGHTS_ONCE
from luna_fairseq.engine.place_in_epoch import PLACE_IN_EPOCH
from luna_fairseq.engine.plain_text import PLAIN_TEXT
from luna_fairseq.engine.precision import BF16_WITHOUT_TPU, CLIPPING, FINITE
from luna_fairseq.engine.presets import ARCHITECTURES
from luna_fairseq.engine.processes import CPU_PROCESSES, ENDING_TOGETHER, LAUNCHER_RANKS, SHARDED_APOLLO
from luna_fairseq.engine.provenance import PROVENANCE
from luna_fairseq.engine.resuming import FLOAT32_WEIGHTS, PATIENCE
from luna_fairseq.engine.same_training import SAME_TRAINING
from luna_fairseq.engine.starting_point import (
    NAMED_VALIDATION,
    ONE_TRAINING,
    SOMETHING_TO_READ,
    STARTING_POINT,
)
from luna_fairseq.engine.termination import SIGTERM
from luna_fairseq.errors import InputError

SWITCH = "LUNA_FAIRSEQ_LEAVE_OUT"

TABLE: Tuple[Mend, ...] = (
    CHECKPOINT_CLASSES,
    OLDER_OPTIONS,
    TRAINED_OPTIONS,
    DAMAGED_CHECKPOINTS,
    WHOLE_COPIES,
    WRITTEN_ONCE,
    CHECKED_DATA,
    SAME_DICTIONARY,
    SAME_TRAINING,
    NEWEST_CHECKPOINT,
    STARTING_POINT,
    PLACE_IN_EPOCH,
    FLOAT32_WEIGHTS,
    PATIENCE,
    SIGTERM,
    INCOMPLETE_BATCHES,
    DIVERSE_BEAMS,
    PLAIN_TEXT,
    SOMETHING_TO_READ,
    NAMED_VALIDATION,
    ONE_TRAINING,
    CLIPPING,
    FINITE,
    FIGURES,
    PROVENANCE,
    KEPT_MEMORY,
    NUMPY_COMPAT,
    ARCHITECTURES,
    WEIGHTS_ONCE,
    POSITIONS,
    # Around call_main, from the inside: who starts processes, who looks after them, how many there are.
    CPU_PROCESSES,
    ENDING_TOGETHER,
    LAUNCHER_RANKS,
    SHARDED_APOLLO,
    BF16_WITHOUT_TPU,
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
