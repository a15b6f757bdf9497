"""fairseq patch ``checked-checkpoints``: check checkpoints when they are loaded.

Checkpoints store information about the run that saved them: task, languages, options and dictionary
fingerprints. This information is compared with the task and the run that load the checkpoint. See
:mod:`luna_fairseq.checks.same_training`.
"""

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from luna_fairseq import provenance
from luna_fairseq.checks import same_training
from luna_fairseq.checks.model_options import fill_in_options, model_dataclass
from luna_fairseq.engine.averages import averages_state, load_without_averages, restore_averages
from luna_fairseq.engine.early_stopping import patience_state, restore_patience
from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.engine.schedules import repeat_end_of_epoch
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import advise_intact, explain_no_checkpoint, is_damaged_archive

CHECKED_CHECKPOINTS = Patch(
    "checked-checkpoints",
    RESULTS,
    "A checkpoint loads silently, and the output is wrong, if the file is damaged or if it was trained with "
    "other dictionaries, another task or direction, or before its architecture got new options. A resumed "
    "luna-finetune counts --patience from zero. --store-ema fails with KeyError: 'model' if the checkpoint "
    "has no EMA.",
)


# Key of the origin in a loaded checkpoint's extra_state. If several processes train, fairseq sends them only
# plain dictionaries and tensors.
_ORIGIN = "luna_fairseq.origin"


@dataclass(frozen=True)
class Origin:
    """Description of the training run that saved a checkpoint, read from the checkpoint.

    Attributes:
        path: path of the checkpoint.
        identity: task, languages and name of the run, from :func:`same_training.stored_identity`.
        options: options of the model.
        dictionaries: fingerprints of the dictionaries. None if they are unknown.
        weights: weights of the model. {} if the checkpoint has averages of --store-ema.
    """

    path: str
    identity: Dict[str, Any]
    options: Dict[str, Any]
    dictionaries: Optional[Dict[str, str]]
    weights: Dict[str, Any]


class TaskState(Dict[str, Any]):
    """Entry ``task_state`` of a loaded checkpoint, which a task compares with its own settings.

    The attribute ``origin`` describes the run that saved the checkpoint.
    """

    origin: Origin


class _OptionalOverrides(Dict[str, Any]):
    """Overrides that a model may lack, because they are for the translation model beside it."""


@CHECKED_CHECKPOINTS.replaces("fairseq.checkpoint_utils:load_model_ensemble")
def _load_models(
    load: Function, filenames: Any, arg_overrides: Any = None, task: Any = None, *args: Any, **kw: Any
) -> Any:
    """Replacement for ``load_model_ensemble`` that loads the model of ``--lm-path`` with any overrides.

    fairseq-generate passes the overrides of the translation model on, and loads only this model without a
    task.
    """
    overrides = arg_overrides if task is not None else _OptionalOverrides(arg_overrides or {})
    return load(filenames, overrides, task, *args, **kw)


