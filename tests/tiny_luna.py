"""A Luna model that runs in milliseconds, with sizes that all differ, and batches for it."""

from argparse import Namespace

import pytest
import torch

from fairseq.data import Dictionary
from luna_fairseq.models.luna import LunaModel

PAD, EOS = 1, 2
OPTIONS = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_projected_attention_heads": 2,
    "decoder_ffn_embed_dim": 28,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_projected_attention_heads": 4,
    "projection_length": 5,
    "dropout": 0.0,
    "max_source_positions": 60,
    "max_target_positions": 70,
}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
UNTIED_PRE_NORM = {**PRE_NORM, "untie_luna_kv": True}
ANCHORED = {"anchored_packed": True}
LOOK_UP = {**ANCHORED, "packed_lookup": 2}
SENTENCE_DIAGONAL = {"diagonal_prior": True, "sentence_diagonal": True}
SOFTMAX_CROSS = {**ANCHORED, "cross_attention": "softmax"}
# Variants of the architecture that change the computation.
VARIANTS = {
    "tied": {},
    "untied": {"untie_luna_kv": True},
    "pre-norm": PRE_NORM,
    "untied pre-norm": UNTIED_PRE_NORM,
    "non-contextual": {"non_contextual_packed": True},
    "non-contextual pre-norm": {**PRE_NORM, "non_contextual_packed": True},
    "fixed length": {"fix_projection_length": True},
    "elu": {"pack_activation": "elu"},
    "layernorm_embedding": {"layernorm_embedding": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "anchored": ANCHORED,
    "anchored fixed length": {**ANCHORED, "fix_projection_length": True},
    "anchored untied pre-norm": {**ANCHORED, **UNTIED_PRE_NORM},
    "look-up": LOOK_UP,
    "look-up by parts": LOOK_UP,
    "look-up by parts untied pre-norm": {**ANCHORED, **UNTIED_PRE_NORM, "packed_lookup": 1},
    "diagonal": {**ANCHORED, "diagonal_prior": True},
    "look-up diagonal": {**LOOK_UP, "diagonal_prior": True},
    "look-up by parts diagonal pre-norm": {**LOOK_UP, **PRE_NORM, "diagonal_prior": True},
    "local parts": {**ANCHORED, "local_parts": 3},
    "local parts untied pre-norm": {**ANCHORED, **UNTIED_PRE_NORM, "local_parts": 1},
    "decay": {"causal_decay": True},
    "decay untied pre-norm": {**UNTIED_PRE_NORM, "causal_decay": True},
    "look-up diagonal decay": {**LOOK_UP, "diagonal_prior": True, "causal_decay": True},
    "softmax cross": {"cross_attention": "softmax"},
    "look-up sentence diagonal": {**LOOK_UP, **SENTENCE_DIAGONAL},
    "anchored softmax cross diagonal": {**SOFTMAX_CROSS, "diagonal_prior": True},
    "anchored softmax cross sentence diagonal": {**SOFTMAX_CROSS, **SENTENCE_DIAGONAL},
    "anchored softmax cross pre-norm": {**SOFTMAX_CROSS, **PRE_NORM},
}

IN_SEGMENTS = {"look-up by parts", "look-up by parts untied pre-norm", "look-up by parts diagonal pre-norm"}


def marked(variant, *more, id=None):
    """Return the pytest parameters of a test for a variant, marked ``in_segments`` where needed."""
    marks = [pytest.mark.in_segments] if variant in IN_SEGMENTS else []
    return pytest.param(*more, variant, marks=marks, id=id)


class Task:
    """Stand-in of a translation task: two dictionaries of different sizes."""

    def __init__(self, source_size=23, target_size=19):
        self.source_dictionary, self.target_dictionary = dictionary(source_size), dictionary(target_size)


def dictionary(size):
    result = Dictionary()
    result.add_symbol("<sep>")
    for i in range(size - len(result)):
        result.add_symbol(f"w{i}")
    return result


def build_perturbed(model, options, task, dtype=torch.float64, seed=0):
    """Build a model of the class ``model`` in evaluation mode, and perturb it."""
    torch.manual_seed(seed)
    return perturb(model.build_model(Namespace(**options), task)).to(dtype).eval()


def perturb(module, scale=0.1):
    """Add noise to every parameter, so that no bias is 0, no norm is 1, and no embedding of padding is 0."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=scale)
    return module


def tiny_model(dtype=torch.float64, seed=0, task=None, **options):
    return build_perturbed(LunaModel, {**OPTIONS, **options}, task or Task(), dtype, seed)


def sentences(lengths, size, seed=0):
    """Return random token lists of the given lengths. Each ends with EOS and has no other special symbols."""
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(4, size, (n - 1,), generator=generator).tolist(), EOS] for n in lengths]


def batch(token_lists, left=False, extra=0):
    """Return a padded batch [B, T] of token lists, with ``extra`` additional positions of padding."""
    length = max(len(tokens) for tokens in token_lists) + extra
    rows = []
    for tokens in token_lists:
        padding = [PAD] * (length - len(tokens))
        rows.append(padding + tokens if left else tokens + padding)
    return torch.tensor(rows)


def example(source_lengths=(9, 4, 6, 2), target_lengths=(5, 8, 1, 7), seed=0):
    """Return source token lists and target token lists. The targets are the inputs of the decoder."""
    return sentences(source_lengths, 23, seed), sentences(target_lengths, 19, seed + 1)


def decode(model, source, target, steps=False):
    """Return the logits of a target, computed step by step or in one call."""
    with torch.no_grad():
        encoded = model.encoder(source, source.ne(PAD).sum(dim=1))
        if not steps:
            return model.decoder(target, encoded)[0]
        state, ends = {}, range(1, target.size(1) + 1)
        parts = [model.decoder(target[:, :t], encoded, incremental_state=state)[0] for t in ends]
        return torch.cat(parts, dim=1)


def assert_close(actual, expected, dtype=torch.float64, tolerance=None):
    """Assert that the largest error is small relative to the largest expected value, or to 1 if larger."""
    tolerance = tolerance or {torch.float64: 1e-11, torch.float32: 2e-5}[dtype]
    assert actual.shape == expected.shape
    error = ((actual - expected).abs().max() / expected.abs().max().clamp(min=1)).item()
    assert error <= tolerance, f"relative error {error:.2e}"


def assert_same_hypotheses(found, expected, names=("score", "positional_scores", "attention")):
    assert [len(hypotheses) for hypotheses in found] == [len(hypotheses) for hypotheses in expected]
    for one, other in zip(sum(found, []), sum(expected, [])):
        assert one["tokens"].tolist() == other["tokens"].tolist()
        for name in names:
            torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)
