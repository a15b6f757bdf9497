"""A checkpoint loads as the model that was trained, even if its architecture has new options."""

from argparse import Namespace

import pytest
import torch

import luna_fairseq.models  # noqa: F401  registers the architectures
from fairseq import checkpoint_utils
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.models import ARCH_CONFIG_REGISTRY
from luna_fairseq.errors import InputError

GAINED = [
    ("luna_anchored", "diagonal_prior"),
    ("luna_anchored", "packed_lookup"),
    ("luna_anchored", "causal_decay"),
    ("luna_anchored_small_512", "local_parts"),
]


def save_checkpoint(path, name, **options):
    """Write a checkpoint of a model with the architecture ``name``."""
    cfg = {"model": {"_name": name, "arch": name, **options}, "task": {"_name": "translation"}}
    history = [{"criterion_name": "c", "best_loss": 1.0, "optimizer_name": "o", "num_updates": 1}]
    state = {"args": None, "cfg": cfg, "model": {}, "optimizer_history": history}
    torch.save({**state, "extra_state": {"epoch": 1, "train_iterator": {"epoch": 1}}}, path)
    return str(path)


@pytest.mark.parametrize("name, option", GAINED)
def test_new_options_are_off_in_older_checkpoints(name, option, tmp_path):
    """A new option is off unless it is overridden, and stays on in a checkpoint that was trained with it."""
    older, new = save_checkpoint(tmp_path / "older.pt", name, anchored_packed=True), Namespace()
    model = load_checkpoint_to_cpu(older)["cfg"].model
    ARCH_CONFIG_REGISTRY[name](model)
    assert not model[option]
    assert load_checkpoint_to_cpu(older, {option: "override"})["cfg"].model[option] == "override"
    ARCH_CONFIG_REGISTRY[name](new)
    model = load_checkpoint_to_cpu(save_checkpoint(tmp_path / "new.pt", name, **vars(new)))["cfg"].model
    assert model[option] == getattr(new, option) and model[option]


@pytest.mark.parametrize("option, lacks", [("int8", "8-bit weights"), ("shortlist", "a shortlist")])
def test_an_option_of_generation_is_refused_for_a_model_without_it(option, lacks, tmp_path):
    """fairseq alone would ignore the option."""
    load_checkpoint_to_cpu(save_checkpoint(tmp_path / "ours.pt", "luna_base"), {option: "given"})
    message = f"^--{option}: the checkpoint's model, transformer, does not support {lacks}. Remove the option"
    with pytest.raises(InputError, match=message):
        load_checkpoint_to_cpu(save_checkpoint(tmp_path / "theirs.pt", "transformer"), {option: "given"})


@pytest.mark.parametrize("name", ["luna_lm", "transformer_lm"])
def test_options_of_the_translation_model_do_not_concern_the_model_of_lm_path(name, tmp_path, monkeypatch):
    """fairseq-generate loads both with the same overrides."""

    def load(filenames, overrides, *_):
        return [load_checkpoint_to_cpu(filenames[0], overrides)], None, None

    monkeypatch.setattr(checkpoint_utils, "load_model_ensemble_and_task", load)
    path = save_checkpoint(tmp_path / "lm.pt", name, tokens_per_sample=8, max_target_positions=8)
    overrides = {"int8": True, "shortlist": "given"}
    (state,), _ = checkpoint_utils.load_model_ensemble([path], arg_overrides=overrides, task=None)
    assert getattr(state["cfg"].model, "int8", None) == (True if name == "luna_lm" else None)
    with pytest.raises(InputError, match="does not support"):
        checkpoint_utils.load_model_ensemble([path], arg_overrides=overrides, task=object())
