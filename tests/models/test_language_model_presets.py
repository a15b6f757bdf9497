"""Architectures of the language models: the command line and configs/model agree."""

from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from luna_fairseq.models import LunaLanguageModel, LunaLanguageModelConfig, LunaMaskedLM, LunaMaskedLMConfig
from luna_fairseq.models.luna_lm import ARCHITECTURES as CAUSAL
from luna_fairseq.models.luna_masked_lm import ARCHITECTURES as MASKED

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "model"
MODELS = {name: ("luna_masked_lm", "masked_lm", LunaMaskedLM, LunaMaskedLMConfig, MASKED) for name in MASKED}
MODELS.update(
    (name, ("luna_lm", "language_modeling", LunaLanguageModel, LunaLanguageModelConfig, CAUSAL))
    for name in CAUSAL
)
architectures = pytest.mark.parametrize("name", sorted(MODELS))
TASKS_OWN = ("tokens_per_sample", "max_target_positions")


def defaults(name):
    *_, config, _ = MODELS[name]
    values = {key: getattr(value, "value", value) for key, value in asdict(config()).items()}
    values.pop("_name")
    return values


def expected(name):
    """The defaults with what the architecture sets apart."""
    return {**defaults(name), **MODELS[name][-1][name]}


def test_published_names():
    named = {
        "luna_masked_lm",
        "luna_bert",
        "luna_base_512",
        "luna_base_tied_512",
        "luna_base_untied_512",
        "luna_lm",
    }
    assert named <= set(MODELS)


@architectures
def test_command_line(name):
    _, task, model, _, _ = MODELS[name]
    assert ARCH_MODEL_REGISTRY[name] is model
    args = options.parse_args_and_arch(
        options.get_training_parser(), ["data", "--task", task, "--arch", name]
    )
    found = OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)
    wanted = {"_name": name, **expected(name)}
    assert {k: v for k, v in found.items() if k not in TASKS_OWN} == {
        k: v for k, v in wanted.items() if k not in TASKS_OWN
    }


@architectures
def test_hydra_config(name):
    """It lists what differs from the dataclass's defaults, and no more."""
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# @package _group_\n")
    different = {key: value for key, value in expected(name).items() if value != defaults(name)[key]}
    assert OmegaConf.to_container(OmegaConf.load(str(path))) == {"_name": MODELS[name][0], **different}
