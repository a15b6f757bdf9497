"""Test that recorded attention weights of the peers reproduce their outputs."""

import peer_cases
import pytest
import torch
from tiny_luna import assert_close

from luna_fairseq.errors import InputError
from luna_fairseq.modules.heads import merge_heads, split_heads
from luna_fairseq.report.recording import record_attention


def record_maps(attention, *inputs, **options):
    """Record the weights of an attention inside a model.

    Returns:
        The records of the model, and the output of the attention.
    """
    model = torch.nn.Module()
    side, name = ("decoder", "encoder_attn") if attention.role == "cross" else ("encoder", "self_attn")
    layers = torch.nn.ModuleList([torch.nn.ModuleDict({name: attention})])
    model.add_module(side, torch.nn.ModuleDict({"layers": layers}))
    modules = dict(attention.named_modules())
    with record_attention(model) as found:
        output, _ = attention(*inputs, **options)
        assert "forward" not in vars(attention) and dict(attention.named_modules()) == modules
    assert attention.watcher is None
    return found, output


@pytest.mark.parametrize("name, form", peer_cases.cases("bidirectional", "causal"))
def test_maps_of_the_peers(name, form):
    attention, query = peer_cases.build(name, form), peer_cases.sequence(13, batch=1)
    found, _ = record_maps(attention, query, query, query)
    if not attention.has_value_weights:
        assert found == []
        return
    read, parts = found[0].weights["read"], attention.project(query)
    assert read.shape == (1, peer_cases.H, 13, 13)
    values = [part for part, name in zip(parts, attention.projections) if name.endswith("v")]
    if len(values) == 1:
        assert_close(read @ values[0], attention.attend_naively(*parts, padding_mask=None), tolerance=1e-9)
    if form == "causal":
        assert read.triu(1).abs().max() == 0


@pytest.mark.parametrize("name, form", peer_cases.cases("cross"))
def test_maps_of_cross_attention(name, form):
    attention, query = peer_cases.build(name, form), peer_cases.sequence(5, batch=1)
    context, padding = peer_cases.sequence(13, batch=1), torch.arange(13).ge(11)[None]
    found, output = record_maps(attention, query, context, context, key_padding_mask=padding)
    read = found[0].weights["read"]
    assert found[0].name == "decoder.0.cross" and read.shape == (1, peer_cases.H, 5, 13)
    assert read[..., 11:].abs().max() == 0
    values = split_heads(attention.v_proj(context), peer_cases.H)
    assert_close(attention.out_proj(merge_heads(read @ values)), output, tolerance=1e-9)


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("name, form", peer_cases.cases("bidirectional", "causal"))
def test_weights_of_a_padded_sentence_are_its_own(name, form, left):
    attention = peer_cases.build(name, form)
    sentences = [peer_cases.sequence(n, batch=1, seed=n)[:, 0] for n in (13, 9)]
    if not attention.has_value_weights:
        with pytest.raises(InputError, match=f"The output of {name} attention is no weighted sum of values"):
            attention.value_weights(sentences[0].unsqueeze(1))
        return
    x, padding_mask = peer_cases.pad(sentences, left)
    together = attention.value_weights(x, key_padding_mask=padding_mask)
    for b, sentence in enumerate(sentences):
        alone = attention.value_weights(sentence.unsqueeze(1))
        real = slice(left, left + len(sentence))
        assert_close(together[b : b + 1, :, real, real], alone, tolerance=1e-9)
        assert together[b, :, real][..., padding_mask[b]].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name, form", peer_cases.cases("bidirectional", "causal", "cross"))
def test_weights_in_half_precision_are_computed_in_float32(name, form, dtype):
    attention = peer_cases.build(name, form, dtype)
    if not attention.has_value_weights:
        return
    # The exponentials of such logits overflow in float16, and some in float32.
    query, context = (8 * peer_cases.sequence(n, dtype=dtype, seed=n) for n in (5, 13))
    query = query if form == "cross" else context
    padding_mask = peer_cases.pad([context[:, 0], context[:9, 1]])[1]
    found = attention.value_weights(query, context, padding_mask)
    expected = attention.float().value_weights(query.float(), context.float(), padding_mask)
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert torch.equal(found, expected)
