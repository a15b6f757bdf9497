"""fairseq patch ``resumed-schedule``: a resumed run has the learning rates of an uninterrupted run."""

import logging
from typing import Any, Dict

from luna_fairseq.engine.patch import RESULTS, Function, Patch

logger = logging.getLogger(__name__)

RESUMED_SCHEDULE = Patch(
    "resumed-schedule",
    RESULTS,
    "A resumed run with --lr-scheduler reduce_lr_on_plateau has other learning rates than an uninterrupted "
    "run, because fairseq does not save the number of epochs without improvement.",
)

_PLATEAU = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule"
_COUNTERS = ("num_bad_epochs", "cooldown_counter")


@RESUMED_SCHEDULE.replaces(f"{_PLATEAU}.state_dict")
def _save_counters(state_dict: Function, self: Any) -> Dict[str, Any]:
    """Replacement for ``state_dict`` of reduce_lr_on_plateau that also saves the epoch counters.

    The counters hold the epochs without improvement, and the epochs left in the cool-down after a reduction.
    """
    return {**state_dict(self), **{name: getattr(self.lr_scheduler, name) for name in _COUNTERS}}


@RESUMED_SCHEDULE.replaces(f"{_PLATEAU}.load_state_dict")
def _restore_counters(load_state_dict: Function, self: Any, state_dict: Dict[str, Any]) -> None:
    """Replacement for ``load_state_dict`` of reduce_lr_on_plateau that also restores the epoch counters."""
    load_state_dict(self, state_dict)
    for name in _COUNTERS:
        setattr(self.lr_scheduler, name, state_dict.get(name, 0))


def repeat_end_of_epoch(trainer: Any, extra_state: Dict[str, Any]) -> None:
    """Restore the learning rate schedule, and repeat its last step if the checkpoint ends an epoch.

    fairseq saves a checkpoint before the schedule's step at the end of an epoch. When it resumes, it makes
    this step without the validation loss in ``extra_state``, on which some schedules depend.
    """
    schedule = trainer.cfg.lr_scheduler
    if schedule._name == "polynomial_decay" and schedule.force_anneal is not None:
        logger.warning(
            "--lr-scheduler polynomial_decay with --force-anneal depends on earlier rates, which checkpoints "
            "lack. This run may have other rates than an uninterrupted one"
        )
    trainer.lr_scheduler.load_state_dict(trainer._optim_history[-1]["lr_scheduler_state"])
    iterator = extra_state["train_iterator"]
    if iterator["iterations_in_epoch"] == 0:
        trainer.lr_step(iterator["epoch"] - 1, extra_state.get("val_loss"))
