"""Training the whole model: gradients everywhere, checkpointing, the kinds of noise, half precision."""

import itertools

import pytest
import torch
from tiny_luna import PAD, VARIANTS, Task, assert_close, batch, example, tiny_model
from torch.nn import functional as F

from luna_fairseq.modules.packed_embedding import PackedEmbedding

SHARED = {"share_decoder_input_output_embed": True}


def loss_of(model, seed=None):
    """Cross-entropy of a padded batch, with ``seed`` for whatever is drawn."""
    source, target = example()
    source, target = batch(source, left=True), batch(target)
    if seed is not None:
        torch.manual_seed(seed)
    logits, _ = model(source, None, target)
    return F.cross_entropy(logits.flatten(0, 1), target.roll(-1, dims=1).flatten(), ignore_index=PAD)


def loss_and_gradients(model, seed=None):
    model.zero_grad()
    loss = loss_of(model, seed)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_every_parameter_has_a_gradient(model, gradients):
    for name, _ in model.named_parameters():
        assert name in gradients, f"{name} has no gradient"
        assert gradients[name].isfinite().all()
        # Exactly zero in theory: a bias of softmax keys alone shifts all logits of a query alike.
        if not name.endswith(("pack_k_proj.bias", "encoder_attn.unpack_k_proj.bias")):
            assert gradients[name].any(), f"the gradient of {name} is zero"


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_layers": 1, "decoder_layers": 1},
        SHARED,
        {"encoder_normalize_before": True},
        {"decoder_normalize_before": True},
    ],
)
def test_every_parameter_of_every_variant_gets_a_gradient(variant, options):
    """So that training in parallel needs no --find-unused-parameters."""
    model = tiny_model(**{**VARIANTS[variant], **options}).train()
    assert_every_parameter_has_a_gradient(model, loss_and_gradients(model)[1])


def test_without_context_every_layer_gets_the_learned_p():
    model = tiny_model(non_contextual_packed=True)
    seen = []
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    source, target = example()
    model(batch(source), None, batch(target))
    initial, _ = model.encoder.packed_embedding(batch(source).ne(PAD).sum(dim=1))
    assert len(seen) == 5 and all(torch.equal(packed, initial) for packed in seen)


def test_with_context_every_layer_gets_another_p_and_the_decoder_the_encoders():
    model = tiny_model()
    seen = []
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    source, target = example()
    out = model.encoder(batch(source), return_all_hiddens=True)
    model.decoder(batch(target), out)
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], [*out["packed_states"][:2], out["packed_out"][0]]))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("variant", ["tied", "untied pre-norm", "non-contextual"])
@pytest.mark.parametrize("noise", [{}, {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.1}])
@pytest.mark.parametrize("offload", [False, True])
def test_activation_checkpointing_changes_nothing(variant, noise, offload):
    options = {**VARIANTS[variant], **noise}
    plain = tiny_model(**options).train()
    checkpointed = tiny_model(**options, checkpoint_activations=True, offload_activations=offload).train()
    assert all(hasattr(layer, "precheckpoint_forward") for layer in checkpointed.encoder.layers)
    checkpointed.load_state_dict(plain.state_dict())
    loss, gradients = loss_and_gradients(plain, seed=3)
    again, again_gradients = loss_and_gradients(checkpointed, seed=3)
    assert_close(again, loss)
    assert again_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(again_gradients[name], gradient)
    if noise:
        assert abs(loss_of(plain, seed=4) - loss) > 1e-3
    with torch.no_grad():
        assert_close(loss_of(checkpointed.eval()), loss_of(plain.eval()))


