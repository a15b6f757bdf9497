"""Check a checkpoint when it is loaded, and store in it what the check needs."""

import inspect
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from luna_fairseq import provenance
from luna_fairseq.checks import same_training
from luna_fairseq.checks.model_options import check_removed_options, dataclass_of, fill_in_options
from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import archive_is_damaged, intact_neighbour, why_no_checkpoint

logger = logging.getLogger(__name__)

CHECKED_CHECKPOINTS = Mend(
    "checked-checkpoints",
    RIGHT,
    "Weights with a flipped bit, dictionaries of another training, another task or direction, and options "
    "that an architecture has gained since are loaded silently, and the output is wrong. luna-finetune that "
    "is resumed counts --patience anew. --store-ema from a checkpoint without EMA ends in KeyError: 'model'.",
)

# Key under which a loaded checkpoint carries what is stored about its training: in extra_state for the
# trainer, in task_state for the task.
_FOUND = "luna_fairseq.found"
Found = Dict[str, Any]
# Keys of the averaged weights that a trainer with --store-ema looks for in extra_state while it loads.
_averages: Tuple[str, ...] = ()


@CHECKED_CHECKPOINTS.around("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _load_and_check(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
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
    _check_int8(state, others or {})
    same_training.give_languages(path, state, asked)
    found: Found = {
        "path": str(path),
        "identity": same_training.stored_identity(state),
        "options": same_training.stored_options(state),
        "dictionaries": same_training.stored_fingerprints(state),
        "added": (),
    }
    check_removed_options(path, found["options"])
    # When a model is loaded for use, the task sees task_state alone. The trainer sees extra_state.
    if same_training.is_known(found["identity"]):
        state["task_state"] = {**(state.get("task_state") or {}), _FOUND: found}
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _FOUND: found}
        if _averages and "ema" not in state["extra_state"]:
            # fairseq deletes state["model"] before it would start the average from these weights.
            logger.warning(f"{path} holds no EMA (--store-ema): the average starts from its weights")
            state["extra_state"].update((name, state["model"]) for name in _averages)
            found["added"] = _averages
    return state


def _check_int8(state: Any, overrides: Any) -> None:
    """Raise InputError for --int8 if the model of the checkpoint has no such option: fairseq ignores it."""
    options = same_training.stored_options(state)
    if overrides.get("int8") and not hasattr(dataclass_of(options), "int8"):
        raise InputError(
            f"--int8: the checkpoint's model, {options.get('_name') or options.get('arch')}, has no weights "
            "in 8 bits: Luna's translation models, causal language models and peers have; leave it out"
        )


def _compare_dictionaries(found: Found, task: Any, left_out: Sequence[str] = ()) -> None:
    known = same_training.is_known(same_training.identity_of(task))
    if known and (found["dictionaries"] is not None or dataclass_of(found["options"]) is not None):
        same_training.check_fingerprints(
            found["path"], found["dictionaries"], same_training.fingerprints_of(task), left_out
        )


@CHECKED_CHECKPOINTS.around("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compare_in_use(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    state_dict = dict(state_dict)
    found = state_dict.pop(_FOUND, None)
    if found is not None:
        same_training.check_identity(found["path"], found["identity"], same_training.identity_of(self))
        _compare_dictionaries(found, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.save_checkpoint")
def _save_identity(save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any) -> Any:
    identity = same_training.kept_identity(self)
    kept: Dict[str, Any] = {provenance.KEY: provenance.provenance(), same_training.KEY: identity}
    if same_training.is_known(identity):
        kept[same_training.DICTIONARIES] = same_training.fingerprints_of(self.task)
    counter = _early_stopping()
    if hasattr(counter, "best"):
        kept["patience"] = [float(counter.best), counter.num_runs]
    return save(self, filename, {**extra_state, **kept}, *args, **kw)


@CHECKED_CHECKPOINTS.around("fairseq.trainer:Trainer.load_checkpoint")
def _load_and_compare(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    global _averages
    given = inspect.signature(load).bind(self, filename, *args, **kwargs).arguments
    reset_optimizer = given.get("reset_optimizer", False)
    # The one logger that --log-file records.
    logging.getLogger("fairseq_cli.train").info(provenance.provenance())
    ema = self.cfg.ema
    _averages = ("ema", *(["ema_fp32_params"] if ema.ema_fp32 else [])) if ema.store_ema else ()
    try:
        extra_state = load(self, filename, *args, **kwargs)
    finally:
        _averages = ()
    found = extra_state.pop(_FOUND, None) if extra_state is not None else None
    if found is None:
        return extra_state
    for name in found["added"]:
        del extra_state[name]  # it would keep the loaded weights in memory
    same_training.compare_with_run(filename, self, found["identity"], found["options"], reset_optimizer)
    # Fine-tuning may have other classes than the training it starts from.
    _compare_dictionaries(found, self.task, ("label",) if reset_optimizer else ())
    counter = _early_stopping()
    if counter is not None and "patience" in extra_state and not given.get("reset_meters"):
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _early_stopping() -> Any:
    """Return the function of fairseq-train that counts for --patience, on which the count is kept.

    It is None in another program.
    """
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
