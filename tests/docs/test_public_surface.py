"""The public surface describes all of its arguments. Elsewhere, one sentence may be enough."""

import inspect
from importlib import import_module

import pytest

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler

# Folders whose exported names users import.
PUBLIC = ("modules", "ops", "optim", "models")
NAMES = [(folder, name) for folder in PUBLIC for name in import_module(f"luna_fairseq.{folder}").__all__]


def is_built_by_fairseq(exported):
    """Return True for models, optimizers and schedules, whose users give options, and for these options.

    The help text of each option describes it.
    """
    kinds = (BaseFairseqModel, FairseqOptimizer, FairseqLRScheduler, FairseqDataclass)
    return isinstance(exported, type) and issubclass(exported, kinds)


@pytest.mark.parametrize("folder, name", NAMES)
def test_every_argument_is_described(folder, name):
    exported = getattr(import_module(f"luna_fairseq.{folder}"), name)
    assert inspect.getdoc(exported)
    if is_built_by_fairseq(exported):
        return
    classes = inspect.getmro(exported) if isinstance(exported, type) else [exported]
    text = "\n".join(filter(None, (each.__doc__ for each in classes if each is not object)))
    parameters = inspect.signature(exported).parameters.values()
    named = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    assert not [each for each in named if f" {each}:" not in text]
