"""Properties of every kind of model: gradients of all parameters, checkpointing, noise, half precision."""

from functools import partial
from typing import Any, Callable, Dict, NamedTuple

import pytest
import tiny_luna
import tiny_masked_lm
import torch
from old_torch import HAS_AUTOCAST_NORM
from tiny_luna import assert_close, batch, example, marked, tiny_model
from tiny_models import (
    CLASSIFIER_VARIANTS,
    LM_VARIANTS,
    SOFTMAX_VARIANTS,
    classifier,
    classifier_loss,
    language_model,
    language_model_loss,
    loss_and_gradients,
    masked_lm_loss,
    softmax_causal,
    translation_loss,
)

from luna_fairseq.modules import LunaCausalAttention
from luna_fairseq.ops.dropout import dropout

QUANT = {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4}
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
NOISE = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.1}


class Kind(NamedTuple):
    """Kind of model.

    Attributes:
        build: function that builds a model.
        variants: options of each variant.
        loss: function that computes the loss of a model.
        noises: options of each kind of noise besides dropout.
    """

    build: Callable[..., Any]
    variants: Dict[str, Dict[str, Any]]
    loss: Callable[..., Any]
    noises: Dict[str, Dict[str, Any]] = {}


MASKED = tiny_masked_lm.VARIANTS
HEADS = {f"{variant}, {head}": {**MASKED[variant], "heads": (head,)}
         for variant in ("tied", "pre-norm") for head in tiny_masked_lm.HEADS}  # fmt: skip
KINDS = {
    "translation": Kind(tiny_model, tiny_luna.VARIANTS, translation_loss, {
        "word_dropout": {"word_dropout": 0.3}, "encoder_layerdrop": {"encoder_layerdrop": 0.5},
        "decoder_layerdrop": {"decoder_layerdrop": 0.5}, "quant": QUANT,
        "untied quant": {**QUANT, "untie_luna_kv": True}}),
    "softmax causal": Kind(softmax_causal, SOFTMAX_VARIANTS, translation_loss),
    "causal LM": Kind(language_model, LM_VARIANTS, language_model_loss,
                      {"decoder_layerdrop": {"decoder_layerdrop": 0.4}}),
    "masked LM": Kind(partial(tiny_masked_lm.tiny_model, heads=()), MASKED, masked_lm_loss,
                      {"encoder_layerdrop": {"encoder_layerdrop": 0.5}, "quant": QUANT}),
    "fine-tuned": Kind(tiny_masked_lm.tiny_model, HEADS, masked_lm_loss),
    "classifier": Kind(classifier, CLASSIFIER_VARIANTS, classifier_loss),
    "pixels": Kind(partial(classifier, pixels=True), CLASSIFIER_VARIANTS, classifier_loss),
}  # fmt: skip
every_variant = pytest.mark.parametrize(
    "name, variant",
    [marked(v, name, id=f"{name} {v}") for name, kind in KINDS.items() for v in kind.variants],
)
# Of sides that are normalised otherwise, of one layer each, of shared embeddings.
MORE = [
    {"encoder_layers": 1, "decoder_layers": 1},
    {"share_decoder_input_output_embed": True},
    {"encoder_normalize_before": True},
    {"decoder_normalize_before": True},
]


def assert_gradients(model, gradients, may_lack=lambda name: False):
    for name, parameter in model.named_parameters():
        if may_lack(name) or not parameter.requires_grad:
            continue
        assert name in gradients, f"{name} has no gradient"
        assert gradients[name].isfinite().all()
        # Exactly zero in theory: a bias of softmax keys alone shifts all logits of a query alike.
        zero = name.endswith(("pack_k_proj.bias", "encoder_attn.unpack_k_proj.bias", "attn.k_proj.bias"))
        assert gradients[name].any() or zero, f"the gradient of {name} is zero"


def unread_in_fine_tuning(head):
    """Return a predicate for the parameters that a classification head does not use.

    These are the LM head and, if the head reads only P by mean or maximum, the last computation of X.
    """
    last = ("layer_norm", *(f"layers.1.{part}" for part in ("fc", "final", "self_attn_layer_norm")))
    last += ("layers.1.self_attn.unpack", "layers.1.self_attn.out")
    prefix = "encoder.sentence_encoder."
    unread = tuple(prefix + part for part in last) if head.startswith(("mean", "pooling")) else ()
    return lambda name: name.startswith(("encoder.lm_head.", *unread))


@every_variant
def test_every_trained_parameter_gets_a_gradient(name, variant):
    """Therefore, training in parallel does not need --find-unused-parameters."""
    kind, options = KINDS[name], KINDS[name].variants[variant]
    model = kind.build(**options).train()
    unread = unread_in_fine_tuning(options["heads"][0]) if options.get("heads") else lambda name: False
    _, gradients = loss_and_gradients(kind.loss, model)
    assert_gradients(model, gradients, unread)
    if options.get("heads"):
        read = "encoder.sentence_encoder.packed_layer_norm.weight" in gradients
        assert read == (options["heads"] != ("sentence_classification_head",))


@pytest.mark.parametrize("options", MORE, ids=str)
@pytest.mark.parametrize("variant", [marked(variant) for variant in tiny_luna.VARIANTS])
def test_so_it_does_in_other_translation_models(variant, options):
    model = tiny_model(**{**tiny_luna.VARIANTS[variant], **options}).train()
    assert_gradients(model, loss_and_gradients(translation_loss, model)[1])


CHECKPOINTED = {
    "translation": ["tied", "untied pre-norm", "non-contextual"],
    "causal LM": list(LM_VARIANTS),
    "masked LM": ["tied"],
    "classifier": ["cls", "P", "tied layers", "twin", "twin, tied layers"],
}


