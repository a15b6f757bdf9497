"""Milestone learning-rate schedule for fairseq, selected with ``--lr-scheduler milestone``."""

import argparse
import logging
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Dict, List

from omegaconf import II

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from luna_fairseq.checks.bounds import check_bounds
from luna_fairseq.errors import InputError
from luna_fairseq.optim.milestone_schedule import milestone_lr

logger = logging.getLogger(__name__)


@dataclass
class MilestoneScheduleConfig(FairseqDataclass):
    """Options of ``--lr-scheduler milestone``. The help text of each field describes the option."""

    warmup_updates: int = field(
        default=1000,
        metadata={"help": "warm the learning rate up linearly for the first N updates", "least": 0},
    )
    warmup_init_lr: float = field(
        default=-1.0,
        metadata={"help": "learning rate of the first update of the warm-up; -1 means 0", "least": -1},
    )
    milestones: List[int] = field(
        default_factory=list,
        metadata={
            "help": "multiply the learning rate by --lr-decay-rate after these numbers of updates",
            "least": 1,
        },
    )
    lr_decay_rate: float = field(
        default=0.1,
        metadata={"help": "factor of the learning rate at each milestone, in (0, 1]", "above": 0, "most": 1},
    )
    lr: List[float] = field(default=II("optimization.lr"), metadata={"above": 0})


class _MilestonesAction(argparse.Action):
    """Argparse action that parses integers, separated by spaces or commas: ``--milestones 100 200,300``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        words = " ".join(values).strip("[]").replace(",", " ").split()
        try:
            setattr(namespace, self.dest, [int(word) for word in words])
        except ValueError:
            raise argparse.ArgumentError(
                self, f"expected numbers of updates, such as 300000 450000, got {' '.join(values)!r}"
            ) from None


@register_lr_scheduler("milestone", dataclass=MilestoneScheduleConfig)
class MilestoneSchedule(FairseqLRScheduler):
    """fairseq learning-rate scheduler with a warm-up and milestones (``--lr-scheduler milestone``).

    The learning rate depends only on the number of completed updates, see
    :func:`~luna_fairseq.optim.milestone_schedule.milestone_lr`.

    Example:
        Divide the learning rate by 10 after 300,000 and 450,000 updates::

            fairseq-train data-bin --lr 0.1 --lr-scheduler milestone --milestones 300000 450000
    """

    def __init__(self, cfg: MilestoneScheduleConfig, optimizer: FairseqOptimizer) -> None:
        super().__init__(cfg, optimizer)
        _check(cfg)
        self.lr_after = partial(
            milestone_lr,
            peak_lr=float(cfg.lr[0]),
            warmup_updates=cfg.warmup_updates,
            warmup_init_lr=max(cfg.warmup_init_lr, 0.0),
            milestones=tuple(cfg.milestones),
            lr_decay_rate=cfg.lr_decay_rate,
        )
        early = [m for m in cfg.milestones if m <= cfg.warmup_updates]
        if early:
            logger.warning(
                f"--milestones {' '.join(map(str, early))} lie within the warm-up of {cfg.warmup_updates} "
                "updates and have no effect"
            )
        self.step_update(0)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the schedule's options to a parser. ``--milestones`` takes one or more integers."""
        parser.add_argument(
            "--milestones",
            nargs="+",
            default=[],
            metavar="N",
            action=_MilestonesAction,
            help=MilestoneScheduleConfig()._get_help("milestones"),
        )
        # fairseq skips options that the parser already has.
        super().add_args(parser)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load the best validation loss. The learning rate needs no state beyond the number of updates."""
        self.best = state_dict.get("best")

    def step_update(self, num_updates: int) -> float:
        """Set and return the learning rate of the next update, given the number of completed updates."""
        lr = self.lr_after(num_updates)
        self.optimizer.set_lr(lr)
        return lr


def _check(cfg: MilestoneScheduleConfig) -> None:
    """Raise InputError if a schedule option is out of range or conflicts with another one."""
    options = {field.name: getattr(cfg, field.name) for field in fields(MilestoneScheduleConfig)}
    check_bounds({**options, "milestones": list(cfg.milestones), "lr": list(cfg.lr)}, MilestoneScheduleConfig)
    if len(cfg.lr) != 1:
        raise InputError(
            f"--lr-scheduler milestone takes one --lr, the peak rate, got {list(cfg.lr)}. "
            "Use --milestones and --lr-decay-rate for lower rates."
        )
    peak_lr = cfg.lr[0]
    if not cfg.warmup_init_lr <= peak_lr:
        raise InputError(
            f"--warmup-init-lr {cfg.warmup_init_lr:g} must not be above the peak rate --lr {peak_lr:g}"
        )
    if cfg.warmup_updates == 0 and cfg.warmup_init_lr >= 0:
        raise InputError(
            f"--warmup-init-lr {cfg.warmup_init_lr:g} needs a warm-up. Use --warmup-updates too, or omit "
            "--warmup-init-lr."
        )
    if any(later <= earlier for earlier, later in zip([0, *cfg.milestones], cfg.milestones)):
        raise InputError(f"--milestones must be strictly increasing, got {list(cfg.milestones)}")