@pytest.mark.parametrize(
    "noise",
    [
        {"dropout": 0.3},
        {"attention_dropout": 0.3},
        {"activation_dropout": 0.3},
        {"word_dropout": 0.3},
        {"encoder_layerdrop": 0.5},
        {"decoder_layerdrop": 0.5},
        {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4},
        {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4, "untie_luna_kv": True},
    ],
    ids=lambda noise: " ".join(noise),
)
def test_noise_acts_in_training_alone(noise):
    model = tiny_model(**noise)
    with torch.no_grad():
        assert loss_of(model, seed=1) == loss_of(model, seed=2)
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    losses = []
    for seed in range(6):
        model.load_state_dict(state)  # fairseq's quantisation noise is left in the weights
        loss, gradients = loss_and_gradients(model, seed)
        assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients.values())
        losses.append(loss.item())
    assert len(set(losses)) > 1
    model.load_state_dict(state)
    assert loss_of(model, seed=0).item() == losses[0]


@pytest.mark.parametrize("rate", ["dropout", "word_dropout"])
def test_word_dropout_reaches_both_embeddings_but_not_p(rate):
    """Word dropout takes whole vectors before positions are added; ordinary dropout single entries, of P
    too."""
    model = tiny_model(**{rate: 0.4}, no_token_positional_embeddings=True).train()
    torch.manual_seed(0)
    source, target = example((20, 30), (25, 22))
    out = model.encoder(batch(source), return_all_hiddens=True)
    _, extra = model.decoder(batch(target), out)
    embeddings = [out["encoder_states"][0][:20, 0], extra["inner_states"][0][:22]]
    for embedding in embeddings:
        zero = embedding.eq(0)
        assert zero.any() and (zero.all(dim=-1).any() == (rate == "word_dropout"))
        assert zero.any(dim=-1).equal(zero.all(dim=-1)) == (rate == "word_dropout")
    assert out["packed_states"][0].eq(0).any() == (rate == "dropout")


def test_layerdrop_drops_whole_layers():
    model = tiny_model(encoder_layerdrop=0.5, decoder_layerdrop=0.5).train()
    torch.manual_seed(0)
    source, target = example()
    counts = set()
    for _ in range(40):
        out = model.encoder(batch(source), return_all_hiddens=True)
        _, extra = model.decoder(batch(target), out)
        counts.add((len(out["packed_states"]) - 1, len(extra["inner_states"]) - 1))
    assert {encoder for encoder, _ in counts} == {0, 1, 2} and {decoder for _, decoder in counts} == {
        0,
        1,
        2,
        3,
    }
    model.eval()
    out = model.encoder(batch(source), return_all_hiddens=True)
    assert len(model.decoder(batch(target), out)[1]["inner_states"]) == 4 and len(out["packed_states"]) == 3


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_half_precision_is_finite_and_near(variant, dtype, tolerance):
    model = tiny_model(**VARIANTS[variant])
    expected = loss_of(model).item()
    model.to(dtype).train()
    loss, gradients = loss_and_gradients(model)
    assert loss.dtype == dtype and loss.item() == pytest.approx(expected, abs=tolerance)
    assert_every_parameter_has_a_gradient(model, gradients)


def test_autocast_trains_and_decodes():
    model = tiny_model(torch.float32)
    expected = loss_of(model).item()
    source, target = example()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, gradients = loss_and_gradients(model.train())
        out = model.eval().encoder(batch(source))
        state = {}
        model.decoder(batch(target)[:, :1], out, incremental_state=state)
        model.decoder(batch(target)[:, :2], out, incremental_state=state)
    assert loss.item() == pytest.approx(expected, abs=0.15)
    assert_every_parameter_has_a_gradient(model, gradients)
    kept = [entry for name, entry in state.items() if "causal_sums" in name]
    assert all(entry["key_sum"].dtype == torch.float32 for entry in kept)


@pytest.mark.parametrize("variant", ["tied", "untied pre-norm", "layernorm_embedding"])
def test_tiny_model_learns(variant):
    model = tiny_model(torch.float32, **VARIANTS[variant]).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = loss_of(model).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.6 * first


def test_embeddings_are_shared_as_fairseq_shares_them():
    model = tiny_model(task=Task(23, 23), share_all_embeddings=True)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    assert isinstance(model.encoder.packed_embedding, PackedEmbedding)
    assert not any("packed_embedding" in name for name, _ in model.decoder.named_parameters())
