"""Initial weights have the distributions of the authors' code."""

from argparse import Namespace

import pytest
import torch
from golden import load
from tiny_luna import Task
from tiny_masked_lm import Task as MaskedTask

from luna_fairseq.models import LunaMaskedLM, LunaModel
from luna_fairseq.models.authors_checkpoint import translate_name
from luna_fairseq.peers.models import PeerRoberta


def uniform(parameter, bound):
    assert parameter.abs().max().item() == pytest.approx(bound, rel=0.02) and parameter.abs().max() <= bound
    assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.06)


@pytest.mark.parametrize("untied", [False, True])
def test_as_the_authors_draw(untied):
    """Mean, standard deviation and maximum of every parameter agree up to the noise of sampling."""
    torch.manual_seed(0)
    options = {"encoder_layers": 1, "decoder_layers": 1, "untie_luna_kv": untied, "projection_length": 32}
    model = LunaModel.build_model(Namespace(**options, share_all_embeddings=True), Task(1000, 1000))
    assert not model.encoder.embed_tokens.weight[1].any()
    stats = load("init_stats")["stats"]["luna_untied" if untied else "luna_tied"]
    parameters, seen = dict(model.named_parameters()), set()
    for theirs, expected in stats.items():
        name = translate_name(theirs)
        if name not in parameters:
            assert name.startswith("decoder.layers.0.packed_layer_norm.") or name.endswith("norm.bias")
            continue
        seen.add(name)
        parameter = parameters[name].detach()
        assert list(parameter.shape) == expected["shape"], name
        noise = 4 * expected["std"] * parameter.numel() ** -0.5  # of a mean or a standard deviation
        assert abs(parameter.mean().item() - expected["mean"]) <= 1.5 * noise + 1e-9, name
        assert abs(parameter.std().item() - expected["std"]) <= 1.5 * noise + 1e-9, name
        largest = pytest.approx(expected["absmax"], rel=0.2 if "embed" in name else 0.02)
        assert parameter.abs().max().item() == largest, name
    assert seen == set(parameters)


@pytest.mark.parametrize("model", [LunaMaskedLM, PeerRoberta])
@pytest.mark.parametrize("attention_init", ["bert", "xavier"])
def test_a_masked_lm_begins_as_bert_but_for_attention_that_begins_as_in_translation(model, attention_init):
    torch.manual_seed(0)
    options = {"attention_init": attention_init, "encoder_layers": 1, "encoder_embed_dim": 192}
    model = model.build_model(Namespace(**options, encoder_attention_heads=4), MaskedTask())
    for name, parameter in model.encoder.sentence_encoder.layers.named_parameters():
        if attention_init == "xavier" and name.endswith("_proj.weight"):
            uniform(parameter, (6 / 384) ** 0.5 * (1.0 if "out_proj" in name else 2**-0.5))
        elif name.endswith(("fc1.weight", "fc2.weight", "_proj.weight")):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.02), name
        elif name.endswith("proj.bias"):
            assert not parameter.any()
