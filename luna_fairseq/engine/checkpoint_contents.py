"""Patch ``checked-checkpoints``: check checkpoints when they are loaded.

Checkpoints store the identity of their training, see :mod:`luna_fairseq.checks.same_training`. The identity
is compared with the task and the run that load the checkpoint.
"""

import inspect
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from luna_fairseq import provenance
from luna_fairseq.checks import same_training
from luna_fairseq.checks.model_options import check_removed_options, dataclass_of, fill_in_options
from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import advise_intact, explain_no_checkpoint, is_damaged_archive

logger = logging.getLogger(__name__)

CHECKED_CHECKPOINTS = Patch(
    "checked-checkpoints",
    RESULTS,
    "A checkpoint loads silently, and the output is wrong, if the file is damaged or if it was trained with "
    "other dictionaries, another task or direction, or before its architecture got new options. A resumed "
    "luna-finetune counts --patience from zero. --store-ema fails with KeyError: 'model' if the checkpoint "
    "has no EMA.",
)

# Key of the record of the training that _load_and_check adds to a checkpoint: in extra_state for the trainer,
# and in task_state for the task.
_RECORD = "luna_fairseq.found"
Record = Dict[str, Any]
# Keys of the averaged weights that a trainer with --store-ema reads from extra_state. Empty except while the
# trainer loads a checkpoint.
_averages: Tuple[str, ...] = ()


