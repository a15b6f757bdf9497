"""Optimizer and learning-rate schedule: in plain torch and Python, and each in fairseq's clothes, imported
when asked for."""

from importlib import import_module
from typing import Any

from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.optim.milestone_schedule import milestone_lr
from luna_fairseq.requirements import require_fairseq

_WITH_FAIRSEQ = {
    "ApolloConfig": "fairseq_apollo",
    "FairseqApollo": "fairseq_apollo",
    "MilestoneSchedule": "fairseq_milestone",
    "MilestoneScheduleConfig": "fairseq_milestone",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_FAIRSEQ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_fairseq()
    return getattr(import_module(f"{__name__}.{_WITH_FAIRSEQ[name]}"), name)


__all__ = ["Apollo", "milestone_lr", *_WITH_FAIRSEQ]
