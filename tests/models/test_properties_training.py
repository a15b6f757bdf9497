"""Training of the translation model: the P of each layer, dropout, autocast and shared embeddings."""

import itertools

import pytest
import torch
from test_every_model import assert_gradients
from tiny_luna import PAD, VARIANTS, Task, batch, example, tiny_model
from tiny_models import kept_state, loss_and_gradients, translation_loss

from luna_fairseq.modules.embedding import PackedEmbedding


@pytest.mark.parametrize("alone", [True, False])
def test_every_layer_gets_the_learned_p_or_with_context_another_and_the_decoder_the_encoders(alone):
    model, seen = tiny_model(non_contextual_packed=alone), []
    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    for layer in model.decoder.layers:
        layer.self_attn.pack_q_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    source, target = (batch(x) for x in example())
    out = model.encoder(source, return_all_hiddens=True)
    model.decoder(target, out)
    assert len(seen) == 5
    if alone:
        initial, _ = model.encoder.packed_embedding(source.ne(PAD).sum(dim=1))
        assert all(torch.equal(packed, initial[:, : packed.size(1)]) for packed in seen)
        return
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], [*out["packed_states"][:2], out["packed_out"][0]]))
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("rate", ["dropout", "word_dropout"])
def test_word_dropout_reaches_both_embeddings_but_not_p(rate):
    """Word dropout drops whole embeddings, before positions are added.

    Ordinary dropout drops single elements of embeddings and P.
    """
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
    assert [set(side) for side in zip(*counts)] == [{0, 1, 2}, {0, 1, 2, 3}]
    model.eval()
    out = model.encoder(batch(source), return_all_hiddens=True)
    assert len(model.decoder(batch(target), out)[1]["inner_states"]) == 4 and len(out["packed_states"]) == 3


def test_autocast_trains_and_decodes():
    model = tiny_model(torch.float32)
    expected = translation_loss(model).item()
    source, target = example()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, gradients = loss_and_gradients(translation_loss, model.train())
        out = model.eval().encoder(batch(source))
        state = {}
        model.decoder(batch(target)[:, :1], out, incremental_state=state)
        model.decoder(batch(target)[:, :2], out, incremental_state=state)
    assert loss.item() == pytest.approx(expected, abs=0.15)
    assert_gradients(model, gradients)
    assert all(layer.key_sum.dtype == torch.float32 for layer in kept_state(state).layers)


@pytest.mark.parametrize("variant", ["tied", "untied pre-norm", "layernorm_embedding"])
def test_tiny_model_learns(variant):
    model = tiny_model(torch.float32, **VARIANTS[variant]).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = translation_loss(model).item()
    for _ in range(40):
        optimizer.zero_grad()
        loss = translation_loss(model)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.6 * first


def test_embeddings_are_shared_as_fairseq_shares_them():
    model = tiny_model(task=Task(23, 23), share_all_embeddings=True)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    assert isinstance(model.encoder.packed_embedding, PackedEmbedding)
    assert not any("packed_embedding" in name for name, _ in model.decoder.named_parameters())
