"""Forms of causal attention on projected heads: Luna's, the ways in which it is computed elsewhere, and
softmax.
"""

import importlib.util
from functools import partial
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.benchmark import fused_softmax
from luna_fairseq.benchmark.heads import Problem, Shape, random_heads
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.modules.anchors import alibi_slopes
from luna_fairseq.ops.causal_luna import causal_luna, pack_weights


class Inputs(NamedTuple):
    """q, k, v and pack_k [B, H, T, K], pack_q [B, H, L, K], as projections leave them; v is k when they are
    tied.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    pack_k: Tensor
    pack_q: Tensor


def make_inputs(shape: Shape, length: int, settings: Settings) -> Problem:
    """Inputs that want gradients, and the gradient of the output [B, H, T, K]."""
    lengths = [length] * (4 if shape.tied else 5)
    *of_tokens, gradient, pack_q = random_heads([*lengths, shape.projection_length], shape, settings)
    q, k, *v, pack_k = (x.requires_grad_() for x in of_tokens)
    return Inputs(q, k, v[0] if v else k, pack_k, pack_q.requires_grad_()), gradient


def backend(inputs: Inputs, name: str, decay: bool = False) -> Tensor:
    """A form that the library offers; with ``decay`` it forgets, as fast as models do at the start."""
    weights = pack_weights(inputs.pack_q, inputs.pack_k, "softplus")
    rates = inputs.q.new_tensor(alibi_slopes(inputs.q.size(1))) if decay else None
    return causal_luna(inputs.q, inputs.k, inputs.v, weights, backend=name, rates=rates)


def two_passes(inputs: Inputs, prefix_products: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Causal attention around the softmax over P, by a function for x_t sum_{j<=t} y_j^T z_j."""
    dtype = torch.promote_types(inputs.q.dtype, torch.float32)
    weights = pack_weights(inputs.pack_q, inputs.pack_k, "softplus")
    q, k, v = (x.to(dtype) for x in inputs[:3])
    steps = torch.arange(1, q.size(2) + 1, dtype=dtype, device=q.device)[:, None]
    logits = prefix_products(q * q.size(-1) ** -0.5, k, weights) / steps
    return (prefix_products(logits.softmax(dim=-1), weights, v) / steps).to(inputs.q.dtype)


def loop(inputs: Inputs) -> Tensor:
    """A step of Python for every position, and in each pass a state that autograd keeps for each."""
    return two_passes(inputs, loop_over_positions)


def loop_over_positions(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x, y [B, H, T, M], z [B, H, T, N] -> [B, H, T, N]."""
    state = x.new_zeros(*x.shape[:2], y.size(-1), z.size(-1))
    rows = []
    for x_t, y_t, z_t in zip(*(a.unsqueeze(-2).unbind(dim=2) for a in (x, y, z))):
        state = state + y_t.transpose(-2, -1) * z_t
        rows.append(x_t @ state)
    return torch.cat(rows, dim=2)


def flash_linear_attention(inputs: Inputs) -> Tensor:
    """Each pass by flash-linear-attention's chunk kernel, without normalisation or decay; pack weights
    rounded.
    """
    return two_passes(inputs, partial(linear_attention, dtype=inputs.q.dtype))


def linear_attention(x: Tensor, y: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    """As :func:`loop_over_positions`; operands rounded to ``dtype`` for the kernel, the result float32."""
    from fla.ops.linear_attn import chunk_linear_attn

    operands = (a.to(dtype).transpose(1, 2) for a in (x, y, z))
    return chunk_linear_attn(*operands, scale=1.0, normalize=False)[0].transpose(1, 2).float()


def softmax(inputs: Inputs, kernel: Optional[str] = None) -> Tensor:
    """Causal softmax attention by one of torch's kernels."""
    return fused_softmax.sdpa(inputs.q, inputs.k, inputs.v, kernel, is_causal=True)


def why_no_triton(shape: Shape, settings: Settings) -> str:
    """Why the Triton form does not run, or nothing."""
    if not settings.device.startswith("cuda") or torch.cuda.get_device_capability(settings.device) < (8, 0):
        return "it needs an NVIDIA GPU of compute capability 8.0 or later"
    if shape.projection_length > 256 or shape.head_dim > 128 or shape.dtype == "float64":
        return "it takes l up to 256, K up to 128, and no float64"
    return ""


def why_no_fla(shape: Shape, settings: Settings) -> str:
    """Why flash-linear-attention does not run, or nothing."""
    if not settings.device.startswith("cuda"):
        return "flash-linear-attention needs a GPU"
    if importlib.util.find_spec("fla") is None:
        return "flash-linear-attention is not installed (pip install flash-linear-attention)"
    if shape.dtype not in ("bfloat16", "float16"):
        return "flash-linear-attention multiplies in TF32, which is not float32"
    return ""
