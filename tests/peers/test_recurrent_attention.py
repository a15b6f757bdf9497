"""Compare the scores and windows of recurrent attention with their formulas, computed in loops."""

import math

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.peers.recurrent_attention import SCORES, RecurrentAttention

B, T, S, Q, M = 2, 3, 6, 4, 4


def build(score="dot", query_dim=Q, memory_dim=M, **options):
    torch.manual_seed(0)
    attention = RecurrentAttention(score, query_dim, memory_dim, **options).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    return attention


def inputs(length=S, queries=T, memory_dim=M):
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(B, queries, Q, generator=generator, dtype=torch.float64)
    memory = torch.randn(B, length, memory_dim, generator=generator, dtype=torch.float64)
    return query, memory, torch.zeros(B, length, dtype=torch.bool)


def run(attention, query, memory, padding, first=0):
    return attention(query, memory, attention.compute_keys(memory), padding, first)


def by_hand(name, score, s, h, i):
    """Compute the score of decoder state s and encoder state h at position i from its formula."""
    if name == "dot":
        return s @ h
    if name == "general":
        return s @ (score.memory_proj.weight @ h)
    if name == "concat":
        W = torch.cat([score.query_proj.weight, score.memory_proj.weight], dim=1)
        return score.v.weight[0] @ torch.tanh(W @ torch.cat([s, h]) + score.query_proj.bias)
    if name == "location":
        return score.place_proj.weight[i] @ s
    return score.strength * (s @ h) / (s.norm() * h.norm())


@pytest.mark.parametrize("name", list(SCORES))
def test_weights_are_the_softmax_of_the_score(name):
    attention = build(name, longest=S)
    query, memory, padding = inputs()
    context, weights = run(attention, query, memory, padding)
    for b in range(B):
        for t in range(T):
            scores = [by_hand(name, attention.score, query[b, t], memory[b, i], i) for i in range(S)]
            total = sum(math.exp(score) for score in scores)
            expected = torch.tensor([math.exp(score) / total for score in scores], dtype=torch.float64)
            assert torch.allclose(weights[b, t], expected, atol=1e-12)
            assert torch.allclose(context[b, t], expected @ memory[b], atol=1e-12)


@pytest.mark.parametrize("name", ["general", "concat", "location"])
def test_scores_with_a_matrix_between_the_states_bridge_two_widths(name):
    query, memory, padding = inputs(memory_dim=6)
    context, weights = run(build(name, memory_dim=6, longest=S), query, memory, padding)
    assert context.shape == (B, T, 6) and torch.allclose(weights.sum(-1), torch.ones(B, T).double())


@pytest.mark.parametrize("name", ["dot", "content"])
def test_scores_without_one_refuse_them(name):
    with pytest.raises(InputError, match=f"equal widths for --score {name}, got 4 in the decoder"):
        build(name, memory_dim=6)


@pytest.mark.parametrize("local", ["none", "monotonic", "predictive"])
@pytest.mark.parametrize("name", list(SCORES))
def test_padding_on_either_side_gets_nothing_and_changes_nothing(name, local):
    options = {} if local == "none" else {"local": local, "window": 2}
    attention = build(name, longest=S, **options)
    query, memory, padding = inputs()
    expected, weights = run(attention, query, memory, padding)
    beside = torch.full((B, 2, M), 7.0, dtype=torch.float64)
    ones = torch.ones(B, 2, dtype=torch.bool)
    for left in (True, False):
        order = (lambda x: x) if left else reversed
        padded = torch.cat(list(order([beside, memory])), dim=1)
        mask = torch.cat(list(order([ones, padding])), dim=1)
        context, more = run(attention, query, padded, mask)
        assert torch.allclose(context, expected, atol=1e-12)
        assert torch.allclose(more[..., 2:] if left else more[..., :-2], weights, atol=1e-12)
        assert (more[..., :2] if left else more[..., -2:]).abs().max() == 0


