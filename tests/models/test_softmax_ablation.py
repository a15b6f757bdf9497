"""Luna's decoder with softmax in place of one attention: fairseq's attention, P still packed, decoding step by step."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import OPTIONS, PAD, VARIANTS, Task, assert_close, batch, example

from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.models.softmax_ablation import LunaSoftmaxCausal, LunaSoftmaxCross
from luna_fairseq.modules import LunaAttention

MODELS = {"causal": LunaSoftmaxCausal, "cross": LunaSoftmaxCross}
models = pytest.mark.parametrize("name", list(MODELS))
variants = pytest.mark.parametrize("variant", ["tied", "untied pre-norm", "non-contextual", "fixed length"])


def ablation(name, variant="tied"):
    """In evaluation mode, with every parameter moved off its initial value, in float64."""
    torch.manual_seed(0)
    model = MODELS[name].build_model(Namespace(**{**OPTIONS, **VARIANTS[variant]}), Task())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.double().eval()


def inputs():
    source, target = example()
    return batch(source, left=True), batch(target)


def same_softmax(attention, **kind):
    """fairseq's attention with the weights of ours."""
    reference = MultiheadAttention(12, 2, **kind).double().eval()
    reference.load_state_dict(attention.softmax.state_dict())
    return reference


def test_cross_attention_is_fairseqs_and_packs_as_luna_does():
    attention = ablation("cross").decoder.layers[0].encoder_attn
    query, packed, context = (torch.randn(n, 4, 12, dtype=torch.float64) for n in (6, 5, 9))
    mask = torch.arange(9) >= torch.tensor([9, 4, 6, 2])[:, None]
    luna = LunaAttention(12, 2, num_pack_heads=4).double().eval()
    luna.load_state_dict({**luna.state_dict(), **attention.state_dict()}, strict=False)
    with torch.no_grad():
        output, packed_context, weights = attention(query, packed, context, mask, need_weights=True)
        expected, mean_weights = same_softmax(attention, encoder_decoder_attention=True)(
            query, context, context, key_padding_mask=mask
        )
        assert_close(packed_context, luna.pack(packed, context, mask)[0])
    # fairseq's own form, unlike torch's, has its softmax in float32.
    assert_close(output, expected, tolerance=1e-6)
    assert weights.shape == (2, 4, 6, 9)
    assert_close(weights.mean(dim=0), mean_weights, tolerance=1e-6)


def test_causal_attention_is_fairseqs():
    attention = ablation("causal").decoder.layers[0].self_attn
    x = torch.randn(6, 4, 12, dtype=torch.float64)
    mask = torch.arange(6) >= torch.tensor([6, 4, 3, 1])[:, None]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    with torch.no_grad():
        output = attention(x, None, mask)
        expected, _ = same_softmax(attention, self_attention=True)(
            x, x, x, key_padding_mask=mask, attn_mask=future
        )
    assert_close(output, expected)


def test_with_softmax_cross_attention_the_next_layer_reads_the_packed_context():
    model, (source, target) = ablation("cross"), inputs()
    with torch.no_grad():
        before, _ = model(source, None, target)
        model.decoder.layers[0].encoder_attn.pack_kv_proj.weight.mul_(2)
        after, _ = model(source, None, target)
    assert not torch.allclose(before, after, rtol=1e-4)


@models
@variants
def test_every_parameter_has_a_gradient(name, variant):
    model, (source, target) = ablation(name, variant), inputs()
    model(source, None, target)[0].square().mean().backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@models
@variants
@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_scores_as_the_model_does_all_at_once(name, variant, beam):
    model = ablation(name, variant)
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
