"""A new option of a model needs only a field in its dataclass."""

from argparse import Namespace
from dataclasses import dataclass

import pytest
import torch
from omegaconf import OmegaConf
from tiny_masked_lm import OPTIONS, Task

from fairseq import options
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import register_model
from luna_fairseq.checks.same_training import check_options
from luna_fairseq.commands.averaging import average_checkpoints
from luna_fairseq.engine.entry_points import _check_and_apply_preset
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.pretrained import PretrainedCheckpoint
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig
from luna_fairseq.models.options import option


@dataclass
class WithAnother(LunaMaskedLMConfig):
    another_option: int = option(3, "an option that nothing else names")
    another_dropout: float = option(0.1, "one that may change", may_change=True)


WithAnother.__module__ = LunaMaskedLMConfig.__module__  # one of ours


@register_model("luna_with_another", dataclass=WithAnother)
class LunaWithAnother(LunaMaskedLM):
    pass


def parsed(*words):
    command = ["data", "--task", "masked_lm", "--arch", *words]
    return options.parse_args_and_arch(options.get_training_parser(), command)


def model_of(args):
    return convert_namespace_to_omegaconf(args).model


@pytest.fixture
def checkpoints(tmp_path):
    """Paths of two checkpoints of one run with the new option. The dropout of the second differs."""
    words = [f"--{name.replace('_', '-')} {value}" for name, value in OPTIONS.items()]
    args = parsed("luna_with_another", *" ".join(words).split(), "--another-option", "7")
    weights = LunaMaskedLM.build_model(args, Task(longest=None)).state_dict()
    history = [{"criterion_name": "c", "best_loss": 1.0, "optimizer_name": "o", "num_updates": 1}]
    paths = [tmp_path / f"checkpoint{number}.pt" for number in (1, 2)]
    for path, dropout in zip(paths, (0.1, 0.2)):
        cfg = {"model": {**model_of(args), "another_dropout": dropout}, "task": {"_name": "masked_lm"}}
        extra = {"epoch": 1, "train_iterator": {"epoch": 1}}
        state = {"args": None, "cfg": cfg, "model": weights, "extra_state": extra}
        torch.save({**state, "optimizer_history": history}, str(path))
    return paths


def test_command_line_and_hydra():
    assert model_of(parsed("luna_with_another")).another_option == 3
    assert model_of(parsed("luna_with_another", "--another-option", "7")).another_option == 7
    cfg = OmegaConf.create({"model": {"_name": "luna_with_another", "another_option": 7}})
    _check_and_apply_preset(add_defaults, cfg)
    assert (cfg.model.another_option, cfg.model.another_dropout) == (7, 0.1)


def test_checkpoint_and_fine_tuning(checkpoints):
    assert load_checkpoint_to_cpu(str(checkpoints[0]))["cfg"].model.another_option == 7
    words = PretrainedCheckpoint.load(checkpoints[0]).options
    assert words[words.index("--another-option") + 1] == "7" and "--another-dropout" not in words
    assert model_of(parsed(*words[1:])).another_option == 7


def test_averaging_and_resuming(checkpoints):
    assert average_checkpoints(checkpoints)["cfg"]["model"]["another_option"] == 7
    state = torch.load(str(checkpoints[1]), weights_only=False)
    stored = dict(state["cfg"]["model"])
    state["cfg"]["model"]["another_option"] = 8
    torch.save(state, str(checkpoints[1]))
    with pytest.raises(InputError, match="another_option is 8, not 7"):
        average_checkpoints(checkpoints)
    with pytest.raises(InputError, match="--another-option 7, but this run has --another-option 8, which"):
        check_options("x.pt", stored, state["cfg"]["model"])
    check_options("x.pt", stored, {**stored, "another_dropout": 0.5})
    del stored["another_option"]  # of before it was there: it has the default
    check_options("x.pt", stored, {**stored, "another_option": 3})


def test_export():
    pytest.importorskip("transformers")
    from luna_fairseq.huggingface.conversion import MASKED_LM, convert

    given = {"another_option": 7, "data": "where somebody has data"}
    model = LunaWithAnother.build_model(Namespace(**OPTIONS, **given), Task())
    config = convert(model, MASKED_LM, Task().source_dictionary).config.to_dict()
    assert config["another_option"] == 7 and "data" not in config