@pytest.mark.parametrize("D", [1, 2, 9])
@pytest.mark.parametrize("first", [0, 4])
def test_a_monotonic_window_stands_at_the_tokens_own_place(D, first):
    query, memory, padding = inputs(queries=5)
    _, weights = run(build(local="monotonic", window=D), query, memory, padding, first)
    for t in range(5):
        centre = min(first + t, S - 1)  # longer targets stay at the last token
        inside = [i for i in range(S) if abs(i - centre) <= D]
        for b in range(B):
            scores = (memory[b] @ query[b, t])[inside]
            expected = torch.zeros(S, dtype=torch.float64)
            expected[inside] = (scores - scores.max()).exp() / (scores - scores.max()).exp().sum()
            assert torch.allclose(weights[b, t], expected, atol=1e-12)
    assert torch.allclose(weights.sum(-1), torch.ones(B, 5).double())


@pytest.mark.parametrize("D", [1, 3])
@pytest.mark.parametrize("pull", [-40.0, 0.3, 40.0])
def test_a_predictive_window_is_where_the_state_says_with_a_gaussian(D, pull):
    """Large values of ``pull`` move the window to the first or the last token."""
    attention = build(local="predictive", window=D)
    query, memory, padding = inputs()
    with torch.no_grad():
        attention.place_v.weight.copy_(pull * torch.tanh(attention.place_proj(query[0, 0])))
    _, weights = run(attention, query, memory, padding)
    for b in range(B):
        for t in range(T):
            state = torch.tanh(attention.place_proj.weight @ query[b, t])
            p = S / (1 + math.exp(-(attention.place_v.weight[0] @ state)))
            inside = [i for i in range(S) if p - D <= i <= p + D]
            shares = torch.softmax((memory[b] @ query[b, t])[inside], dim=0)
            expected = torch.zeros(S, dtype=torch.float64)
            for share, i in zip(shares, inside):
                expected[i] = share * math.exp(-((i - p) ** 2) / (2 * (D / 2) ** 2))
            assert inside and torch.allclose(weights[b, t], expected, atol=1e-12)


@pytest.mark.parametrize("local", ["none", "monotonic", "predictive"])
def test_a_sentence_of_one_token_is_read(local):
    options = {} if local == "none" else {"local": local, "window": 1}
    query, memory, padding = inputs(length=1)
    attention = build(**options)
    _, weights = run(attention, query, memory, padding)
    if local == "predictive":
        p = torch.sigmoid(attention.place_v(torch.tanh(attention.place_proj(query))))
        assert torch.allclose(weights, torch.exp(-2 * p**2))
    else:
        assert (weights == 1).all()


@pytest.mark.parametrize("name", list(SCORES))
def test_encoder_states_of_zero_at_padding_spoil_nothing_in_float16(name):
    attention = build(name, longest=S).half()
    query, memory, padding = inputs()
    padding[1, 4:] = True
    query, memory = (x.half() for x in (query, memory.masked_fill(padding[..., None], 0.0)))
    query.requires_grad_()
    context, weights = run(attention, query, memory, padding)
    context.sum().backward()
    for x in (context, weights, query.grad, *(parameter.grad for parameter in attention.parameters())):
        assert x is None or x.isfinite().all()


def test_the_predicted_place_is_learned():
    attention = build(local="predictive", window=2)
    query, memory, padding = inputs()
    query.requires_grad_()
    run(attention, query, memory, padding)[0].sum().backward()
    for parameter in (attention.place_v.weight, attention.place_proj.weight, query):
        assert parameter.grad.abs().max() > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"local": "predictive"}, "--local predictive needs a window of at least 1 token"),
        ({"local": "monotonic", "window": 0}, "--local monotonic needs a window of at least 1 token"),
        ({"window": 3}, "--local-window 3 has no effect without --local"),
    ],
)
def test_a_window_that_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


def test_a_sentence_longer_than_the_places_is_refused():
    attention = build("location", longest=S - 1)
    with pytest.raises(InputError, match="Expected at most 5 source tokens for --score location, got 6"):
        run(attention, *inputs())
