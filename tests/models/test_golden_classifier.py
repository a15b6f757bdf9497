"""The classifiers of Long Range Arena equal vectors of the authors' implementation."""

from argparse import Namespace

import pytest
import torch
from golden import DTYPES, assert_close, load
from tiny_luna import dictionary

from luna_fairseq.models import LunaClassifier
from luna_fairseq.models.authors_checkpoint import translate_name
from luna_fairseq.models.luna_classifier import ARCHITECTURES

SIZES = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_attention_heads": 3,
    "classifier_out_dim": 10,
    "max_positions": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
CASES = (
    *("luna from <CLS>", "luna from P", "luna from the mean", "luna of pairs"),
    *("transformer from <CLS>", "transformer of pairs"),
)


def our_name(name, arch):
    """Return our name of a parameter. The authors' encoder is nested in another module."""
    name = name.replace("encoder.encoder.", "encoder.")
    if arch.startswith("luna"):
        return translate_name(name)
    return name.replace("encoder.emb_layer_norm.", "encoder.layernorm_embedding.")


def reorder_pairs(value, name, pairs):
    """The authors' code concatenates the second vector and the first, ours the first and the second."""
    if pairs and name == "classifier.0.weight":
        return torch.cat(value.chunk(2, dim=1)[::-1], dim=1)
    return value


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients(case, precision):
    golden = load("lra_models")[case]
    expected, pairs = golden[precision], "src1_tokens" in golden
    arch = golden["arch"]
    state = {our_name(name, arch): reorder_pairs(x, name, pairs) for name, x in golden["state_dict"].items()}
    words = state["encoder.embed_tokens.weight"].size(0)
    given = {
        name: golden[name]
        for name in ("encoder_layers", "encoder_projection_length", "use_p")
        if name in golden
    }
    options = {**ARCHITECTURES[arch], **SIZES, **given}
    task = Namespace(source_dictionary=dictionary(words), pairs=pairs)
    model = LunaClassifier.build_model(Namespace(**options), task).eval()
    model.load_state_dict(state)
    model.to(DTYPES[precision])

    src_tokens = golden["src_tokens"][:, 1:] if golden["use_p"] else golden["src_tokens"]
    logits = model(src_tokens, src1_tokens=golden.get("src1_tokens"))
    assert_close(logits, expected["logits"], precision, "logits")

    logits.backward(golden["grad_output"].to(logits))
    parameters = dict(model.named_parameters())
    for name, gradient in expected["grads"].items():
        ours = our_name(name, arch)
        if ours not in parameters:  # in the authors' code, the final norm of P belongs to the last layer
            ours = "encoder.packed_layer_norm." + ours.rpartition(".")[2]
        assert_close(parameters[ours].grad, reorder_pairs(gradient, name, pairs), precision, name)
