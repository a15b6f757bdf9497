"""Test causal language models with peer attentions.

The models are causal, independent of padding and of the rest of the batch, and can decode step by step. With
softmax attention they equal fairseq's model.
"""

from argparse import Namespace

import pytest
import torch
from peer_cases import SMALL, VARIANTS, attention_name, cases
from tiny_luna import PAD, Task, assert_close, batch, build_perturbed, sentences
from tiny_models import LM_OPTIONS, beam_search, language_model_loss, loss_and_gradients, lprobs_of

from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from luna_fairseq.errors import InputError
from luna_fairseq.peers.models import PeerLanguageModel

SIZES = {name: value for name, value in LM_OPTIONS.items() if name != "projection_length"}
causal = pytest.mark.parametrize("name", [name for name, _ in cases("causal") if "diagonal" not in name])


def language_model(name="softmax", dtype=torch.float64, **options):
    options = {"decoder_attention": attention_name(name), **VARIANTS.get(name, {}), **options}
    return build_perturbed(PeerLanguageModel, {**SIZES, **SMALL, **options}, Task(23, 23), dtype)


@causal
@pytest.mark.parametrize("left", [True, False])
def test_padding_and_the_batch_do_not_matter(name, left):
    model, texts = language_model(name), sentences((9, 4, 12, 1), 23)
    tokens = batch(texts, left, extra=2)
    with torch.no_grad():
        together, _ = model(tokens)
        for b, text in enumerate(texts):
            alone, _ = model(torch.tensor([text]))
            assert_close(together[b, tokens[b].ne(PAD)], alone[0], tolerance=1e-9)


@causal
def test_logits_do_not_depend_on_later_tokens(name):
    model, tokens = language_model(name), batch(sentences((12, 12), 23))
    for t in (0, 4, 10):
        changed = tokens.clone()
        changed[:, t + 1 :] = 4 + (tokens[:, t + 1 :] + 3) % 19
        with torch.no_grad():
            (one, _), (other, _) = model(tokens), model(changed)
        assert_close(one[:, : t + 1], other[:, : t + 1], tolerance=1e-9)
        assert (one[:, t + 1 :] - other[:, t + 1 :]).abs().max() > 1e-6


@causal
def test_step_by_step_equals_all_at_once_also_after_reordering(name):
    model, tokens = language_model(name), batch(sentences((9, 9, 9), 23))
    order, state = torch.tensor([2, 0, 0]), {}
    with torch.no_grad():
        for t in range(tokens.size(1)):
            if t == 5:
                model.decoder.reorder_incremental_state_scripting(state, order)
                tokens = tokens[order]
            step, _ = model.decoder(tokens[:, : t + 1], incremental_state=state)
            assert_close(step[:, -1], model(tokens[:, : t + 1])[0][:, -1], tolerance=1e-9)


@causal
def test_beam_search_scores_as_the_model_does_all_at_once(name):
    model = language_model(name)
    prefix = torch.tensor([[5, 6, 7], [9, 4, 11], [12, 8, 5]])
    for hypotheses in beam_search(model, prefix, beam=2, max_len_a=0, max_len_b=9):
        for hypothesis in hypotheses:
            lprobs, _ = lprobs_of(model, hypothesis["tokens"])
            assert float(hypothesis["score"]) == pytest.approx(lprobs.mean().item(), abs=1e-5)


@causal
def test_every_parameter_has_a_gradient(name):
    _, gradients = loss_and_gradients(language_model_loss, language_model(name).train())
    assert set(gradients) == {parameter for parameter, _ in language_model(name).named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decoder_normalize_before": True, "share_decoder_input_output_embed": True},
        {"decoder_learned_pos": True, "decoder_input_dim": 10, "decoder_output_dim": 8},
        {"adaptive_input": True, "adaptive_input_cutoff": "8,14", "adaptive_input_factor": 2.0},
    ],
)
def test_softmax_attention_is_fairseqs_language_model(options):
    """Parameters have the same names as in fairseq and give the same logits."""
    widths = {"decoder_input_dim": 12, "decoder_output_dim": 12}
    given = {**vars(TransformerLanguageModelConfig()), **SIZES, **widths, **options}
    peer = language_model(**options)
    theirs = TransformerLanguageModel.build_model(Namespace(**given), Task(23, 23)).double().eval()
    theirs.load_state_dict(peer.state_dict())
    tokens = batch(sentences((9, 4, 12, 1), 23))
    real = tokens.ne(PAD)
    assert_close(peer(tokens)[0][real], theirs(tokens)[0][real], tolerance=1e-6)  # their softmax is float32


def test_alibi_replaces_positions():
    """With ALiBi, the order of the words counts even without positional embeddings."""
    model = language_model("softmax, alibi", no_token_positional_embeddings=True)
    tokens = torch.tensor([[5, 6, 7, 8, 9], [6, 5, 7, 8, 9]])
    with torch.no_grad():
        logits, _ = model(tokens)
    assert (logits[0, -1] - logits[1, -1]).abs().max() > 1e-6


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"decoder_attention": "linformer"},
            "--decoder-attention linformer is not possible",
        ),
        ({"diagonal_prior": True}, "--diagonal-prior needs a source, but a causal language model has none"),
        ({"sentence_diagonal": True}, "--sentence-diagonal needs a source"),
        ({"decoder_attention_heads": 5}, "width 12 is not divisible by 5"),
        ({"adaptive_input": True}, "--adaptive-input-cutoff None"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(InputError, match=message):
        language_model(**options)