@CHECKED_CHECKPOINTS.replaces("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _load_and_check(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    """Load a checkpoint, and add the record of its training.

    Args:
        load: fairseq's function.
        path: file of the checkpoint.
        arg_overrides: options that override those of the checkpoint (default: None).
        args: further positional arguments of ``load``.
        kw: further keyword arguments of ``load``.

    Returns:
        Content of the checkpoint.

    Raises:
        InputError: The file is damaged or not a checkpoint, or was trained with an option that no longer
            exists.
    """
    if is_damaged_archive(Path(path)):
        raise InputError(f"{path} is damaged{advise_intact(Path(path))}")
    languages = same_training.overridden_languages(arg_overrides)
    overrides = arg_overrides and {name: v for name, v in arg_overrides.items() if name not in languages}
    try:
        state = load(path, overrides, *args, **kw)
    except Exception:
        fault = explain_no_checkpoint(path)
        if fault is None:
            raise
        raise InputError(f"{path} {fault}{advise_intact(Path(path))}") from None
    fill_in_options(state, overrides or {})
    _check_overrides(state, overrides or {})
    same_training.set_languages(path, state, languages)
    record: Record = {
        "path": str(path),
        "identity": same_training.stored_identity(state),
        "options": same_training.stored_options(state),
        "dictionaries": same_training.stored_fingerprints(state),
        "added": (),
    }
    check_removed_options(path, record["options"])
    # If a model is loaded for inference, its task reads only task_state. The trainer reads extra_state.
    if same_training.is_known(record["identity"]):
        state["task_state"] = {**(state.get("task_state") or {}), _RECORD: record}
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _RECORD: record}
        if _averages and "ema" not in state["extra_state"]:
            # fairseq would start the average from state["model"], but deletes this entry first.
            logger.warning(f"{path} has no EMA (--store-ema), so the average starts from its weights")
            state["extra_state"].update((name, state["model"]) for name in _averages)
            record["added"] = _averages
    return state


def _check_overrides(state: Any, overrides: Any) -> None:
    """Check that the model of a checkpoint has the requested options for generation.

    Args:
        state: content of the checkpoint.
        overrides: options that replace those of the checkpoint. fairseq would ignore unknown ones.

    Raises:
        InputError: The model does not support 8-bit weights or a shortlist.
    """
    options = same_training.stored_options(state)
    name, dataclass = options.get("_name") or options.get("arch"), dataclass_of(options)
    for option, feature, kinds in (
        ("int8", "8-bit weights", "a translation or language model"),
        ("shortlist", "a shortlist", "a translation model"),
    ):
        if overrides.get(option) and not hasattr(dataclass, option):
            raise InputError(
                f"--{option}: the checkpoint's model, {name}, does not support {feature}. Remove the option, "
                f"or use {kinds} of luna_fairseq"
            )


def _compare_dictionaries(record: Record, task: Any, may_differ: Sequence[str] = ()) -> None:
    """Raise InputError if a task has other dictionaries than the training of a checkpoint.

    Args:
        record: record of the loaded checkpoint.
        task: task that uses the checkpoint.
        may_differ: names of dictionaries that may differ (default: none).
    """
    known = same_training.is_known(same_training.task_identity(task))
    if known and (record["dictionaries"] is not None or dataclass_of(record["options"]) is not None):
        same_training.check_fingerprints(
            record["path"], record["dictionaries"], same_training.task_fingerprints(task), may_differ
        )


@CHECKED_CHECKPOINTS.replaces("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compare_with_task(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    """Compare the training of a checkpoint with a task, and load the state of the task.

    Args:
        load_state_dict: fairseq's original method.
        self: task of fairseq.
        state_dict: state of the task, with a record of the checkpoint's training.

    Returns:
        Result of the original method.

    Raises:
        InputError: The checkpoint was trained for another task or direction, or with other dictionaries.
    """
    state_dict = dict(state_dict)
    record = state_dict.pop(_RECORD, None)
    if record is not None:
        same_training.check_identity(record["path"], record["identity"], same_training.task_identity(self))
        _compare_dictionaries(record, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.save_checkpoint")
def _save_identity(save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any) -> Any:
    """Save a checkpoint with the versions, the identity, the dictionaries and the count of --patience.

    Args:
        save: fairseq's original method.
        self: trainer of fairseq.
        filename: path of the checkpoint.
        extra_state: further content of the checkpoint.
        args: further arguments of the original method.
        kw: further arguments of the original method.

    Returns:
        Result of the original method.
    """
    identity = same_training.trainer_identity(self)
    added: Dict[str, Any] = {provenance.KEY: provenance.provenance(), same_training.KEY: identity}
    if same_training.is_known(identity):
        added[same_training.DICTIONARIES] = same_training.task_fingerprints(self.task)
    counter = _early_stopping()
    if hasattr(counter, "best"):
        added["patience"] = [float(counter.best), counter.num_runs]
    return save(self, filename, {**extra_state, **added}, *args, **kw)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.load_checkpoint")
def _compare_with_run(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint into the trainer, and compare the training of the checkpoint with this run.

    Args:
        load: fairseq's original method.
        self: trainer of fairseq.
        filename: path of the checkpoint.
        args: further arguments of the original method.
        kwargs: further arguments of the original method.

    Returns:
        Further content of the checkpoint, or None if the file does not exist.

    Raises:
        InputError: The checkpoint does not belong to this run.
    """
    global _averages
    arguments = inspect.signature(load).bind(self, filename, *args, **kwargs).arguments
    reset_optimizer = arguments.get("reset_optimizer", False)
    # Only messages of this logger are written to --log-file.
    logging.getLogger("fairseq_cli.train").info(provenance.provenance())
    ema = self.cfg.ema
    _averages = ("ema", *(["ema_fp32_params"] if ema.ema_fp32 else [])) if ema.store_ema else ()
    try:
        extra_state = load(self, filename, *args, **kwargs)
    finally:
        _averages = ()
    record = extra_state.pop(_RECORD, None) if extra_state is not None else None
    if record is None:
        return extra_state
    for name in record["added"]:
        del extra_state[name]  # the entry holds the loaded weights in memory
    same_training.compare_with_run(filename, self, record["identity"], record["options"], reset_optimizer)
    # Fine-tuning may have other labels than the training that it starts from.
    _compare_dictionaries(record, self.task, ("label",) if reset_optimizer else ())
    counter = _early_stopping()
    if counter is not None and "patience" in extra_state and not arguments.get("reset_meters"):
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _early_stopping() -> Any:
    """Return the function of fairseq-train that counts for --patience in its attributes.

    Other programs do not have this function, and None is returned.
    """
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
