"""Comparison of an implementation of causal Luna attention with the chunkwise one on random inputs."""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna

# Largest accepted relative difference (root mean square) of outputs and gradients. Rounding errors are
# several times smaller.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Log decay of the two kinds of heads in a sample
LOG_DECAY = (-0.25, -0.06)
# Factor of the tolerance for the gradient of the log decay, whose terms nearly cancel each other
DECAY_TOLERANCE = 20


class Sample(NamedTuple):
    """Random inputs of causal Luna attention, and a random gradient of its output.

    Shapes: batch size B, H heads, T positions, head width K, and L rows of the packed sequence P.

    Attributes:
        q: queries [B, H, T, K].
        k: keys [B, H, T, K].
        v: values [B, H, T, K] (None if keys and values are the same tensor, that is, tied).
        pack_weights: weights [B, H, T, L], one per position and row of P.
        log_decay: log decay [H] per position of each head (None if there is no decay).
        grad: gradient [B, H, T, K] of the output.
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
    """Draw random inputs of causal Luna attention with a fixed seed.

    The default generators of torch are not affected.

    Args:
        B: batch size.
        H: number of heads, an even number if the sample has a log decay.
        T: sequence length.
        K: head width.
        L: packed length, the number of rows of the packed sequence P.
        device: device of the inputs.
        dtype: dtype of q, k, v and the gradient; pack weights and log decay are float32.
        has_decay: True if the sample has a log decay.
        is_tied: True if keys and values are the same tensor.

    Returns:
        The sample.
    """
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(B, H, T, K, generator=generator).to(device, dtype) for _ in range(4))
    pack_weights = torch.rand(B, H, T, L, generator=generator).to(device)
    log_decay = torch.tensor(LOG_DECAY, device=device).repeat(H // 2) if has_decay else None
    return Sample(q, k, None if is_tied else v, pack_weights, log_decay, grad)


def find_disagreement(implementation: Callable[..., Tensor], inputs: Sample) -> str:
    """Compare an implementation of causal Luna attention with the chunkwise implementation in float64.

    In float32 the chunkwise implementation itself could be too inexact, because torch may use TF32 on a GPU.
    The output and the gradients of all inputs are compared.

    Args:
        implementation: function to check. It takes the queries, keys, values and pack weights, and the
            keyword arguments ``log_decay`` and ``key_padding_mask``, and returns the output.
        inputs: sample of two examples. One third of the first example is treated as padding.

    Returns:
        A clause such as "its output differs by 1.0e-01 from that of the chunkwise implementation", or an
        empty string if all results agree.
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
    """Compute the output of an implementation on a sample, and the gradients of the inputs.

    Args:
        implementation: function to call, which computes causal Luna attention.
        inputs: sample of inputs for the function, and the gradient of its output.
        **options: additional keyword arguments of the function.

    Returns:
        - output [B, H, T, K]: batch size B, H heads, T positions, and head width K.
        - gradients of q, k, v, pack_weights and log_decay, in order (None for inputs missing from the
          sample).
    """
    with torch.autocast(inputs.grad.device.type, enabled=False):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs[:-1]]
        q, k, v, pack_weights, log_decay = leaves
        output = implementation(q, k, k if v is None else v, pack_weights, log_decay=log_decay, **options)
        gradients = iter(torch.autograd.grad(output, [x for x in leaves if x is not None], inputs.grad))
    return (output, *(None if x is None else next(gradients) for x in leaves))
