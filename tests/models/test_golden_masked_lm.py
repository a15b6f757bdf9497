"""The masked language model and its classification heads equal vectors of the authors' implementation."""

import functools
from argparse import Namespace

import pytest
import torch
from golden import DTYPES, assert_close, load
from old_torch import without_memory
from tiny_masked_lm import Task

from luna_fairseq.models.authors_checkpoint import translate_name
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

CASES = ["pad", "short", "nopad", "nopad_short"]
UNUSED = "encoder.sentence_encoder.layers.1.packed_layer_norm"
NORM = "encoder.sentence_encoder.packed_layer_norm"
VECTORS = [(variant, case) for variant in ("dynproj", "fixedproj") for case in CASES]
each = pytest.mark.parametrize("variant, case", [*VECTORS, ("untied_lm_head", "pad")])
precisions = pytest.mark.parametrize("precision", ["f32", "f64"])


def golden_model(golden, variant, precision, heads=True):
    vectors = golden["variants"][variant]
    args = Namespace(**vectors["args"], **{name: None for name in vectors["args_none"]})
    model = LunaMaskedLM.build_model(args, Task(golden["dictionary"]["size"], 32)).eval()
    if heads:
        for name, classes in golden["heads"].items():
            model.register_classification_head(name, num_classes=classes)
    model.load_state_dict({**vectors["state_dict"]}, strict=True)
    return model.to(DTYPES[precision]), vectors


@functools.lru_cache(maxsize=None)
def load_golden():
    return load("luna_bert_tied")


def ours(name):
    name = translate_name(name)
    return name.replace(UNUSED, NORM)


def assert_gradients(model, norms, gradients, precision):
    parameters = dict(model.named_parameters())
    assert set(map(ours, norms)) <= set(parameters)
    for name, norm in norms.items():
        actual = parameters[ours(name)].grad.norm().item()
        assert actual == pytest.approx(float(norm), rel=5e-5 if precision == "f32" else 1e-9, abs=2e-5), name
    for name, gradient in gradients.items():
        scale = gradient.abs().max().clamp(min=1)
        assert_close(parameters[ours(name)].grad / scale, gradient / scale, precision, name)


@precisions
@each
def test_masked_lm(variant, case, precision):
    golden = load_golden()
    model, vectors = golden_model(golden, variant, precision)
    inputs, expected = vectors["cases"][case]["inputs"], vectors["cases"][case][precision]
    outputs, tokens = expected["outputs"], inputs["src_tokens"]
    logits, extra = model(tokens, return_all_hiddens=True)
    features, _ = model(tokens, features_only=True)
    # Sums over 64 large weights: in float32 the vectors themselves are only as near to float64 as to their
    # largest.
    scale = outputs["logits"].abs().max() if precision == "f32" else 1.0
    assert_close(logits / scale, outputs["logits"] / scale, precision, "logits")
    assert_close(features, outputs["features"], precision, "features")
    assert_close(extra["packed_features"], outputs["packed_features"], precision, "packed_features")
    for states, theirs in (("inner_states", "inner_states_x"), ("packed_states", "inner_states_px")):
        compared = extra[states] if states == "inner_states" else extra[states][:-1]
        for actual, wanted in zip(compared, outputs[theirs]):
            assert_close(actual, wanted, precision, states)
    mask = extra["packed_padding_mask"]
    assert (mask is None) == ("px_padding_mask" not in outputs)
    assert mask is None or torch.equal(mask, outputs["px_padding_mask"])

    masked = inputs["masked_tokens"]
    masked_logits = model(tokens, masked_tokens=masked)[0]
    assert_close(masked_logits / scale, outputs["masked_logits"] / scale, precision, "masked_logits")
    loss = torch.nn.functional.cross_entropy(masked_logits, tokens[masked], reduction="sum")
    assert loss.item() == pytest.approx(
        expected["loss_masked_sum"], rel=2e-6 if precision == "f32" else 1e-10
    )
    loss.backward()
    assert_gradients(model, expected["grad_norms"], expected.get("grads", {}), precision)


@precisions
@each
def test_classification_heads(variant, case, precision):
    golden = load_golden()
    model, vectors = golden_model(golden, variant, precision)
    tokens = vectors["cases"][case]["inputs"]["src_tokens"]
    for name, head in vectors["cases"][case][precision]["heads"].items():
        model.zero_grad()
        logits, _ = model(tokens, classification_head_name=name)
        assert_close(logits, head["logits"], precision, name)
        weights = torch.arange(1.0, logits.numel() + 1, dtype=logits.dtype)
        (logits.flatten() * weights).sum().backward()
        assert_gradients(model, head["grad_norms"], {}, precision)


def test_heads_that_the_model_lacks_are_left_out_with_the_norm_that_only_they_read():
    golden = load_golden()
    model, _ = golden_model(golden, "dynproj", "f32", heads=False)
    assert not model.classification_heads and NORM + ".weight" not in model.state_dict()


def test_heads_of_the_checkpoint_are_registered_on_demand():
    golden = load_golden()
    vectors = golden["variants"]["dynproj"]
    args = Namespace(**vectors["args"], load_checkpoint_heads=True)
    model = LunaMaskedLM.build_model(args, Task(50, 32)).eval()
    model.load_state_dict({**vectors["state_dict"]}, strict=True)
    assert set(model.classification_heads) == set(golden["heads"])
    expected = vectors["cases"]["pad"]["f32"]["outputs"]["packed_features"]
    _, extra = model(vectors["cases"]["pad"]["inputs"]["src_tokens"])
    assert_close(extra["packed_features"], expected, "f32")


@pytest.mark.parametrize(
    "arch, total",
    [
        ({}, 131_902_041),
        ({"untie_luna_kv": True}, 146_076_249),
        ({"projection_length": 256, "max_positions": 2048}, 133_179_993),
        ({"projection_length": 256, "max_positions": 2048, "untie_luna_kv": True}, 147_354_201),
    ],
)
def test_parameter_counts(arch, total, monkeypatch):
    """The counts equal the authors', except for the norm of the last P, which is unused."""
    # BERT's initialisation draws on the CPU, where a model without memory has nothing.
    monkeypatch.setattr("fairseq.models.roberta.model.init_bert_params", lambda module: None)
    with without_memory():
        model = LunaMaskedLM.build_model(Namespace(**arch), Task(50_265, 32))
    assert sum(p.numel() for p in model.parameters()) == total - 2 * 768
