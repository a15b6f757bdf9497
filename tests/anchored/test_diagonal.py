"""Compare the diagonal prior with its definition, and test that padding does not change it."""

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.anchored.diagonal import measure_diagonal, naive_diagonal_bias
from luna_fairseq.anchored.geometry import TargetPlaces
from luna_fairseq.anchored.places import move_padding_away
from luna_fairseq.ops.attention import MAX_PENALTY

H = 3


def weights(bias, left_out):
    return bias.masked_fill(left_out[:, None, None, :], float("-inf")).softmax(dim=-1)


@settings(deadline=None, max_examples=60)
@given(
    keys=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    queries=st.integers(1, 12),
    first=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_weights_and_gradients_equal_the_definition(keys, queries, first, seed):
    generator = torch.Generator().manual_seed(seed)
    gamma, r = torch.rand(2, H, generator=generator, dtype=torch.float64)
    key_place = torch.arange(max(keys)).expand(len(keys), -1) + 0.5
    left_out = torch.arange(max(keys)) >= torch.tensor(keys)[:, None]
    query_place = first + torch.arange(queries).expand(len(keys), -1)
    origin = torch.randint(9, query_place.shape, generator=generator)

    def form(gamma, r):
        diagonal = measure_diagonal(gamma, r, TargetPlaces(query_place, origin), key_place, left_out)
        elsewhere = diagonal.bias_at(key_place[:, None, None])
        assert torch.allclose(elsewhere, diagonal.bias(), atol=1e-12)
        return weights(diagonal.bias(), left_out)

    def definition(gamma, r):
        return weights(naive_diagonal_bias(gamma, r, query_place, key_place, origin), left_out)

    expected = output_and_gradients(definition, [gamma, r])
    for a, b in zip(output_and_gradients(form, [gamma, r]), expected):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("first", [1, 3])
def test_the_nearest_key_may_be_one_of_the_first(dtype, tolerance, first):
    generator = torch.Generator().manual_seed(first)
    gamma, r = torch.rand(2, H, generator=generator, dtype=torch.float64).to(dtype)
    place = torch.arange(7).expand(2, -1) + 0.5
    target = TargetPlaces(torch.tensor([[0, 1, 4], [3, 4, 9]]), torch.tensor([[0, 0, 2], [1, 1, 5]]))

    def together(gamma, r):
        return measure_diagonal(gamma, r, target, place, first=first).bias().clamp(max=3)

    def apart(gamma, r):
        diagonal = measure_diagonal(gamma, r, target, place[:, :first])
        further = diagonal.bias_at(place[:, first:][:, None, None])
        return torch.cat([diagonal.bias(), further], dim=-1).clamp(max=3)

    expected = output_and_gradients(apart, [gamma, r])
    for a, b in zip(output_and_gradients(together, [gamma, r]), expected):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_padding_that_is_moved_away_is_never_the_nearest_key():
    place, mask = torch.arange(6).expand(3, -1) + 0.5, torch.arange(6) >= torch.tensor([6, 2, 0])[:, None]
    gamma, r = torch.full((1,), 2.0), torch.ones(1)
    target = TargetPlaces(torch.tensor([[0, 5]]).expand(3, -1))
    away = measure_diagonal(gamma, r, target, move_padding_away(place, mask)).bias()
    masked = measure_diagonal(gamma, r, target, place, mask).bias()
    is_token = ~mask[:2, None, None].expand(-1, 1, 2, -1)
    assert torch.equal(away[:2][is_token], masked[:2][is_token])
    assert away.isfinite().all()


def test_queries_beyond_the_end_of_a_short_source_favour_its_end():
    key_place = torch.arange(600)[None] + 0.5
    left_out = torch.arange(600)[None] >= 4
    gamma, r = torch.full((1,), 10.0), torch.ones(1)
    diagonal = measure_diagonal(gamma, r, TargetPlaces(torch.tensor([[500]])), key_place, left_out)
    assert weights(diagonal.bias(), left_out)[0, 0, 0, :4].argmax() == 3


def test_the_bias_is_limited_and_an_empty_sentence_gives_no_nan():
    key_place = torch.arange(5000).expand(2, -1) + 0.5
    left_out = torch.tensor([[False], [True]]).expand(-1, 5000)
    gamma = torch.full((1,), 4.0, requires_grad=True)
    bias = measure_diagonal(gamma, torch.ones(1), TargetPlaces(torch.zeros(2, 1)), key_place, left_out).bias()
    assert bias.min() == -MAX_PENALTY and bias[0].max() == 0
    bias.sum().backward()
    assert gamma.grad.isfinite().all()


def test_positions_are_exact_in_half_precision():
    gamma, r = torch.ones(1).half(), torch.ones(1).half()
    place = torch.arange(4096)[None]
    diagonal = measure_diagonal(gamma, r, TargetPlaces(place), place + 0.5)
    assert torch.equal(diagonal.expected.flatten(), place[0] + 0.5)
    expected = naive_diagonal_bias(gamma.double(), r.double(), place, place + 0.5).clamp(min=-MAX_PENALTY)
    assert relative_rms(diagonal.bias(), expected) < 1e-4
