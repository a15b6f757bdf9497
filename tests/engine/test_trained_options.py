"""A checkpoint is loaded as the model that was trained, whatever its architecture has gained since."""

from argparse import Namespace

import pytest
import torch

import luna_fairseq.models  # noqa: F401  registers the architectures
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.models import ARCH_CONFIG_REGISTRY

GAINED = [
    ("luna_anchored", "diagonal_prior"),
    ("luna_anchored", "packed_lookup"),
    ("luna_anchored", "causal_decay"),
    ("luna_anchored_small_512", "local_parts"),
]


def saved(path, name, **options):
    """A checkpoint whose model has the architecture ``name``."""
    cfg = {"model": {"_name": name, "arch": name, **options}, "task": {"_name": "translation"}}
    history = [{"criterion_name": "c", "best_loss": 1.0, "optimizer_name": "o", "num_updates": 1}]
    state = {"args": None, "cfg": cfg, "model": {}, "optimizer_history": history}
    torch.save({**state, "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}}}, path)
    return str(path)


@pytest.mark.parametrize("name, option", GAINED)
def test_what_the_architecture_has_gained(name, option, tmp_path):
    """It is left out where it was not there unless asked for, and stays where it was trained with."""
    older, new = saved(tmp_path / "older.pt", name, anchored_packed=True), Namespace()
    model = load_checkpoint_to_cpu(older)["cfg"].model
    ARCH_CONFIG_REGISTRY[name](model)
    assert not model[option]
    assert load_checkpoint_to_cpu(older, {option: "asked"})["cfg"].model[option] == "asked"
    ARCH_CONFIG_REGISTRY[name](new)
    model = load_checkpoint_to_cpu(saved(tmp_path / "new.pt", name, **vars(new)))["cfg"].model
    assert model[option] == getattr(new, option) and model[option]
