"""Test the positions of the rows of the packed sequence P in a sentence, and distances from them."""

import pytest
import torch
from attention_inputs import padding_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.anchored.places import anchor_distances, beyond_nearest, distance_bias, naive_distances


def masks(lengths, rows, S=None, L=None, left=0):
    """Return padding masks of sentences and of the packed sequence P.

    Args:
        lengths: number of tokens of each sentence.
        rows: number of rows of P of each sentence.
        S: padded length (default: None, the longest sentence).
        L: padded number of rows (default: None, the most rows).
        left: number of padding tokens before each sentence (default: 0).
    """
    S = S or max(lengths) + left
    position = torch.arange(S)[None, :]
    n = torch.tensor(lengths)[:, None]
    context = (position < left) | (position >= n + left)
    return context, torch.arange(L or max(rows))[None, :] >= torch.tensor(rows)[:, None]


@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize("left", [0, 2])
def test_distances_equal_the_definition(heads, left):
    context, packed = masks([1, 2, 5, 7, 11, 13], [1, 2, 5, 5, 5, 5], left=left)
    actual, expected = anchor_distances(context, packed, heads), naive_distances(context, packed, heads)
    assert actual.dtype == torch.float32
    kept = ~context[:, None, None, :] & ~packed[:, None, :, None]
    assert torch.allclose(actual * kept, expected * kept, atol=1e-5)


def test_the_position_of_a_row_is_the_centre_of_its_segment():
    context, packed = masks([12], [4])
    places = anchor_distances(context, packed)[0, 0] * 3  # in tokens: segments of three
    assert torch.allclose(places[0, :3], torch.tensor([1.0, 0.0, 1.0]), atol=1e-6)
    assert places.argmin(dim=1).tolist() == [1, 4, 7, 10]


def test_a_short_sentence_has_one_row_for_each_token():
    context, packed = masks([5], [5])
    expected = (torch.arange(5.0)[:, None] - torch.arange(5.0)).abs()
    assert torch.allclose(anchor_distances(context, packed)[0, 0], expected, atol=1e-5)


def test_heads_divide_a_segment():
    context, packed = masks([16], [4])
    looked_at = anchor_distances(context, packed, 4)[0].argmin(dim=-1)  # [H, L]
    assert looked_at.t().flatten().tolist() == list(range(16))


def test_more_rows_than_tokens_lie_closer_than_tokens():
    context, packed = masks([3], [6])
    distances = anchor_distances(context, packed)[0, 0]  # [6, 3], segments of half a token
    assert distances.argmin(dim=1).tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.allclose(distances.min(dim=1).values, torch.full((6,), 0.5), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    length=st.integers(1, 12),
    heads=st.integers(1, 5),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
)
def test_moving_a_sentence_inside_its_padding_changes_nothing(n, length, heads, before, after):
    rows = min(n, length)
    expected = anchor_distances(*masks([n], [rows]), heads)
    context, packed = masks([n], [rows], S=before + n + after, L=rows + 2, left=before)
    actual = anchor_distances(context, packed, heads)
    assert torch.equal(actual[:, :, :rows, before : before + n], expected)
    assert torch.isfinite(actual).all()


def test_a_sentence_of_padding_gives_finite_distances():
    context = padding_mask(4, right=(4, 0, 1))
    packed = torch.tensor([[True, True], [False, False], [False, False]])
    assert torch.isfinite(anchor_distances(context, packed, 2)).all()
    assert torch.isfinite(naive_distances(context, packed, 2)).all()


@pytest.mark.parametrize("gamma", [0.01, 1.0, 4.0, 1e4])
def test_distant_tokens_have_no_weight_and_no_denormal_numbers(gamma):
    context, packed = torch.zeros(1, 256, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)
    distances = anchor_distances(context, packed, num_heads=2)
    bias = distance_bias(torch.tensor([gamma, gamma / 2]), beyond_nearest(distances))
    weights = bias.softmax(dim=-1)
    assert weights.min() >= torch.finfo(torch.float32).tiny
    without_limit = (-torch.tensor([gamma, gamma / 2])[:, None, None] * distances).double().softmax(dim=-1)
    torch.testing.assert_close(bias.double().softmax(dim=-1), without_limit, rtol=1e-6, atol=1e-20)
