"""Apollo optimizer and milestone learning-rate schedule.

``Apollo`` and ``milestone_lr`` need only torch. Their fairseq versions are imported on first use.
"""

from importlib import import_module
from typing import Any

from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.optim.milestone_schedule import milestone_lr
from luna_fairseq.requirements import require_fairseq

_FAIRSEQ_NAMES = {
    "ApolloConfig": "fairseq_apollo",
    "FairseqApollo": "fairseq_apollo",
    "MilestoneSchedule": "fairseq_milestone",
    "MilestoneScheduleConfig": "fairseq_milestone",
}


def __getattr__(name: str) -> Any:
    if name not in _FAIRSEQ_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_fairseq()
    return getattr(import_module(f"{__name__}.{_FAIRSEQ_NAMES[name]}"), name)


__all__ = ["Apollo", "milestone_lr", *_FAIRSEQ_NAMES]
