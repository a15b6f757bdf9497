"""A learning rate of linear warm-up, then constant, multiplied at given updates.

The schedule of the translation experiments with Apollo (Ma, 2020, arXiv 2009.13586) and Luna (500,000
updates, milestones 300,000 and 450,000). The rate is a pure function of the number of finished updates, so
that a resumed run, or one whose optimizer was reset, has the rate of an uninterrupted one.
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
    """The learning rate of the update that follows ``num_updates`` finished ones.

    Args:
        num_updates: finished updates, >= 0.
        peak_lr: rate at the end of the warm-up, reached after exactly ``warmup_updates`` updates.
        warmup_updates: length of the warm-up in updates; 0 starts at ``peak_lr`` (default: 0).
        warmup_init_lr: rate of the very first update, from which the warm-up rises linearly (default: 0).
        milestones: numbers of finished updates after which the rate is multiplied by ``lr_decay_rate``. Those
            within the warm-up (<= ``warmup_updates``) have no effect: the warm-up always ends at ``peak_lr``
            (default: none).
        lr_decay_rate: the factor (default: 0.1).
    """
    if num_updates < warmup_updates:
        return warmup_init_lr + (peak_lr - warmup_init_lr) * num_updates / warmup_updates
    passed = sum(warmup_updates < milestone <= num_updates for milestone in milestones)
    return peak_lr * lr_decay_rate**passed
