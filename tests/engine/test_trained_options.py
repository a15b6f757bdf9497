"""A checkpoint loads as the model that was trained, even if its architecture has new options."""

from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf, open_dict
from tiny_masked_lm import OPTIONS, Task

import luna_fairseq.models  # noqa: F401  registers the architectures
from fairseq import options
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from luna_fairseq.checks.model_options import plain_options
from luna_fairseq.checks.same_training import check_options, stored_options
from luna_fairseq.commands.averaging import average_checkpoints
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.pretrained import PretrainedCheckpoint
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

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


CARRIED = {"carry_packed": True, "segment_length": 16, "bptt_segments": None}
REFUSED = r"x.pt was trained with --carry-packed, which has been removed. Load it with the code at commit"


def save_with_carried_p(path, on):
    """Save a tiny masked language model with the options of a version that could carry P."""
    words = [f"--{name.replace('_', '-')} {value}" for name, value in OPTIONS.items()]
    command = f"data --task masked_lm --arch luna_bert {' '.join(words)}".split()
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    weights = LunaMaskedLM.build_model(args, Task(longest=None)).state_dict()
    cfg = convert_namespace_to_omegaconf(args)
    with open_dict(cfg):
        cfg.model = {**cfg.model, **CARRIED, "carry_packed": on}
    history = [{"criterion_name": "c", "best_loss": 1.0, "optimizer_name": "o", "num_updates": 1}]
    extra = {"epoch": 1, "train_iterator": {"epoch": 1}}
    state = {"args": None, "cfg": OmegaConf.to_container(cfg), "model": weights, "extra_state": extra}
    torch.save({**state, "optimizer_history": history}, path)
    return path


def test_a_checkpoint_loads_if_a_removed_option_is_off(tmp_path):
    path, task = save_with_carried_p(tmp_path / "x.pt", False), Task(longest=None)
    state = load_checkpoint_to_cpu(str(path))
    model = build_model(state["cfg"].model, task, from_checkpoint=True)
    model.load_state_dict(state["model"])
    check_options("x.pt", stored_options(state), plain_options(model.args))
    assert "--segment-length" not in PretrainedCheckpoint.load(path).options
    assert average_checkpoints([path, path])["model"]


@pytest.mark.parametrize(
    "load", [load_checkpoint_to_cpu, PretrainedCheckpoint.load, lambda x: average_checkpoints([x, x])]
)
def test_a_checkpoint_is_refused_in_one_line_if_a_removed_option_is_on(load, tmp_path):
    with pytest.raises(InputError, match=REFUSED):
        load(save_with_carried_p(tmp_path / "x.pt", True))


@pytest.mark.parametrize("option, lacks", [("int8", "8-bit weights"), ("shortlist", "a shortlist")])
def test_an_option_of_generation_is_refused_for_a_model_without_it(option, lacks, tmp_path):
    """fairseq alone would ignore the option."""
    load_checkpoint_to_cpu(save_checkpoint(tmp_path / "ours.pt", "luna_base"), {option: "given"})
    message = f"^--{option}: the checkpoint's model, transformer, does not support {lacks}. Remove the option"
    with pytest.raises(InputError, match=message):
        load_checkpoint_to_cpu(save_checkpoint(tmp_path / "theirs.pt", "transformer"), {option: "given"})
