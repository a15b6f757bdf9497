"""Architectures of the classifiers: the command line and configs/model agree, and twins differ in their
layers alone."""

from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from luna_fairseq.models.luna_classifier import ARCHITECTURES, LunaClassifier, LunaClassifierConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "model"
TASKS = ("listop", "imdb", "aan", "cifar10", "pf32", "pf128")
architectures = pytest.mark.parametrize("name", sorted(ARCHITECTURES))


def defaults():
    values = {key: getattr(value, "value", value) for key, value in asdict(LunaClassifierConfig()).items()}
    values.pop("_name")
    return values


def expected(name):
    return {**defaults(), **ARCHITECTURES[name]}


def test_published_names():
    names = {f"{layers}_lra_{task}" for layers in ("luna", "luna_anchored", "transformer") for task in TASKS}
    assert names | {"lra"} == set(ARCHITECTURES)


@pytest.mark.parametrize("task", TASKS)
def test_twins(task):
    luna, twin = expected(f"luna_lra_{task}"), expected(f"transformer_lra_{task}")
    assert {key for key in luna if luna[key] != twin[key]} == {"layer_type", "untie_luna_kv"}
    anchored = expected(f"luna_anchored_lra_{task}")
    assert {key for key in luna if luna[key] != anchored[key]} == {"anchored_packed"}


@architectures
def test_command_line(name):
    assert ARCH_MODEL_REGISTRY[name] is LunaClassifier
    words = ["data", "--task", "lra-text", "--criterion", "lra_cross_entropy", "--arch", name]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    found = OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)
    assert found == {"_name": name, **expected(name)}


@architectures
def test_hydra_config(name):
    """It lists what differs from the dataclass's defaults, and no more."""
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# @package _group_\n")
    different = {key: value for key, value in expected(name).items() if value != defaults()[key]}
    assert OmegaConf.to_container(OmegaConf.load(str(path))) == {"_name": "lra", **different}
