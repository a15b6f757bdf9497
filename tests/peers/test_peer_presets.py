"""Architectures of the peers: the command line gives the defaults, the architecture's options, then what was
asked for."""

from argparse import ArgumentParser
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from luna_fairseq.models.luna_classifier import ARCHITECTURES as CLASSIFIERS
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.config import (
    AttentionConfig,
    PeerClassifierConfig,
    PeerRobertaConfig,
    PeerTransformerConfig,
)
from luna_fairseq.peers.peer_lra import ARCHITECTURES as PEER_CLASSIFIERS
from luna_fairseq.peers.peer_roberta import ARCHITECTURES as ROBERTAS
from luna_fairseq.peers.peer_transformer import ARCHITECTURES as TRANSFORMERS

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "model"
FAMILIES = {
    "translation": (PeerTransformerConfig, TRANSFORMERS),
    "masked_lm": (PeerRobertaConfig, ROBERTAS),
    "lra-text": (PeerClassifierConfig, PEER_CLASSIFIERS),
}
MODELS = {"translation": "peer_transformer", "masked_lm": "peer_roberta", "lra-text": "peer_lra"}
CASES = [(task, name) for task, (_, presets) in FAMILIES.items() for name in presets]


def parse(task, *words):
    command = ["data", "--task", task, *words]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    return OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)


def expected(task, name):
    config, presets = FAMILIES[task]
    values = {key: getattr(value, "value", value) for key, value in asdict(config()).items()}
    return {**values, **presets[name], "_name": name}


@pytest.mark.parametrize("task, name", CASES)
def test_command_line(task, name):
    assert parse(task, "--arch", name) == expected(task, name)
    words = "--attention rfa --rfa-dim 32 --rfa-gate --local-kind blocks --dropout 0.3".split()
    changed = {"attention": "rfa", "rfa_dim": 32, "rfa_gate": True, "local_kind": "blocks", "dropout": 0.3}
    assert parse(task, "--arch", name, *words) == {**expected(task, name), **changed}


@pytest.mark.parametrize("task, name", CASES)
def test_hydra_config(task, name):
    """It lists what differs from the dataclass's defaults, and no more."""
    config, presets = FAMILIES[task]
    path = CONFIGS / f"{name}.yaml"
    assert path.read_text(encoding="utf-8").startswith("# @package _group_\n")
    model = MODELS[task]
    defaults = {each.name: each.default for each in fields(config)}
    different = {key: value for key, value in presets[name].items() if value != defaults[key]}
    assert OmegaConf.to_container(OmegaConf.load(str(path))) == {"_name": model, **different}


def test_every_attention_can_be_asked_for():
    for name in ATTENTIONS:
        words = ["--attention", name, "--decoder-attention", name, "--cross-attention", name]
        values = parse("translation", "--arch", "peer_transformer", *words)
        assert {values[f"{part}attention"] for part in ("", "decoder_", "cross_")} == {name}


@pytest.mark.parametrize(
    ("config", "model", "more"),
    [
        (PeerTransformerConfig, TransformerModel, {"decoder_input_dim"}),
        (
            PeerRobertaConfig,
            RobertaModel,
            {
                "attention_init",
                "checkpoint_activations",
                "no_token_positional_embeddings",
                "offload_activations",
            },
        ),
    ],
)
def test_no_option_is_lunas_alone(config, model, more):
    parser = ArgumentParser(allow_abbrev=False)
    model.add_args(parser)
    known = {action.dest for action in parser._actions} | {each.name for each in fields(AttentionConfig)}
    assert {each.name for each in fields(config)} - known == more


def test_the_classifiers_are_twins_of_the_transformers():
    for name, preset in PEER_CLASSIFIERS.items():
        if name != "peer_lra":
            twin = CLASSIFIERS[name.replace("peer_", "transformer_")]
            assert {**preset, "layer_type": "transformer"} == twin
    assert len(PEER_CLASSIFIERS) == 7
