"""Milestone learning-rate schedule: linear warm-up, then a rate that is reduced at each milestone.

The translation experiments with Apollo (Ma, 2020, arXiv 2009.13586) and Luna use this schedule, with
milestones 300,000 and 450,000 of 500,000 updates. The rate depends only on the number of completed updates. A
resumed run therefore has the same rates as an uninterrupted run, without a saved state of the schedule.
"""

from typing import Sequence


def milestone_lr(
    num_updates: int,
    *,
    peak_lr: float,
    warmup_updates: int = 0,
    warmup_init_lr: float = 0.0,
    milestones: Sequence[int] = (),
    lr_decay_rate: float = 0.1,
) -> float:
    """Compute the learning rate of the next update under the milestone schedule.

    Args:
        num_updates: number of completed updates, at least 0.
        peak_lr: learning rate at the end of the warm-up, reached after exactly ``warmup_updates`` updates.
        warmup_updates: length of the warm-up in updates. Without a warm-up, training starts at ``peak_lr``.
        warmup_init_lr: learning rate of the first update of the warm-up, from which the rate rises linearly.
        milestones: numbers of completed updates after which the rate is multiplied by ``lr_decay_rate``.
            Milestones up to and including ``warmup_updates`` have no effect.
        lr_decay_rate: factor at each milestone.

    Example:
        >>> milestone_lr(50, peak_lr=0.5, warmup_updates=100, milestones=[200])
        0.25
        >>> milestone_lr(200, peak_lr=0.5, warmup_updates=100, milestones=[200])
        0.05
    """
    if num_updates < warmup_updates:
        return warmup_init_lr + (peak_lr - warmup_init_lr) * num_updates / warmup_updates
    passed = sum(warmup_updates < milestone <= num_updates for milestone in milestones)
    return peak_lr * lr_decay_rate**passed
