"""Random inputs and masks for the attention ops, and comparisons of their results.

Shapes: batch size B, heads H, head width K, L rows of the packed sequence P, context length S, sequence
length T. All sizes differ, so that a transposed dimension fails.
"""

import torch

# Batch size, heads, head width, rows of P, context length. All differ, so that a transposed dimension fails.
B, H, K, L, S = 3, 2, 5, 7, 11


def causal_inputs(length, dtype=torch.float64, seed=0, batch=B):
    """Return random q, k, v [B, H, T, K] and positive pack weights [B, H, T, L], where T is ``length``."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, H, length, K, generator=generator, dtype=torch.float64) for _ in range(3))
    pack_weights = torch.rand(batch, H, length, L, generator=generator, dtype=torch.float64) * 2
    return [x.to(dtype) for x in (q, k, v, pack_weights)]


def softmax_inputs(length, dtype=torch.float64):
    """Return random queries [B, H, T, K], and keys and values [B, H, S, K], where T is ``length``."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, n, K) for n in (length, S, S)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def padding_mask(length, left=(0, 0, 0), right=(0, 0, 0)):
    """Return a mask [B, T], True at padding.

    Sentence b has ``left[b]`` positions of padding before it and ``right[b]`` after it, within ``length``
    positions.
    """
    position = torch.arange(length)[None, :]
    before = position < torch.tensor(left)[:, None]
    after = position >= length - torch.tensor(right)[:, None]
    return before | after


def packed_mask():
    """Return a mask [B, L], True at masked rows of P: none, the last two, and all but the first."""
    return torch.arange(L)[None, :] >= torch.tensor([L, L - 2, 1])[:, None]


def masks(kind, length):
    """Return keyword arguments of the causal ops for a kind of mask: none, packed, left, right or both."""
    third = length // 3
    return {
        "none": {},
        "packed": {"packed_padding_mask": packed_mask()},
        "left": {"key_padding_mask": padding_mask(length, left=(0, third, length // 2))},
        "right": {"key_padding_mask": padding_mask(length, right=(third, 0, length // 2))},
        "both": {
            "packed_padding_mask": packed_mask(),
            "key_padding_mask": padding_mask(length, left=(third, 0, 1), right=(0, third, 1)),
        },
    }[kind]


def output_and_gradients(function, inputs, weight=None):
    """Return the output of ``function(*inputs)``, and the gradient of its weighted sum for each input.

    The weights of the sum are random by default.
    """
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    if weight is None:
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    gradients = torch.autograd.grad((output * weight.to(output.dtype)).sum(), leaves)
    return [output.detach(), *gradients]


def relative_rms(actual, expected):
    """Return the root mean square error relative to the root mean square of ``expected``."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt().clamp(min=1e-30)).item()


def assert_equal_up_to(actual, expected, tolerance, what=""):
    """Assert that the largest error is at most ``tolerance`` times the largest expected value (or 1)."""
    assert actual.shape == expected.shape, what
    if actual.numel():
        error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1)
        assert error <= tolerance, f"{what}: {error:.2e}"