@pytest.mark.parametrize("noise", [{}, NOISE], ids=["", "noise"])
@pytest.mark.parametrize("name, variant", [(k, v) for k, variants in CHECKPOINTED.items() for v in variants])
def test_activation_checkpointing_changes_nothing(name, variant, noise):
    kind = KINDS[name]
    options = {**kind.variants[variant], **noise}
    plain, results = kind.build(**options).train(), []
    for more in ({}, {"offload_activations": True}) if name == "translation" else ({},):
        other = kind.build(**options, checkpoint_activations=True, **more).train()
        assert any("forward" in vars(module) for module in other.modules())
        other.load_state_dict(plain.state_dict())
        results.append(loss_and_gradients(kind.loss, other, seed=3))
    loss, gradients = loss_and_gradients(kind.loss, plain, seed=3)
    for again, again_gradients in results:
        assert_close(again, loss)
        assert again_gradients.keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            assert_close(again_gradients[parameter], gradient)
    if noise:
        assert abs(loss_and_gradients(kind.loss, plain, seed=4)[0] - loss) > 1e-3
    with torch.no_grad():
        assert_close(kind.loss(other.eval()), kind.loss(plain.eval()))


@pytest.mark.parametrize("name", [name for name in CHECKPOINTED if HAS_AUTOCAST_NORM or name != "masked LM"])
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_recomputation_uses_the_autocast_of_the_forward_pass(name, inside):
    results, dtypes = [], []
    for checkpointed in (False, True):
        model = KINDS[name].build(torch.float32, checkpoint_activations=checkpointed).train()
        for part in model.modules():
            if isinstance(part, torch.nn.Linear):
                part.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = KINDS[name].loss(model)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append((loss, {key: p.grad for key, p in model.named_parameters() if p.grad is not None}))
    (loss, gradients), (again, again_gradients) = results
    assert_close(again, loss, tolerance=2e-3)
    assert again_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        assert_close(again_gradients[parameter], gradient, tolerance=0.02)
    assert set(dtypes) == {torch.bfloat16}


@pytest.mark.parametrize("name", [*CHECKPOINTED, "twin"])
def test_checkpointed_layers_train_behind_frozen_embeddings(name):
    kind = KINDS["classifier" if name == "twin" else name]
    options = {"layer_type": "transformer"} if name == "twin" else {}
    results = []
    for checkpointed in (False, True):
        model = kind.build(**options, checkpoint_activations=checkpointed).train()
        for key, parameter in model.named_parameters():
            parameter.requires_grad_("embed" not in key)
        results.append(loss_and_gradients(kind.loss, model)[1])
    assert results[1].keys() == results[0].keys()
    for parameter, gradient in results[0].items():
        assert_close(results[1][parameter], gradient)


@pytest.mark.parametrize(
    "kind, noise",
    [pytest.param(kind, noise, id=f"{name} {what}")
     for name, kind in KINDS.items() if name != "fine-tuned"
     for what, noise in [*((dropout, {dropout: 0.3}) for dropout in DROPOUTS), *kind.noises.items()]],
)  # fmt: skip
def test_noise_acts_in_training_alone(kind, noise):
    model = kind.build(**noise)
    assert len({loss_and_gradients(kind.loss, model, seed)[0].item() for seed in (1, 2)}) == 1
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    losses = []
    for seed in (0, 1, 2, 3, 4, 5, 0):
        model.load_state_dict(state)  # fairseq's quantisation noise is left in the weights
        loss, gradients = loss_and_gradients(kind.loss, model, seed)
        assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients.values())
        losses.append(loss.item())
    assert len(set(losses)) > 1 and losses[0] == losses[-1]


@pytest.mark.parametrize("variant", [marked(variant) for variant in tiny_luna.VARIANTS])
def test_attention_whose_weights_are_all_dropped_reads_nothing(variant):
    """Every attention therefore has dropout, in whole sentences and in decoding."""
    model = tiny_model(**tiny_luna.VARIANTS[variant]).train()
    largest = {}
    for name, module in model.named_modules():
        if name.endswith("attn"):
            module.dropout_module.p, found = 1.0, largest.setdefault(name, [])
            module.out_proj.register_forward_pre_hook(
                lambda _, inputs, found=found: found.append(inputs[0].abs().max().item())
            )
    source, target = map(batch, example())
    encoded, state = model.encoder(source), {}
    model.decoder(target, encoded)
    calls = {name: len(found) for name, found in largest.items()}
    for t in range(3):
        model.decoder(target[:, : t + 1], encoded, incremental_state=state)
    assert all(calls.values()) and not any(sum(largest.values(), []))
    assert all(len(largest[name]) >= n + 3 for name, n in calls.items() if name.startswith("decoder"))


@pytest.mark.parametrize("pack, unpack", [(1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("keep_state", [None, True])
def test_either_dropout_of_causal_attention_stops_it(pack, unpack, length, keep_state):
    attention = LunaCausalAttention(12, 3, dropout=unpack).train()
    torch.nn.init.ones_(attention.out_proj.bias)
    attention.dropout_module.forward = partial(dropout, probability=pack)
    memory = attention.read(torch.randn(5, 2, 12))
    output, _ = attention(torch.randn(length, 2, 12), memory, keep_state=keep_state)
    assert output.eq(1).all()


@every_variant
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_is_finite_and_near(name, variant, dtype, tolerance):
    kind = KINDS[name]
    model = kind.build(**kind.variants[variant])
    expected = kind.loss(model).item()
    loss, gradients = loss_and_gradients(kind.loss, model.to(dtype).train())
    assert loss.dtype == dtype and loss.item() == pytest.approx(expected, abs=tolerance)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
