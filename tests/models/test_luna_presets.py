"""Architectures of the translation model: the command line and configs/model agree."""

from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from luna_fairseq.models import LunaConfig, LunaModel
from luna_fairseq.models.luna import ARCHITECTURES

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "model"
architectures = pytest.mark.parametrize("name", sorted(ARCHITECTURES))


def defaults():
    values = {key: getattr(value, "value", value) for key, value in asdict(LunaConfig()).items()}
    values.pop("_name")
    return values


def expected(name):
    """LunaConfig's defaults with what the architecture sets apart."""
    return {**defaults(), **ARCHITECTURES[name]}


def parse(*words):
    command = ["data", "--task", "translation", *words]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    return OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)


def test_published_names():
    assert sorted(ARCHITECTURES) == [
        "luna",
        "luna_anchored",
        "luna_anchored_base",
        "luna_anchored_base_untied",
        "luna_anchored_softmax_cross",
        "luna_base",
        "luna_base_tied",
        "luna_base_untied",
        "luna_softmax_cross",
    ]


@architectures
def test_command_line(name):
    assert ARCH_MODEL_REGISTRY[name] is LunaModel
    assert parse("--arch", name) == {"_name": name, **expected(name)}


@architectures
def test_options_win_over_the_architecture(name):
    words = "--projection-length 16 --encoder-layers 3 --pack-activation elu --relu-dropout 0.2".split()
    changed = {
        "projection_length": 16,
        "encoder_layers": 3,
        "pack_activation": "elu",
        "activation_dropout": 0.2,
    }
    assert parse("--arch", name, *words) == {"_name": name, **expected(name), **changed}


@architectures
def test_hydra_config(name):
    """It lists what differs from the dataclass's defaults, and no more."""
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# @package _group_\n")
    different = {key: value for key, value in expected(name).items() if value != defaults()[key]}
    assert OmegaConf.to_container(OmegaConf.load(str(path))) == {"_name": "luna", **different}


def test_every_hydra_config_has_its_architecture():
    assert {path.stem for path in CONFIGS.glob("luna*.yaml")} >= set(ARCHITECTURES)
