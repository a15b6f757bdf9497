"""What a checkpoint is asked when it is loaded, and what is kept in it for that."""

import inspect
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

from luna_fairseq import provenance
from luna_fairseq.checks import same_training
from luna_fairseq.checks.dictionaries import KEY, check_fingerprints, fingerprints_of, stored_fingerprints
from luna_fairseq.checks.model_options import check_removed_options, dataclass_of, fill_in_options
from luna_fairseq.checks.names import check_optimizer_overrides
from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import archive_is_damaged, intact_neighbour, why_no_checkpoint

CHECKED_CHECKPOINTS = Mend(
    "checked-checkpoints",
    RIGHT,
    "weights with a flipped bit, other dictionaries of the same size, another task or direction, and "
    "options that an architecture has gained since are loaded without a word; --patience counts anew; "
    "nothing says which version of luna_fairseq trained",
)

# What a loaded checkpoint tells the trainer (extra_state) and the task (task_state) that are given it.
_FOUND = "luna_fairseq.found"
Found = Dict[str, Any]


@CHECKED_CHECKPOINTS.around("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _read(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    if archive_is_damaged(Path(path)):
        raise InputError(f"{path} is damaged{intact_neighbour(Path(path))}")
    asked = same_training.asked_languages(arg_overrides)
    others = arg_overrides and {name: v for name, v in arg_overrides.items() if name not in asked}
    try:
        state = load(path, others, *args, **kw)
    except Exception:
        fault = why_no_checkpoint(path)
        if fault is None:
            raise
        raise InputError(f"{path} {fault}{intact_neighbour(Path(path))}") from None
    fill_in_options(state, others or {})
    same_training.give_languages(path, state, asked)
    found: Found = {
        "path": str(path),
        "identity": same_training.stored_identity(state),
        "options": same_training.stored_options(state),
        "dictionaries": stored_fingerprints(state),
    }
    check_removed_options(path, found["options"])
    # A task is given its own state alone when a model is loaded for use, the trainer gets extra_state back.
    if same_training.is_known(found["identity"]):
        state["task_state"] = {**(state.get("task_state") or {}), _FOUND: found}
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _FOUND: found}
    return state


def _compare_dictionaries(found: Found, task: Any, left_out: Sequence[str] = ()) -> None:
    known = same_training.is_known(same_training.identity_of(task))
    if known and (found["dictionaries"] is not None or dataclass_of(found["options"]) is not None):
        check_fingerprints(found["path"], found["dictionaries"], fingerprints_of(task), left_out)


@CHECKED_CHECKPOINTS.around("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compared_in_use(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    state_dict = dict(state_dict)
    found = state_dict.pop(_FOUND, None)
    if found is not None:
        same_training.check_identity(found["path"], found["identity"], same_training.identity_of(self))
        _compare_dictionaries(found, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.save_checkpoint")
def _kept(save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any) -> Any:
    identity = same_training.kept_identity(self)
    kept: Dict[str, Any] = {provenance.KEY: provenance.provenance(), same_training.KEY: identity}
    if same_training.is_known(identity):
        kept[KEY] = fingerprints_of(self.task)
    counter = _early_stopping()
    if hasattr(counter, "best"):
        kept["patience"] = [float(counter.best), counter.num_runs]
    return save(self, filename, {**extra_state, **kept}, *args, **kw)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.load_checkpoint")
def _compared_in_training(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(load).bind(self, filename, *args, **kwargs).arguments
    anew = given.get("reset_optimizer", False)
    check_optimizer_overrides(self, given.get("optimizer_overrides"))
    # By the one logger that --log-file is given.
    logging.getLogger("fairseq_cli.train").info(provenance.provenance())
    extra_state = load(self, filename, *args, **kwargs)
    found = extra_state.pop(_FOUND, None) if extra_state is not None else None
    if found is None:
        return extra_state
    same_training.compare_with_run(filename, self, found["identity"], found["options"], anew)
    # The classes of another task are what fine-tuning is for.
    _compare_dictionaries(found, self.task, ("label",) if anew else ())
    counter = _early_stopping()
    if counter is not None and "patience" in extra_state and not given.get("reset_meters"):
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _early_stopping() -> Any:
    """fairseq-train's function that counts, on which it keeps the count; None in another program."""
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
