"""fairseq patch ``checked-checkpoints``: check checkpoints when they are loaded.

Checkpoints store information about the run that saved them: task, languages, options and dictionary
fingerprints. This information is compared with the task and the run that load the checkpoint. See
:mod:`luna_fairseq.checks.same_training`.
"""

import inspect
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from luna_fairseq import provenance
from luna_fairseq.checks import same_training
from luna_fairseq.checks.model_options import fill_in_options, model_dataclass
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

# Key of the information that _load_and_check adds about the run that saved a checkpoint: in extra_state for
# the trainer, and in task_state for the task.
_INFO = "luna_fairseq.found"
Info = Dict[str, Any]
# Keys of the averaged weights that a trainer with --store-ema reads from extra_state. Empty except while the
# trainer loads a checkpoint.
_averages: Tuple[str, ...] = ()


@CHECKED_CHECKPOINTS.replaces("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _load_and_check(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    """Load a checkpoint file, and add information about the run that saved it.

    Replaces fairseq's ``checkpoint_utils.load_checkpoint_to_cpu``. The task and the trainer compare this
    information with their own settings.

    Args:
        load: fairseq's original function.
        path: path of the checkpoint.
        arg_overrides: options that override the options stored in the checkpoint (default: None).
        args: remaining positional arguments of ``load``.
        kw: remaining keyword arguments of ``load``.

    Returns:
        Contents of the checkpoint.

    Raises:
        InputError: The file is damaged, is not a checkpoint, or was trained with an option that no longer
            exists; or the model does not support 8-bit weights or a shortlist.
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
    info: Info = {
        "path": str(path),
        "identity": same_training.stored_identity(state),
        "options": same_training.stored_options(state),
        "dictionaries": same_training.stored_fingerprints(state),
        "added": (),
    }
    # If a model is loaded for inference, its task reads only task_state. The trainer reads extra_state.
    if same_training.has_known_task(info["identity"]):
        state["task_state"] = {**(state.get("task_state") or {}), _INFO: info}
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _INFO: info}
        if _averages and "ema" not in state["extra_state"]:
            # fairseq would initialize the average from state["model"], but deletes this entry first.
            logger.warning(f"{path} has no EMA (--store-ema), so the average starts from its weights")
            state["extra_state"].update((name, state["model"]) for name in _averages)
            info["added"] = _averages
    return state


def _check_overrides(state: Any, overrides: Any) -> None:
    """Check that the model of a checkpoint supports the options ``int8`` and ``shortlist`` if they are set.

    fairseq would silently ignore options that the model does not define.

    Args:
        state: loaded checkpoint.
        overrides: options that override the options stored in the checkpoint.

    Raises:
        InputError: The model does not support 8-bit weights or a shortlist.
    """
    options = same_training.stored_options(state)
    name, dataclass = options.get("_name") or options.get("arch"), model_dataclass(options)
    for option, feature, kinds in (
        ("int8", "8-bit weights", "a translation or language model"),
        ("shortlist", "a shortlist", "a translation model"),
    ):
        if overrides.get(option) and not hasattr(dataclass, option):
            raise InputError(
                f"--{option}: the checkpoint's model, {name}, does not support {feature}. Remove the option, "
                f"or use {kinds} of luna_fairseq"
            )


def _compare_dictionaries(info: Info, task: Any, may_differ: Sequence[str] = ()) -> None:
    """Check that a task uses the same dictionaries as the run that saved a checkpoint.

    Args:
        info: information about the run that saved the checkpoint.
        task: fairseq task that uses the checkpoint.
        may_differ: names of the dictionaries that may differ (default: none).

    Raises:
        InputError: A dictionary differs.
    """
    known = same_training.has_known_task(same_training.task_identity(task))
    if known and (info["dictionaries"] is not None or model_dataclass(info["options"]) is not None):
        same_training.check_fingerprints(
            info["path"], info["dictionaries"], same_training.task_fingerprints(task), may_differ
        )


@CHECKED_CHECKPOINTS.replaces("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compare_with_task(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    """Check that the task matches the run that saved a checkpoint, and restore the task state.

    Replaces fairseq's ``FairseqTask.load_state_dict``.

    Args:
        load_state_dict: fairseq's original method.
        self: fairseq task.
        state_dict: task state from the checkpoint, with information about the run that saved the checkpoint.

    Returns:
        Result of the original method.

    Raises:
        InputError: The checkpoint comes from a different task or translation direction, or its dictionaries
            differ.
    """
    state_dict = dict(state_dict)
    info = state_dict.pop(_INFO, None)
    if info is not None:
        same_training.check_identity(info["path"], info["identity"], same_training.task_identity(self))
        _compare_dictionaries(info, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.save_checkpoint")
def _save_with_training_info(
    save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any
) -> Any:
    """Save a checkpoint, with information about this run.

    Replaces fairseq's ``Trainer.save_checkpoint``. The added information consists of software versions, task
    settings, dictionary fingerprints, and the --patience counter.

    Args:
        save: fairseq's original method.
        self: fairseq's trainer.
        filename: path of the checkpoint.
        extra_state: additional checkpoint state.
        args: remaining arguments of the original method.
        kw: remaining keyword arguments of the original method.

    Returns:
        Result of the original method.
    """
    identity = same_training.trainer_identity(self)
    added: Dict[str, Any] = {provenance.KEY: provenance.provenance(), same_training.KEY: identity}
    if same_training.has_known_task(identity):
        added[same_training.DICTIONARIES] = same_training.task_fingerprints(self.task)
    counter = _find_early_stopping_function()
    if hasattr(counter, "best"):
        added["patience"] = [float(counter.best), counter.num_runs]
    return save(self, filename, {**extra_state, **added}, *args, **kw)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.load_checkpoint")
def _compare_with_run(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint into the trainer, and check that it belongs to this run.

    Replaces fairseq's ``Trainer.load_checkpoint``.

    Args:
        load: fairseq's original method.
        self: fairseq's trainer.
        filename: path of the checkpoint.
        args: remaining arguments of the original method.
        kwargs: remaining keyword arguments of the original method.

    Returns:
        The ``extra_state`` entry of the checkpoint; None if the file does not exist.

    Raises:
        InputError: The checkpoint was saved by a run with different settings.
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
    info = extra_state.pop(_INFO, None) if extra_state is not None else None
    if info is None:
        return extra_state
    for name in info["added"]:
        del extra_state[name]  # this entry would keep the loaded weights in memory
    same_training.compare_with_run(filename, self, info["identity"], info["options"], reset_optimizer)
    # Fine-tuning may use different labels than the training run it starts from.
    _compare_dictionaries(info, self.task, ("label",) if reset_optimizer else ())
    counter = _find_early_stopping_function()
    if counter is not None and "patience" in extra_state and not arguments.get("reset_meters"):
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _find_early_stopping_function() -> Any:
    """Return fairseq-train's function ``should_stop_early``, whose attributes hold the --patience counter.

    Returns:
        The function; None if this process does not run fairseq-train.
    """
    for program in ("__main__", "fairseq_cli.train"):
        function = getattr(sys.modules.get(program), "should_stop_early", None)
        if function is not None:
            return function
    return None
