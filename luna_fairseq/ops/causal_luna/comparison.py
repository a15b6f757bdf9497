"""Comparison of an implementation of causal Luna attention with chunkwise attention, on random inputs.

The Triton kernels must pass the comparison before their first use. Shapes: B examples, H heads of width K, T
positions, L rows of the packed sequence P.
"""

from functools import lru_cache
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import disable_autocast, is_recording_graph
from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

# Largest accepted relative difference (root mean square) of outputs and gradients. Rounding errors are
# several times smaller.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Log decay of the two kinds of heads in a sample
LOG_DECAY = (-0.25, -0.06)
# Factor of the tolerance for the gradient of the log decay, whose terms nearly cancel each other
DECAY_TOLERANCE = 20
# Sequence length for the comparison of results. It gives several chunks, the last of which is not full.
COMPARED_LENGTH = 100


def supports_triton(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor) -> bool:
    """Return True if the Triton kernels can process these inputs on this machine."""
    reason = why_not_triton(q.device, q.dtype, q.size(-1), pack_weights.size(-1))
    return not reason and q.dtype == k.dtype == v.dtype


class Sample(NamedTuple):
    """Random inputs of causal Luna attention, and a random gradient ``grad`` of its output.

    q, k, v and grad are [B, H, T, K], and pack_weights is [B, H, T, L] for L rows of the packed sequence P. v
    is None if keys and values are the same tensor. log_decay [H] is None in attention without decay.
    """

    q: Tensor
    k: Tensor
    v: Optional[Tensor]
    pack_weights: Tensor
    log_decay: Optional[Tensor]
    grad: Tensor


def draw_sample(
    B: int,
    H: int,
    T: int,
    K: int,
    L: int,
    device: torch.device,
    dtype: torch.dtype,
    has_decay: bool,
    is_tied: bool,
) -> Sample:
    """Draw random inputs with a fixed seed, without changing torch's global generator.

    The sizes are B examples, H heads, T positions, head width K and L rows of the packed sequence P. With
    ``is_tied``, keys and values are the same tensor, and v is None. With ``has_decay``, the sample contains a
    log decay per head. The two values of ``LOG_DECAY`` alternate, so H must be even.
    """
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(B, H, T, K, generator=generator).to(device, dtype) for _ in range(4))
    pack_weights = torch.rand(B, H, T, L, generator=generator).to(device)
    log_decay = torch.tensor(LOG_DECAY, device=device).repeat(H // 2) if has_decay else None
    return Sample(q, k, None if is_tied else v, pack_weights, log_decay, grad)


def find_disagreement(implementation: Callable[..., Tensor], inputs: Sample) -> str:
    """Compare the output and gradients of an implementation with chunkwise attention on the same inputs.

    Return a description such as "its output differs by 1.0e-01 from that of the chunkwise implementation".
    The number is the norm of the difference divided by the norm of the expected tensor. Return "" if no error
    exceeds the tolerance of the dtype, which is larger for the gradient of the decay. The inputs must have
    two examples. The first third of the first example is masked as padding. The reference is computed in
    float64, because float32 products may use TF32 on a GPU.
    """
    device, dtype, T = inputs.q.device, inputs.q.dtype, inputs.q.size(2)
    padding = torch.arange(T, device=device) < torch.tensor([[T // 3], [0]], device=device)
    actual = output_and_gradients(implementation, inputs, key_padding_mask=padding)
    exact = Sample(*(None if x is None else x.double() for x in inputs))
    expected = output_and_gradients(chunk_causal_luna, exact, key_padding_mask=padding)
    names = ("output", *(f"gradient of {x}" for x in "q k v A log_decay".split()))
    for name, ours, theirs in zip(names, actual, expected):
        if ours is None or theirs is None:
            continue
        difference = ((ours.double() - theirs).norm() / theirs.norm()).item()
        factor = DECAY_TOLERANCE if name == "gradient of log_decay" else 1
        if not difference <= factor * TOLERANCE[dtype]:  # a NaN is a disagreement too
            return f"its {name} differs by {difference:.1e} from that of the chunkwise implementation"
    return ""


def output_and_gradients(
    implementation: Callable[..., Tensor], inputs: Sample, **options: Any
) -> Tuple[Optional[Tensor], ...]:
    """Return the output, and the gradients of q, k, v, pack_weights and log_decay, as a tuple.

    If an input is None, so is its gradient. ``implementation`` is called like :func:`causal_luna`, with the
    tensors of ``inputs`` and the keyword arguments ``options``.
    """
    with disable_autocast(inputs.grad.device):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs[:-1]]
        q, k, v, pack_weights, log_decay = leaves
        output = implementation(q, k, k if v is None else v, pack_weights, log_decay=log_decay, **options)
        gradients = iter(torch.autograd.grad(output, [x for x in leaves if x is not None], inputs.grad))
    return (output, *(None if x is None else next(gradients) for x in leaves))


def check_triton_results(q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, has_decay: bool) -> None:
    """Compare the Triton kernels with the chunkwise implementation on random inputs, before their first use.

    Each device, dtype, head width and packed length (rounded up to a power of two) is compared once. Raise
    InputError if the kernels fail or their results differ.
    """
    if not is_recording_graph() and q.numel() and supports_triton(q, k, v, pack_weights):
        L = 1 << (pack_weights.size(-1) - 1).bit_length()
        _compare_once(q.device, q.dtype, q.size(-1), L, has_decay, v is k)


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def _compare_once(
    device: torch.device, dtype: torch.dtype, K: int, L: int, has_decay: bool, is_tied: bool
) -> None:
    try:
        sample = draw_sample(2, 2, COMPARED_LENGTH, K, L, device, dtype, has_decay, is_tied)
        reason = find_disagreement(triton_causal_luna, sample)
    except Exception as error:  # a compiler may raise anything on a device that it does not know
        line = str(error).strip().partition("\n")[0]
        raise InputError(
            f"Luna backend triton fails on {device} with {type(error).__name__}: {line}. "
            "Use another backend, such as parallel"
        ) from error
    if reason:
        raise InputError(
            f"Luna backend triton is wrong on {device}: {reason}. Use another backend, such as parallel"
        )
