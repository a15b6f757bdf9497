"""fairseq's moving average of the weights (--store-ema) covers every weight of the model."""

import copy
from argparse import Namespace
from types import SimpleNamespace

import pytest
import tiny_luna
import tiny_masked_lm
import tiny_models
import torch

from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from fairseq.trainer import Trainer
from luna_fairseq.peers.models import PeerRoberta

SMALL = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 1,
    "encoder_attention_heads": 3,
    "max_positions": 40,
    "performer_redraw_interval": 4,
}
BEFORE = {"encoder_normalize_before": True}
MODELS = {
    "translation": lambda: tiny_luna.tiny_model(**BEFORE, decoder_normalize_before=True),
    "translation, norms after": tiny_luna.tiny_model,
    "language model": lambda: tiny_models.language_model(decoder_normalize_before=True),
    "masked language model": lambda: tiny_masked_lm.tiny_model(**BEFORE),
    "classifier": lambda: tiny_models.classifier(**BEFORE),
}


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_mean_of_all_weights(kind, fp32):
    """The final layer norm is covered, too, and a tied embedding is averaged once, not once a name.

    fairseq's average forgets the version of the model, and old versions have no final layer norm.
    """
    model = MODELS[kind]()
    before = copy.deepcopy(model.state_dict())
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5, ema_fp32=fp32))
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(1.0)
    average.step(model)
    found, now = average.get_model().state_dict(), model.state_dict()
    assert found.keys() == now.keys() == before.keys()
    for name, weights in now.items():
        expected = weights if "version" in name else 0.5 * before[name] + 0.5 * weights
        torch.testing.assert_close(found[name], expected, msg=name)


@pytest.mark.parametrize("fp32", [False, True])
@pytest.mark.parametrize("name", ["performer", "rfa", "reformer", "bigbird"])
def test_seeds_are_copied_and_random_features_are_those_of_the_model(name, fp32):
    """Every fourth update, random features are drawn again."""
    options = Namespace(**SMALL, attention=name)
    model = PeerRoberta.build_model(options, tiny_masked_lm.Task()).train()
    before = copy.deepcopy(model.state_dict())
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5, ema_fp32=fp32))
    model.set_num_updates(4)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(1.0)
    average.step(model)
    now = model.state_dict()
    for name, found in average.get_model().state_dict().items():
        kept = "version" in name or not found.is_floating_point()
        torch.testing.assert_close(found, now[name] if kept else 0.5 * (before[name] + now[name]), msg=name)
    buffers = dict(model.named_buffers())
    for name, found in average.get_model().named_buffers():
        assert torch.equal(found, buffers[name]), name


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_averages_of_16_bit_weights_have_32_bits(precision):
    model = tiny_luna.tiny_model().bfloat16()
    common = {"fp16": False, "bf16": False, precision: True}
    cfg = SimpleNamespace(common=SimpleNamespace(**common), ema=EMAConfig(store_ema=True, ema_decay=0.999))
    trainer = SimpleNamespace(cfg=cfg, _model=model, device=None)
    Trainer._build_ema(trainer)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(1.0)
    trainer._ema.step(model)
    assert cfg.ema.ema_fp32
    for name, average in trainer._ema.fp32_params.items():
        if "version" not in name:
            torch.testing.assert_close(
                model.state_dict()[name].float() - average,
                0.999 * torch.ones_like(average),
                rtol=0,
                atol=0.02,
                msg=name,
            )
            assert not torch.equal(average, average.bfloat16().float()), name
