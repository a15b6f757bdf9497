"""Which dictionaries a checkpoint was trained with: a fingerprint of each, compared wherever it is loaded."""

import hashlib
import logging
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError

logger = logging.getLogger(__name__)

SAME_DICTIONARY = Mend(
    "same-dictionary",
    what="stores fingerprints of the dictionaries in a checkpoint (extra_state), and refuses to train, "
    "generate or evaluate with others",
    why="a dictionary of the same size is accepted, whatever stands in it: the numbers then mean other "
    "pieces, and the result is nonsense without a word",
)

_KEY = "dictionaries"
_LABELS = "label"

Fingerprints = Dict[str, str]


def fingerprint(dictionary: Any) -> str:
    """Number of entries, and a short hash of all symbols in their order."""
    state = hashlib.sha256()
    for index in range(len(dictionary)):
        state.update(dictionary[index].encode("utf-8", "surrogatepass") + b"\n")
    return f"{len(dictionary)} entries, {state.hexdigest()[:16]}"


def fingerprints_of(task: Any) -> Fingerprints:
    """Those of source, target and labels, as far as the task has them."""
    from fairseq.data import Dictionary  # the table is read where there is no fairseq, too

    found = {}
    for name in ("source", "target", _LABELS):
        try:
            dictionary = getattr(task, f"{name}_dictionary", None)
        except NotImplementedError:
            continue
        if isinstance(dictionary, Dictionary):
            found[name] = fingerprint(dictionary)
    return found


def stored_fingerprints(state: Mapping[str, Any]) -> Optional[Fingerprints]:
    """Those in a checkpoint; None in one that has none."""
    return (state.get("extra_state") or {}).get(_KEY)


def check_fingerprints(
    path: Any, stored: Optional[Mapping[str, str]], ours: Fingerprints, left_out: Sequence[str] = ()
) -> None:
    """Compare those of the checkpoint ``path`` with those of the data; say so where it has none.

    Raises:
        InputError: a dictionary is another one.
    """
    if stored is None:
        logger.warning(
            f"{path} does not say which dictionaries it was trained with, as an older version or other "
            "program wrote it: see to it that the data has the same"
        )
        return
    for name, found in ours.items():
        if name not in left_out and stored.get(name, found) != found:
            raise InputError(
                f"{path} was trained with another {name} dictionary ({stored[name]}) than the data's "
                f"({found}): give data that was prepared with the dictionaries of the training"
            )


@SAME_DICTIONARY.around("fairseq.trainer:Trainer.save_checkpoint")
def _stored(save_checkpoint: Callable[..., Any], self: Any, filename: str, extra_state: Any) -> Any:
    return save_checkpoint(self, filename, {**extra_state, _KEY: fingerprints_of(self.task)})


@SAME_DICTIONARY.around("fairseq.trainer:Trainer.load_checkpoint")
def _compared_in_training(
    load_checkpoint: Callable[..., Any],
    self: Any,
    filename: str,
    reset_optimizer: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    extra_state = load_checkpoint(self, filename, reset_optimizer, *args, **kwargs)
    if extra_state is not None:
        # The classes of another task are what fine-tuning is for.
        left_out = (_LABELS,) if reset_optimizer else ()
        check_fingerprints(filename, extra_state.get(_KEY), fingerprints_of(self.task), left_out)
    return extra_state


@SAME_DICTIONARY.around("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _handed_to_the_task(load: Callable[..., Any], path: str, *args: Any, **kwargs: Any) -> Any:
    """A task is given its own state alone when a model is loaded for use."""
    state = load(path, *args, **kwargs)
    checkpoint = {"path": str(path), "stored": stored_fingerprints(state)}
    state["task_state"] = {**(state.get("task_state") or {}), _KEY: checkpoint}
    return state


@SAME_DICTIONARY.around("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compared_in_use(load_state_dict: Callable[..., Any], self: Any, state_dict: Any) -> Any:
    state_dict = dict(state_dict)
    checkpoint = state_dict.pop(_KEY, None)
    if checkpoint is not None:
        check_fingerprints(checkpoint["path"], checkpoint["stored"], fingerprints_of(self))
    return load_state_dict(self, state_dict)
