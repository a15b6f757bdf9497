"""Optimizer and learning-rate schedule; importing this registers both with fairseq."""

from luna_fairseq.engine.compat import leave_clipping_to_the_optimizer
from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.optim.fairseq_apollo import ApolloConfig, FairseqApollo
from luna_fairseq.optim.milestone_schedule import MilestoneSchedule, MilestoneScheduleConfig, milestone_lr

leave_clipping_to_the_optimizer()

__all__ = [
    "Apollo",
    "ApolloConfig",
    "FairseqApollo",
    "MilestoneSchedule",
    "MilestoneScheduleConfig",
    "milestone_lr",
]
