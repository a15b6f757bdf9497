"""Test cases in which one attention equals another.

Examples are a window or a block that covers everything, a single bucket, and the limit of many features.
"""

import itertools

import pytest
import torch
from peer_cases import LONGEST, assert_close, build, pad, sequence
from torch.nn import functional as F

from luna_fairseq.anchored.diagonal import naive_diagonal_bias
from luna_fairseq.ops.attention import masked_softmax, naive_attention
from luna_fairseq.peers.options import LOCAL_KINDS


def copy_weights(module, other):
    module.load_state_dict(other.state_dict(), strict=False)
    return module


def run_both(name, form, **options):
    """Return the outputs of an attention and of softmax attention with the same projections.

    The input has two sentences, of which the second is padded.
    """
    softmax = build("softmax", form)
    module = copy_weights(build(name, form, **options), softmax)
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in (17, 11)])
    return [m(x, x, x, mask)[0] * ~mask.t().unsqueeze(-1) for m in (module, softmax)]


BOTH = ("bidirectional", "causal")


@pytest.mark.parametrize(
    "name, form, options",
    [
        *(("local", form, {"local_window": 17, "local_kind": kind}) for form in BOTH for kind in LOCAL_KINDS),
        *(("sparse", form, {"sparse_stride": stride}) for form in BOTH for stride in (1, 17)),
        *(("sinkhorn", form, {"sinkhorn_block": 17}) for form in BOTH),
        ("bigbird", "bidirectional", {"bigbird_global_blocks": 9}),
        ("bigbird", "bidirectional", {"bigbird_random_blocks": 9}),
        ("bigbird", "bidirectional", {"bigbird_block": 17}),
    ],
)
def test_an_attention_that_sees_everything_is_softmax_attention(name, form, options):
    assert_close(*run_both(name, form, **options))


@pytest.mark.parametrize(
    "options", [{"longformer_window": 34}, {"longformer_window": 34, "longformer_global_tokens": 0}]
)
def test_longformer_with_a_window_of_everything_is_softmax_attention(options):
    softmax = build("softmax", "bidirectional")
    module = copy_weights(build("longformer", "bidirectional", **options), softmax)
    if module.tokens:
        for name in "qkv":
            weights = getattr(softmax, f"{name}_proj").state_dict()
            getattr(module, f"global_{name}_proj").load_state_dict(weights)
    x = sequence(17)
    assert_close(module(x, x, x)[0], softmax(x, x, x)[0])


def test_linformer_with_the_identity_along_the_length_is_softmax_attention():
    softmax = build("softmax", "bidirectional")
    module = copy_weights(build("linformer", "bidirectional", linformer_k=LONGEST), softmax)
    with torch.no_grad():
        for parameter in module.length_proj:
            parameter.copy_(torch.eye(LONGEST))
    x = sequence(LONGEST)
    assert_close(module(x, x, x)[0], softmax(x, x, x)[0])


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
@pytest.mark.parametrize("hashes", [1, 3])
def test_reformer_with_one_bucket_is_softmax_attention_to_the_others_by_shared_queries(form, hashes):
    module = build("reformer", form, reformer_buckets=1, reformer_chunk=17, reformer_hashes=hashes)
    x = sequence(17)
    qk, v = module.project(x)
    logits = qk @ F.normalize(qk, dim=-1).transpose(-2, -1)
    mask = torch.eye(17, dtype=torch.bool)
    if form == "causal":
        mask = torch.ones(17, 17, dtype=torch.bool).triu()
        mask[0, 0] = False  # the first position can attend only to itself
    assert_close(module.attend(qk, v), masked_softmax(logits, mask) @ v)


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("lengths", [(7, 4), (13, 12), (2, 1)])
def test_sinkhorn_attends_to_means_of_tokens_at_the_same_index_of_their_blocks(form, lengths):
    size = 3
    module = build("sinkhorn", form, sinkhorn_block=size)
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in lengths])
    q, k, v, inputs = module.project(x)
    output = module.attend(q, k, v, inputs, padding_mask=mask)
    R = module.compute_permutation(inputs, mask)
    sums = module.value_weights(x, key_padding_mask=mask).sum(dim=-1)
    for b, length in enumerate(lengths):
        assert_close(sums[b, :, :length], torch.ones_like(sums[b, :, :length]))
        for h, t in itertools.product(range(q.size(1)), range(length)):
            block = t // size
            own = range(block * size, min(length, t + 1 if form == "causal" else (block + 1) * size))
            logits, values = [(q[b, h, t] @ k[b, h, p]) / 2 for p in own], [v[b, h, p] for p in own]
            for index in range(size):
                places = list(range(index, length, size))
                weights = R[b, h, block, : len(places)]
                if weights.sum() > 0:
                    key, value = (weights @ y[b, h, places] / weights.sum() for y in (k, v))
                    logits.append((q[b, h, t] @ key) / 2 + weights.sum().log())
                    values.append(value)
            expected = torch.stack(logits).softmax(dim=0) @ torch.stack(values)
            assert_close(output[b, h, t], expected)


