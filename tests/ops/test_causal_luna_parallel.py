"""Compare the parallel form of causal Luna attention with the naive form: outputs and all gradients."""

import pytest
import torch
from attention_inputs import assert_equal_up_to, causal_inputs, masks, output_and_gradients, relative_rms

from luna_fairseq.ops.causal_luna import causal_luna, naive_causal_luna, parallel, parallel_causal_luna

LOG_DECAY = torch.tensor((-0.02, -1.5), dtype=torch.float64)
# On both sides of one and two chunks.
LENGTHS = (1, 2, 31, 63, 64, 65, 127, 128, 129, 300)


def forms(decay, **options):
    """Return the naive and the parallel form as functions of q, k, v, pack weights and log decay."""

    def naive(*x):
        return naive_causal_luna(*x[:4], **options, log_decay=x[4] if decay else None)[0]

    def all_at_once(*x):
        return parallel_causal_luna(*x[:4], **options, log_decay=x[4] if decay else None)

    return naive, all_at_once


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("kind", ["none", "packed", "left", "right", "both"])
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_naive_in_float64(length, kind, decay):
    inputs = [*causal_inputs(length), *([LOG_DECAY] if decay else [])]
    naive, all_at_once = forms(decay, **masks(kind, length))
    for a, b in zip(output_and_gradients(all_at_once, inputs), output_and_gradients(naive, inputs)):
        assert_equal_up_to(a, b, 1e-9)
        assert b.abs().max() > 0 or length == 1


@pytest.mark.parametrize("size", [1, 3, 16, 50])
@pytest.mark.parametrize("decay", [False, True])
def test_any_chunk_size_gives_the_same(size, decay, monkeypatch):
    inputs = [*causal_inputs(47), *([LOG_DECAY] if decay else [])]
    naive, all_at_once = forms(decay, **masks("both", 47))
    expected = output_and_gradients(naive, inputs)
    monkeypatch.setattr(parallel, "CHUNK_SIZE", size)
    for a, b in zip(output_and_gradients(all_at_once, inputs), expected):
        assert_equal_up_to(a, b, 1e-9)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 3e-6), (torch.bfloat16, 4e-3), (torch.float16, 4e-4)]
)
@pytest.mark.parametrize("length", [45, 300])
def test_lower_precision_rounds_only_input_and_output(length, dtype, tolerance):
    inputs = causal_inputs(length, dtype)
    naive, all_at_once = forms(False, **masks("both", length))
    expected = output_and_gradients(naive, [x.double() for x in inputs])
    for a, b in zip(output_and_gradients(all_at_once, inputs), expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance


def test_tied_keys_and_values_share_one_gradient():
    q, k, _, weights = causal_inputs(150)
    expected = output_and_gradients(lambda q, k, a: naive_causal_luna(q, k, k, a)[0], [q, k, weights])
    actual = output_and_gradients(lambda q, k, a: parallel_causal_luna(q, k, k, a), [q, k, weights])
    for a, b in zip(actual, expected):
        assert_equal_up_to(a, b, 1e-9)


def test_dropout_keeps_the_mean():
    inputs = causal_inputs(70)
    whole = parallel_causal_luna(*inputs)
    torch.manual_seed(1)
    mean = sum(parallel_causal_luna(*inputs, dropout=0.2) for _ in range(400)) / 400
    assert 0 < relative_rms(mean, whole) < 0.05


def test_autocast_does_not_reach_the_sums():
    inputs = causal_inputs(100, torch.float32)
    expected, _ = naive_causal_luna(*[x.double() for x in inputs])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = causal_luna(*inputs, backend="parallel")
    assert relative_rms(output, expected) < 1e-5


def test_empty_inputs():
    q, k, v, weights = (x[:, :, :0] for x in causal_inputs(3))
    assert parallel_causal_luna(q, k, v, weights).shape == q.shape
