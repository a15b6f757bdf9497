"""Luna's decoder with softmax in place of one of its attentions."""

import pytest
import torch
from tiny_luna import assert_close, batch, example, tiny_model
from tiny_models import SOFTMAX_VARIANTS, beam_search, lprobs_of, softmax_causal

from fairseq.modules import MultiheadAttention
from luna_fairseq.errors import InputError
from luna_fairseq.models.bfloat16_linear import has_bfloat16_products, use_bfloat16
from luna_fairseq.models.int8 import quantise
from luna_fairseq.modules import LunaAttention, Source


def test_cross_attention_is_softmax_attention_and_packs_as_luna_does():
    attention = tiny_model(cross_attention="softmax").decoder.layers[0].encoder_attn
    query, packed, context = (torch.randn(n, 4, 12, dtype=torch.float64) for n in (6, 5, 9))
    mask = torch.arange(9) >= torch.tensor([9, 4, 6, 2])[:, None]
    luna = LunaAttention(12, 2, num_pack_heads=4).double().eval()
    luna.load_state_dict({**luna.state_dict(), **attention.state_dict()}, strict=False)
    with torch.no_grad():
        output, packed_context, weights = attention(query, packed, context, mask, need_weights=True)
        assert_close(packed_context, luna.pack(packed, context, Source(mask))[0])
        reference = torch.nn.MultiheadAttention(12, 2).double().eval()
        parts = [attention.unpack_q_proj, attention.context_k_proj, attention.context_v_proj]
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        reference.out_proj.load_state_dict(attention.out_proj.state_dict())
        options = {"key_padding_mask": mask, "average_attn_weights": False}
        expected, expected_weights = reference(query, context, context, **options)
    assert_close(output, expected)
    assert_close(weights, expected_weights.transpose(0, 1))


def test_causal_attention_is_fairseqs():
    attention = softmax_causal().decoder.layers[0].self_attn
    x = torch.randn(6, 4, 12, dtype=torch.float64)
    mask = torch.arange(6) >= torch.tensor([6, 4, 3, 1])[:, None]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    with torch.no_grad():
        output, _ = attention(x, None, key_padding_mask=mask)
        reference = MultiheadAttention(12, 2, self_attention=True).double().eval()
        reference.load_state_dict(attention.softmax.state_dict())
        expected, _ = reference(x, x, x, key_padding_mask=mask, attn_mask=future)
    assert_close(output, expected)


def test_several_tokens_with_a_state_do_not_see_later_ones():
    attention = softmax_causal().decoder.layers[0].self_attn
    x = torch.randn(8, 4, 12, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = attention(x, None)
        state, parts = None, []
        for part in x.split([5, 2, 1]):
            output, state = attention(part, None, state, keep_state=True)
            parts.append(output)
    assert_close(torch.cat(parts), expected, tolerance=1e-5)


def test_softmax_in_both_attentions_is_refused():
    with pytest.raises(InputError, match="peer_transformer"):
        softmax_causal(cross_attention="softmax")


def test_with_softmax_cross_attention_the_next_layer_reads_the_packed_context():
    model, (source, target) = tiny_model(cross_attention="softmax"), map(batch, example())
    with torch.no_grad():
        before, _ = model(source, None, target)
        model.decoder.layers[0].encoder_attn.pack_kv_proj.weight.mul_(2)
        after, _ = model(source, None, target)
    assert not torch.allclose(before, after, rtol=1e-4)


@pytest.mark.parametrize("variant", SOFTMAX_VARIANTS)
@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_scores_as_the_model_does_all_at_once(variant, beam):
    model, (sentences, _) = softmax_causal(**SOFTMAX_VARIANTS[variant]), example()
    every = beam_search(model, batch(sentences, left=True), beam, max_len_a=0, max_len_b=12)
    for sentence, found in zip(sentences, every):
        assert len(found) == beam
        for hypothesis in found:
            lprobs, extra = lprobs_of(model, hypothesis["tokens"], torch.tensor([sentence]), None)
            assert_close(hypothesis["positional_scores"].double(), lprobs, tolerance=1e-5)
            alignment = hypothesis["attention"][-len(sentence) :].double()  # [S, T], padding first
            assert_close(alignment, extra["attn"][0][0].T, tolerance=1e-5)


needs_bfloat16 = pytest.mark.skipif(not has_bfloat16_products(), reason="needs avx512_bf16 or AMX")


@pytest.mark.parametrize("convert", [quantise, pytest.param(use_bfloat16, marks=needs_bfloat16)])
def test_converted_models_score(convert):
    model, (sources, targets) = softmax_causal().float(), map(batch, example((9, 4, 6), (5, 3, 7)))
    with torch.no_grad():
        expected = model(sources, None, targets)[0]
        convert(model)
        found = model(sources, None, targets)[0]
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
