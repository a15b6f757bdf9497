"""Options that cannot be are refused in one line, when the model or the trainer is built."""

from types import SimpleNamespace

import pytest

from fairseq import models, options
from fairseq.criterions import build_criterion
from luna_fairseq.engine.possible_options import check_values
from luna_fairseq.errors import InputError


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dropout": 1.5}, "--dropout 1.5: a probability is at least 0 and less than 1"),
        ({"word_dropout": -0.1}, "--word-dropout -0.1: a probability"),
        ({"encoder_layerdrop": 2}, "--encoder-layerdrop 2: a probability"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1: a probability"),
        ({"attention_dropout": float("nan")}, "--attention-dropout nan: a probability"),
        ({"encoder_layers": 0}, "--encoder-layers 0: must be at least 1"),
        ({"decoder_attention_heads": 0}, "--decoder-attention-heads 0: must be at least 1"),
        ({"encoder_ffn_embed_dim": -4}, "--encoder-ffn-embed-dim -4: must be at least 1"),
        ({"update_freq": [2, 0]}, "--update-freq 0: must be at least 1"),
        ({"max_tokens": 0}, "--max-tokens 0: must be at least 1"),
        ({"clip_norm": -1.0}, "--clip-norm -1: must be at least 0"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(InputError) as error:
        check_values({"arch": "luna", **options})
    assert str(error.value).startswith(message)


def test_what_can_be():
    check_values(
        {"dropout": 0.0, "clip_norm": 0.0, "encoder_layers": 1, "max_tokens": None, "update_freq": [1, 2]}
    )
    check_values(
        {
            "base_layers": 0,
            "encoder_layers_to_keep": "0,2",
            "share_all_embeddings": False,
            "max_tokens_valid": "${x}",
        }
    )


def test_a_command_without_a_task():
    parser = options.get_validation_parser()
    with pytest.raises(InputError) as error:
        options.parse_args_and_arch(parser, ["data-bin", "--path", "checkpoint_best.pt"])
    assert str(error.value) == "--task is missing: give that of the training, such as --task translation"


def broken(error):
    class Broken:
        @classmethod
        def build_model(cls, cfg, task):
            raise error

    return Broken


@pytest.mark.parametrize(
    "error, message",
    [
        (ValueError("--share-all-embeddings requires a joined dictionary"), "requires a joined dictionary"),
        (Exception("two\nlines"), "^two lines$"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 10 bytes\nat"),
            "not fit into memory .*10 bytes",
        ),
        (MemoryError("std::bad_alloc"), "does not fit into memory"),
    ],
)
def test_what_fairseq_and_torch_say_while_a_model_is_built(error, message, monkeypatch):
    monkeypatch.setitem(models.ARCH_MODEL_REGISTRY, "broken", broken(error))
    with pytest.raises(InputError, match=message) as raised:
        models.build_model(SimpleNamespace(arch="broken"), None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("a defect"), AssertionError(), KeyError("x"), NotImplementedError("x")]
)
def test_defects_stay_what_they_are(error, monkeypatch):
    monkeypatch.setitem(models.ARCH_MODEL_REGISTRY, "broken", broken(error))
    with pytest.raises(type(error)) as raised:
        models.build_model(SimpleNamespace(arch="broken"), None)
    assert raised.value is error


def test_options_are_looked_at_before_the_model_is_built(monkeypatch):
    monkeypatch.setitem(models.ARCH_MODEL_REGISTRY, "broken", broken(RuntimeError("built")))
    with pytest.raises(InputError, match="--encoder-layers 0: must be at least 1"):
        models.build_model(SimpleNamespace(arch="broken", encoder_layers=0), None)


def test_a_criterion_that_does_not_fit():
    with pytest.raises(InputError, match="AdaptiveLoss is not compatible with the PyTorch version"):
        config = SimpleNamespace(criterion="adaptive_loss", sentence_avg=False, ddp_backend="c10d")
        build_criterion(config, None)