def test_causal_sinkhorn_chooses_the_blocks_that_its_network_prefers():
    module = build("sinkhorn", "causal", sinkhorn_block=2)
    last = module.sort[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(20.0 * torch.eye(module.max_blocks)[0].repeat(module.num_heads))
    R = module.compute_permutation(module.project(sequence(12))[-1], None)
    shares = torch.tensor([0, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], dtype=torch.float64)
    assert_close(R[..., 0], shares.expand_as(R[..., 0]), 1e-6)
    assert R[..., 1:].max() < 1e-6
    for seed in range(3):
        module = build("sinkhorn", "causal", sinkhorn_block=2, seed=seed).train()
        R = module.compute_permutation(module.project(sequence(24))[-1], None)
        assert R.sum(dim=-1).max() < 1 + 1e-9 and R.diagonal(-1, -2, -1)[..., 1:].min() < 0.9


def test_random_blocks_of_bigbird_depend_on_the_seed_alone():
    short, long = (
        build("bigbird", "bidirectional", bigbird_random_blocks=3, max_positions=longest)
        for longest in (20, 200)
    )
    assert torch.equal(short.seed, long.seed)
    x, mask = pad([sequence(n, 1, seed=n)[:, 0] for n in (30, 18)])
    assert_close(short(x, x, x, mask)[0], long(x, x, x, mask)[0])
    assert_close(short(x[:18, 1:], x[:18, 1:], x[:18, 1:])[0], short(x, x, x, mask)[0][:18, 1:])
    other = build("bigbird", "bidirectional", bigbird_random_blocks=3, seed=1)
    scores, others = (module.block_preferences(64, x.device) for module in (short, other))
    assert torch.equal(scores[:9, :9], short.block_preferences(9, x.device))
    assert all(len(row.unique()) == 64 for row in scores)
    shares = torch.stack([scores, scores.t(), others, scores.roll(1, 0)]).flatten(1).double() / 2**32
    assert (shares.mean(dim=1) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(shares)[0, 1:].abs().max() < 0.06


def test_gated_rfa_forgets_everything_or_nothing():
    module, x = build("rfa, gate", "causal"), sequence(9)
    q, k, v, gate = module.project(x)
    assert_close(module.attend(k, k, v, torch.full_like(gate, -40.0)), v)  # the gates forget everything
    plain = build("rfa", "causal")
    plain.load_state_dict(module.state_dict(), strict=False)
    assert_close(module.attend(q, k, v, torch.full_like(gate, 16.0)), plain.attend(q, k, v), 1e-5)


def test_alibi_without_slope_is_softmax_attention_and_with_it_prefers_what_is_near():
    alibi, plain = build("softmax, alibi", "causal"), build("softmax", "causal")
    bias = alibi.alibi_bias(*[sequence(5, 1)[None].transpose(1, 2)] * 2)
    assert (
        bias.shape == (3, 5, 5) and bias[:, 2, 2].eq(0).all() and (bias[:, 4, 0] == 4 * bias[:, 4, 3]).all()
    )
    assert_close((-bias[:, 1, 0]).log2(), -torch.tensor([8 / 3, 16 / 3, 8.0]).float(), 1e-6)
    plain.load_state_dict(alibi.state_dict())
    x = sequence(9)
    assert (alibi(x, x, x)[0] - plain(x, x, x)[0]).abs().max() > 1e-3


def test_the_diagonal_prior_is_added_to_the_logits():
    prior, x, context = build("softmax, diagonal", "cross"), sequence(5), sequence(9, seed=1)
    _, weights = prior(x, context, context, need_head_weights=True)
    bare = prior.diagonal
    prior.diagonal = None
    _, without = prior(x, context, context, need_head_weights=True)
    places = torch.arange(5)[None], torch.arange(9)[None] + 0.5
    bias = naive_diagonal_bias(bare.strength(), bare.ratio(), *places)
    expected = (without.log() + bias.transpose(0, 1)).softmax(dim=-1)
    assert_close(weights, expected)
    assert (weights - without).abs().max() > 0.1


def feature_error(name, features):
    """Return the mean squared error of softmax attention that is approximated by random features."""
    option = {"performer": "performer_features", "rfa": "rfa_dim"}[name]
    total = 0.0
    for seed in range(24):
        torch.manual_seed(seed)
        module = build(name, "bidirectional", seed=seed, **{option: features})
        if name == "rfa":
            module.sigma.data.fill_(1.0)
        q, k, v = torch.randn(3, 2, 3, 20, 4, dtype=torch.float64) * 0.4
        # RFA does not divide by sqrt(K).
        exact = (q, k) if name == "performer" else (F.normalize(q, dim=-1) * 2, F.normalize(k, dim=-1))
        expected, _ = naive_attention(*exact, v)
        total += (module.attend(q, k, v) - expected).pow(2).mean().item()
    return total / 24


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_random_features_converge_to_softmax_attention_as_one_over_their_number(name):
    few, many = (feature_error(name, features) for features in (64, 1024))
    assert many < 2e-3
    assert 8 < few / many < 32  # with 16 times the features, the error is about 16 times smaller


def test_orthogonal_features_are_nearer_than_independent_ones_of_the_same_number():
    orthogonal = feature_error("performer", 64)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            "luna_fairseq.peers.resampling.orthogonal_rows",
            lambda shape, generator: torch.randn(shape, generator=generator),
        )
        assert orthogonal < feature_error("performer", 64)


def test_performer_reads_a_token_whose_features_are_tiny_beside_a_later_tokens():
    """Long keys have small features. The later token has features that are larger by e^35 to e^66."""
    x, gradients = sequence(6).float(), []
    module = build("performer", "causal", torch.float32)
    q, k, v = (part.detach() for part in module.project(x))
    k[:, :, :-1] = F.normalize(k[:, :, :-1], dim=-1) * 16.0
    exponents = module.exponents(k).amax(dim=-1)
    larger = exponents[..., -1:] - exponents[..., :-1]
    assert 35 < larger.min() and larger.max() < 66
    for T in (5, 6):
        parts = [part[:, :, :T].clone().requires_grad_() for part in (q, k, v)]
        output = module.attend(*parts)[:, :, :5]
        output.pow(2).sum().backward()
        gradients.append((output, *(part.grad[:, :, :5] for part in parts)))
    for alone, beside in zip(*gradients):
        assert_close(beside, alone, 1e-4)


def test_random_numbers_are_drawn_anew_in_training_the_same_after_resuming():
    module = build("performer", "causal", performer_redraw_interval=10).features.train()
    first = module.values.clone()
    module.set_num_updates(9)
    assert torch.equal(module.values, first)
    module.set_num_updates(10)
    second = module.values.clone()
    assert not torch.equal(second, first)
    resumed = build("performer", "causal", seed=1, performer_redraw_interval=10).features
    resumed.load_state_dict(module.state_dict())
    resumed.train().set_num_updates(15)
    assert torch.equal(resumed.values, second)
    for redrawn in (module, resumed):
        redrawn.set_num_updates(20)
    assert torch.equal(module.values, resumed.values) and not torch.equal(module.values, second)
    resumed.eval().set_num_updates(30)
    assert torch.equal(module.values, resumed.values)
