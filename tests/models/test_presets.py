"""Architectures of Luna and the peers, on the command line and with hydra.

The options are the defaults of the model's dataclass, overridden by the architecture and by the user.
"""

from argparse import ArgumentParser
from copy import deepcopy
from dataclasses import fields

import pytest
from omegaconf import OmegaConf

from fairseq import options
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from luna_fairseq.checks.model_options import plain_options
from luna_fairseq.engine.entry_points import _check_and_apply_preset
from luna_fairseq.models import luna, luna_classifier, luna_lm, luna_masked_lm
from luna_fairseq.peers import ATTENTIONS, models
from luna_fairseq.peers.config import (
    AttentionConfig,
    PeerLanguageModelConfig,
    PeerRobertaConfig,
    PeerTransformerConfig,
)

# The task of each model, and its architectures.
MODELS = {
    "luna": ("translation", luna.ARCHITECTURES),
    "luna_masked_lm": ("masked_lm", luna_masked_lm.ARCHITECTURES),
    "luna_lm": ("language_modeling", luna_lm.ARCHITECTURES),
    "lra": ("lra-text", luna_classifier.ARCHITECTURES),
    "peer_transformer": ("translation", models.ARCHITECTURES["peer_transformer"]),
    "peer_lm": ("language_modeling", models.ARCHITECTURES["peer_lm"]),
    "peer_roberta": ("masked_lm", models.ARCHITECTURES["peer_roberta"]),
    "peer_lra": ("lra-text", models.ARCHITECTURES["peer_lra"]),
    "rnn_attention": ("translation", {"rnn_attention": {}}),
}
EVERY = [(model, name) for model, (_, presets) in MODELS.items() for name in presets]
ASKED = {
    "luna": {"encoder_layers": 3, "pack_activation": "elu"},
    "peer_transformer": {"attention": "rfa"},
    "peer_lm": {"decoder_attention": "rfa"},
}
LRA = ("listop", "imdb", "aan", "cifar10", "pf32", "pf128")
TRANSLATION = "luna luna_base luna_base_tied luna_base_untied luna_softmax_cross luna_anchored"
OTHERS = "luna_bert luna_base_512 luna_base_tied_512 luna_base_untied_512 luna_lm luna_lm_small luna_lm_big"
PUBLISHED = {
    *f"{TRANSLATION} {OTHERS} informer_encoder".split(),
    *(f"{layers}_lra_{task}" for layers in ("luna", "luna_anchored", "transformer", "peer") for task in LRA),
}


def expected(model, name):
    defaults = plain_options(MODEL_DATACLASS_REGISTRY[model]())
    asked = {**MODELS[model][1][name], **ASKED.get(model, {}), "_name": name}
    # A reference to the task's options has its value by then.
    return {**{k: v for k, v in defaults.items() if not str(v).startswith("${")}, **asked}


@pytest.mark.parametrize("model, name", EVERY)
def test_command_line(model, name):
    words = ["data", "--task", MODELS[model][0], "--arch", name]
    for option, value in ASKED.get(model, {}).items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    found, wanted = {"_name": args.arch, **vars(args)}, expected(model, name)
    if name == model:  # fairseq then fills in what is left open, in the same way for all
        found = OmegaConf.to_container(convert_namespace_to_omegaconf(args).model)
    else:
        found = {**plain_options(MODEL_DATACLASS_REGISTRY[model]()), **found}
    assert {option: found[option] for option in wanted} == wanted


@pytest.mark.parametrize("model, name", EVERY)
def test_hydra(model, name):
    """fairseq-hydra-train selects an architecture by ``+model={_name:NAME}``."""
    asked = {"_name": name, **ASKED.get(model, {})}
    cfg = OmegaConf.create({"model": asked, "task": {"tokens_per_sample": 512, "max_target_positions": 9}})
    _check_and_apply_preset(add_defaults, cfg)
    found, wanted = OmegaConf.to_container(cfg.model, resolve=True, enum_to_str=True), expected(model, name)
    assert {option: found[option] for option in wanted} == wanted
    assert set(found) - set(wanted) <= {"tokens_per_sample", "max_target_positions"}


@pytest.mark.parametrize("name", ["luna_anchored", "transformer_lra_aan"])
def test_hydra_with_a_name_alone(name):
    """A YAML file may have ``model: NAME``."""
    found = [OmegaConf.create({"model": model}) for model in (name, {"_name": name})]
    for cfg in found:
        _check_and_apply_preset(add_defaults, cfg)
    assert found[0] == found[1]


def test_every_model_of_ours_is_here():
    ours = {name for name, one in MODEL_REGISTRY.items() if one.__module__.startswith("luna_fairseq.")}
    assert ours - set(MODELS) <= {"luna_softmax_causal"}
    assert PUBLISHED <= {name for _, name in EVERY}


@pytest.mark.parametrize("task", LRA)
def test_twins_differ_in_their_layers_alone(task):
    presets = deepcopy(luna_classifier.ARCHITECTURES)
    plain, twin = presets[f"luna_lra_{task}"], presets[f"transformer_lra_{task}"]
    assert presets[f"luna_anchored_lra_{task}"] == {**plain, "anchored_packed": True}
    assert plain.pop("untie_luna_kv") and twin.pop("layer_type") == "transformer"
    assert plain == twin == models.ARCHITECTURES["peer_lra"][f"peer_lra_{task}"]


def test_every_attention_can_be_asked_for():
    parser = ArgumentParser(allow_abbrev=False)
    models.PeerTransformer.add_args(parser)
    for name in ATTENTIONS:
        words = ["--attention", name, "--decoder-attention", name, "--cross-attention", name]
        given = parser.parse_args(words)
        assert {given.attention, given.decoder_attention, given.cross_attention} == {name}


OF_ROBERTA = "attention_init checkpoint_activations no_token_positional_embeddings offload_activations"


@pytest.mark.parametrize(
    "config, model, more",
    [
        (PeerTransformerConfig, TransformerModel, "decoder_input_dim int8 shortlist"),
        (PeerLanguageModelConfig, TransformerLanguageModel, "int8 max_target_positions tokens_per_sample"),
        (PeerRobertaConfig, RobertaModel, OF_ROBERTA),
    ],
)
def test_no_option_of_a_peer_is_lunas(config, model, more):
    parser = ArgumentParser(allow_abbrev=False)
    model.add_args(parser)
    known = {action.dest for action in parser._actions} | {each.name for each in fields(AttentionConfig)}
    assert {each.name for each in fields(config)} - known == set(more.split())