@CHECKED_CHECKPOINTS.replaces("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _load_and_check(load: Function, path: str, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    """Replacement for ``load_checkpoint_to_cpu`` that checks the file and the options ``arg_overrides``.

    Raise InputError if the file is invalid, or if its model does not support ``int8`` or ``shortlist``. The
    :class:`Origin` is added to the entries ``task_state`` and ``extra_state`` of the result.
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
    if not isinstance(arg_overrides, _OptionalOverrides):
        _check_overrides(state, overrides or {})
    same_training.set_languages(path, state, languages)
    origin = Origin(
        str(path),
        same_training.stored_identity(state),
        same_training.stored_options(state),
        same_training.stored_fingerprints(state),
        {} if "ema" in (state.get("extra_state") or {}) else state.get("model", {}),
    )
    # If a model is loaded for inference, its task reads only task_state. The trainer reads extra_state.
    if same_training.has_known_task(origin.identity):
        state["task_state"] = TaskState(state.get("task_state") or {})
        state["task_state"].origin = origin
    if state.get("extra_state") is not None:
        state["extra_state"] = {**state["extra_state"], _ORIGIN: vars(origin)}
    return state


def _check_overrides(state: Any, overrides: Any) -> None:
    """Raise InputError if ``overrides`` sets ``int8`` or ``shortlist``, which the checkpoint's model lacks.

    fairseq silently ignores options that the model does not define.
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


def _compare_dictionaries(origin: Origin, task: Any, may_differ: Sequence[str] = ()) -> None:
    """Raise InputError if a task's dictionaries differ from the dictionaries of a checkpoint.

    Dictionaries named in ``may_differ`` are not compared. Unknown tasks, and checkpoints of other packages'
    models without fingerprints, are not checked.
    """
    known = same_training.has_known_task(same_training.task_identity(task))
    if known and (origin.dictionaries is not None or model_dataclass(origin.options) is not None):
        same_training.check_fingerprints(
            origin.path, origin.dictionaries, same_training.task_fingerprints(task), may_differ
        )


@CHECKED_CHECKPOINTS.replaces("fairseq.tasks.fairseq_task:FairseqTask.load_state_dict")
def _compare_with_task(load_state_dict: Function, self: Any, state_dict: Any) -> Any:
    """Replacement for ``FairseqTask.load_state_dict`` that first checks task, languages and dictionaries."""
    if isinstance(state_dict, TaskState):
        origin = state_dict.origin
        same_training.check_identity(origin.path, origin.identity, same_training.task_identity(self))
        _compare_dictionaries(origin, self)
    return load_state_dict(self, state_dict)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.save_checkpoint")
def _save_with_training_info(
    save: Function, self: Any, filename: str, extra_state: Any, *args: Any, **kw: Any
) -> Any:
    """Replacement for ``Trainer.save_checkpoint`` that also stores a description of the run.

    The description contains software versions, task settings, dictionary fingerprints, and the counters of
    early stopping and of the moving averages.
    """
    identity = same_training.trainer_identity(self)
    added: Dict[str, Any] = {provenance.KEY: provenance.provenance(), same_training.KEY: identity}
    if same_training.has_known_task(identity):
        added[same_training.DICTIONARIES] = same_training.task_fingerprints(self.task)
    added.update({**patience_state(), **averages_state(self)})
    return save(self, filename, {**extra_state, **added}, *args, **kw)


@CHECKED_CHECKPOINTS.replaces("fairseq.trainer:Trainer.load_checkpoint")
def _load_and_compare(load: Function, self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``Trainer.load_checkpoint`` that checks that the checkpoint belongs to this run.

    The moving averages, the learning rate schedule and the early-stopping counter are restored as well.
    """
    arguments = inspect.signature(load).bind(self, filename, *args, **kwargs).arguments
    reset_optimizer = arguments.get("reset_optimizer", False)
    # Only messages of this logger are written to --log-file.
    logging.getLogger("fairseq_cli.train").info(provenance.provenance())
    with load_without_averages(self):
        extra_state = load(self, filename, *args, **kwargs)
    if self.get_num_updates() == 0:
        # A new run, which starts from the weights of another one. --stop-time-hours limits its own time.
        self._previous_training_time = 0
    if _ORIGIN not in (extra_state or {}):
        return extra_state
    origin = Origin(**extra_state.pop(_ORIGIN))
    restore_averages(self, filename, extra_state, origin.weights)
    same_training.compare_with_run(filename, self, origin.identity, origin.options, reset_optimizer)
    # Fine-tuning may use different labels than the training run it starts from.
    _compare_dictionaries(origin, self.task, ("label",) if reset_optimizer else ())
    if not (reset_optimizer or arguments.get("reset_lr_scheduler")):
        repeat_end_of_epoch(self, extra_state)
    # fairseq restores the best loss under the same condition.
    if not (reset_optimizer or arguments.get("reset_meters")):
        restore_patience(extra_state)
    return extra_state
