"""The causal language model is causal, independent of padding and batch, and decodes step by step."""

from argparse import Namespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_luna import PAD, Task, assert_close, batch, sentences
from tiny_models import LM_OPTIONS, kept_state, lprobs_of, tensors_of
from tiny_models import LM_VARIANTS as VARIANTS
from tiny_models import language_model as tiny_model

from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.errors import InputError
from luna_fairseq.models.luna_lm import LunaLanguageModel

variants = pytest.mark.parametrize("variant", list(VARIANTS))
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def assert_same_one_at_a_time(model, token_lists, left=False, extra=0):
    tokens = batch(token_lists, left, extra)
    with torch.no_grad():
        together, _ = model(tokens)
        for b, sentence in enumerate(token_lists):
            alone, _ = model(torch.tensor([sentence]))
            assert_close(together[b, tokens[b].ne(PAD)], alone[0])


@settings(max_examples=10, deadline=None)
@given(counts=lengths, left=st.booleans(), variant=st.sampled_from(list(VARIANTS)))
def test_batch_and_padding_do_not_matter(counts, left, variant):
    assert_same_one_at_a_time(tiny_model(**VARIANTS[variant]), sentences(counts, 23), left, extra=2)


@settings(max_examples=10, deadline=None)
@given(length=st.integers(2, 12), t=st.integers(0, 10), variant=st.sampled_from(list(VARIANTS)))
def test_logits_do_not_depend_on_later_tokens(length, t, variant):
    t = min(t, length - 2)
    model = tiny_model(**VARIANTS[variant])
    tokens = batch(sentences((length,), 23))
    changed = tokens.clone()
    changed[:, t + 1 :] = 4 + (tokens[:, t + 1 :] + 3) % 19
    with torch.no_grad():
        (one, _), (other, _) = model(tokens), model(changed)
    assert_close(one[:, : t + 1], other[:, : t + 1])
    assert (one[:, t + 1 :] - other[:, t + 1 :]).abs().max() > 1e-6


@variants
def test_step_by_step_equals_all_at_once_with_a_state_of_constant_size(variant):
    model = tiny_model(**VARIANTS[variant])
    tokens = batch(sentences((9, 9, 9), 23))
    state, logits, sizes = {}, [], set()
    with torch.no_grad():
        for t in range(1, tokens.size(1) + 1):
            logits.append(model.decoder(tokens[:, :t], incremental_state=state)[0])
            sizes.add(sum(x.numel() for x in tensors_of(kept_state(state))))
        expected, _ = model(tokens)
    assert_close(torch.cat(logits, dim=1), expected)
    assert len(sizes) == 1


@variants
def test_beam_search_scores_as_the_model_does_all_at_once_and_projects_P_once(variant):
    model = tiny_model(**VARIANTS[variant])
    prefix = torch.tensor([[5, 6, 7], [9, 4, 11], [12, 8, 5]])
    rows = []
    for layer in model.decoder.layers:
        layer.self_attn.pack_q_proj.register_forward_hook(lambda _, __, output: rows.append(output.size(1)))
    generator = SequenceGenerator([model], model.decoder.dictionary, beam_size=2, max_len_a=0, max_len_b=9)
    found = generator.generate([model], {"net_input": {"src_tokens": prefix}}, prefix_tokens=prefix)
    assert rows == [1] * len(model.decoder.layers)
    for hypothesis in (h for hypotheses in found for h in hypotheses):
        lprobs, _ = lprobs_of(model, hypothesis["tokens"])
        assert float(hypothesis["score"]) == pytest.approx(lprobs.mean().item(), abs=1e-5)


def test_adaptive_softmax_shares_its_matrices_with_adaptive_input():
    options = {"tie_adaptive_weights": True, "tie_adaptive_proj": True, "adaptive_softmax_factor": 2.0}
    model = tiny_model(**VARIANTS["adaptive input"], **options, adaptive_softmax_cutoff="8,14")
    tokens = batch(sentences((9, 4, 6), 23))
    target = tokens[:, 1:].contiguous()
    sample = {"net_input": {"src_tokens": tokens[:, :-1]}, "target": target, "ntokens": 16}
    AdaptiveLoss(Task(23, 23), False)(model, sample)[0].backward()
    assert all(x.grad.any() for x in model.decoder.embed_tokens.parameters())
    shared = {id(band[0].weight) for band in model.decoder.embed_tokens.embeddings}
    assert {id(x) for x in model.decoder.adaptive_softmax.parameters()} & shared == shared


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"adaptive_input_cutoff": None},
            "--adaptive-input-cutoff None: give increasing numbers below .* 23",
        ),
        ({"adaptive_input_cutoff": "9,9"}, "--adaptive-input-cutoff 9,9: give"),
        ({"adaptive_input_cutoff": "8,23"}, "--adaptive-input-cutoff 8,23: give"),
        ({"share_decoder_input_output_embed": True}, "exclude each other: use --tie-adaptive-weights"),
        ({"tie_adaptive_weights": True}, "--tie-adaptive-weights needs equal cutoffs, factors and widths"),
        (
            {"adaptive_input": False, "tie_adaptive_weights": True},
            "--tie-adaptive-weights .* Give --adaptive",
        ),
        (
            {"adaptive_input": False, "tie_adaptive_proj": True, "adaptive_softmax_cutoff": "8,14"},
            "--tie-adaptive-proj .* Give --adaptive-input",
        ),
    ],
)
def test_adaptive_input_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words):
        tiny_model(**{**VARIANTS["adaptive input"], **options})


def test_bad_input():
    model = tiny_model(decoder_learned_pos=True)
    with pytest.raises(InputError, match="a sequence has 31 tokens, the model's positions end at 30"):
        model(torch.full((1, 31), 5))
    with torch.no_grad():  # padding may exceed the positions
        text = torch.full((1, 30), 5)
        padded = torch.cat([text, torch.full((1, 2), PAD)], dim=1)
        assert_close(model(padded)[0][:, :30], model(text)[0])
    other = LunaLanguageModel.build_model(Namespace(**LM_OPTIONS, decoder_learned_pos=True), Task(31, 31))
    with pytest.raises(InputError, match="decoder dictionary has 23 entries, the data's has 31"):
        other.load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="has another architecture"):
        tiny_model().load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="width 12 is not divisible by 5"):
        tiny_model(decoder_attention_heads=5)
