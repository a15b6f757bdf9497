"""Luna's decoder with softmax in place of one attention: fairseq's attention, P still packed, decoding step
by step."""

import pytest
import torch
from tiny_luna import OPTIONS, PAD, VARIANTS, Task, assert_close, batch, example, moved, tiny_model

from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.models.softmax_ablation import LunaSoftmaxCausal
from luna_fairseq.modules import LunaAttention

variants = pytest.mark.parametrize("variant", ["tied", "untied pre-norm", "non-contextual", "fixed length"])


def ablation(variant="tied"):
    return moved(LunaSoftmaxCausal, {**OPTIONS, **VARIANTS[variant]}, Task())


def inputs():
    source, target = example()
    return batch(source, left=True), batch(target)


def test_cross_attention_is_softmax_attention_and_packs_as_luna_does():
    attention = tiny_model(cross_attention="softmax").decoder.layers[0].encoder_attn
    query, packed, context = (torch.randn(n, 4, 12, dtype=torch.float64) for n in (6, 5, 9))
    mask = torch.arange(9) >= torch.tensor([9, 4, 6, 2])[:, None]
    luna = LunaAttention(12, 2, num_pack_heads=4).double().eval()
    luna.load_state_dict({**luna.state_dict(), **attention.state_dict()}, strict=False)
    with torch.no_grad():
        output, packed_context, weights = attention(query, packed, context, mask, need_weights=True)
        assert_close(packed_context, luna.pack(packed, context, mask)[0])
        parts = {"q": attention.unpack_q_proj, "k": attention.context_k_proj, "v": attention.context_v_proj}
        expected, expected_weights = torch.nn.functional.multi_head_attention_forward(
            query,
            context,
            context,
            12,
            2,
            None,
            torch.cat([part.bias for part in parts.values()]),
            None,
            None,
            False,
            0.0,
            attention.out_proj.weight,
            attention.out_proj.bias,
            training=False,
            key_padding_mask=mask,
            use_separate_proj_weight=True,
            **{f"{name}_proj_weight": part.weight for name, part in parts.items()},
            average_attn_weights=False,
        )
    assert_close(output, expected)
    assert_close(weights, expected_weights.transpose(0, 1))


def test_causal_attention_is_fairseqs():
    attention = ablation().decoder.layers[0].self_attn
    x = torch.randn(6, 4, 12, dtype=torch.float64)
    mask = torch.arange(6) >= torch.tensor([6, 4, 3, 1])[:, None]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    with torch.no_grad():
        output = attention(x, None, mask)
        reference = MultiheadAttention(12, 2, self_attention=True).double().eval()
        reference.load_state_dict(attention.softmax.state_dict())
        expected, _ = reference(x, x, x, key_padding_mask=mask, attn_mask=future)
    assert_close(output, expected)


def test_with_softmax_cross_attention_the_next_layer_reads_the_packed_context():
    model, (source, target) = tiny_model(cross_attention="softmax"), inputs()
    with torch.no_grad():
        before, _ = model(source, None, target)
        model.decoder.layers[0].encoder_attn.pack_kv_proj.weight.mul_(2)
        after, _ = model(source, None, target)
    assert not torch.allclose(before, after, rtol=1e-4)


@variants
def test_every_parameter_has_a_gradient(variant):
    model, (source, target) = ablation(variant), inputs()
    model(source, None, target)[0].square().mean().backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@variants
@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_scores_as_the_model_does_all_at_once(variant, beam):
    model = ablation(variant)
    sentences, _ = example()
    source = batch(sentences, left=True)
    generator = SequenceGenerator(
        [model], model.decoder.dictionary, beam_size=beam, max_len_a=0, max_len_b=12
    )
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(dim=1)}}
    for sentence, found in zip(sentences, generator.generate([model], sample)):
        assert len(found) == beam
        for hypothesis in found:
            tokens = hypothesis["tokens"]
            previous = torch.cat([tokens.new_tensor([2]), tokens[:-1]])[None]
            with torch.no_grad():
                logits, extra = model(torch.tensor([sentence]), None, previous)
            lprobs = logits[0].log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
            assert_close(hypothesis["positional_scores"].double(), lprobs, tolerance=1e-5)
            alignment = hypothesis["attention"][-len(sentence) :].double()  # [S, T], padding first
            assert_close(alignment, extra["attn"][0][0].T, tolerance=1e-5)
