"""Every recipe has the settings of its paper. ``papers.yaml`` marks settings that the paper does not give."""

from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from luna_fairseq.commands.recipes import list_recipes, read_recipe

PAPERS = yaml.safe_load((Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8"))
# What changes where and when, not what is computed; presets of ours, of which no paper speaks.
NOT_ASKED = ("hydra", "common", "checkpoint")
HOUSEKEEPING = {"num_workers", "required_batch_size_multiple", "skip_invalid_size_inputs_valid_test"}
HOUSEKEEPING |= {"validate_interval_updates", "_name", "data", "source_lang", "target_lang"}
OF_PAPERS = [name for name in list_recipes() if not name.startswith("bitext/")]


def said(name):
    """Return [value, source] of each option of a recipe, those of its family first."""
    lines = {**PAPERS[name.split("/")[0]], **(PAPERS.get(name) or {})}
    return {option: line for option, line in lines.items() if line is not None}


def meant(name):
    """Return the configuration that fairseq-train has: group -> option -> value."""
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *read_recipe(name).words()])
    cfg = convert_namespace_to_omegaconf(args)
    values = {group: OmegaConf.to_container(cfg[group]) for group in cfg if group != "model" and cfg[group]}
    model = cfg.model
    if isinstance(model, Namespace):
        ARCH_CONFIG_REGISTRY["transformer"](model)  # what fairseq does when it builds the model
    values["model"] = vars(model) if isinstance(model, Namespace) else OmegaConf.to_container(model)
    return values


@pytest.mark.parametrize("name", OF_PAPERS)
def test_a_recipe_means_what_its_paper_says(name):
    values = meant(name)
    found = {option: values[option.split(".")[0]][option.split(".")[1]] for option in said(name)}
    assert found == {option: value for option, (value, _) in said(name).items()}


@pytest.mark.parametrize("name", OF_PAPERS)
def test_every_option_of_a_recipe_has_its_source(name):
    settings = read_recipe(name).settings
    given = {
        f"{group}.{option}"
        for group in set(settings) - set(NOT_ASKED)
        for option in set(settings[group]) - HOUSEKEEPING
    }
    assert not given - set(said(name))


def test_no_line_is_of_a_recipe_that_is_not_there():
    assert not {name for name in PAPERS if "/" in name} - set(OF_PAPERS)
