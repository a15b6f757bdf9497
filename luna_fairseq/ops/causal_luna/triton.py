"""Causal Luna attention on NVIDIA GPUs, with Triton kernels.

The kernels need compute capability 8.0 or later, or Triton's interpreter on a CPU. Triton is imported on
first use, so this module can be imported without Triton.
"""

import importlib.util
from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional

from luna_fairseq.ops.causal_luna.decay import cumulative_log_decay, decayed_counts
from luna_fairseq.ops.causal_luna.inputs import BLOCK_L, DERIVE_TWICE, count_steps
from luna_fairseq.ops.second_derivatives import refuse_second_derivatives

MAX_PACKED_LENGTH = 256
MAX_HEAD_WIDTH = 128
# Number of programs that keep a GPU busy, about three on each of 132 multiprocessors. A sequence is split
# into segments until there are this many programs, but into at most MAX_SEGMENTS, because a program loads the
# sums of all preceding segments.
PROGRAMS, MAX_SEGMENTS = 384, 32


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Return "" if the kernels support these inputs, otherwise the reason.

    A reason reads like "heads of 256 are wider than 128". K is the head width, and L the number of rows of P.
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it computes in float16, bfloat16 or float32, not {str(dtype).split('.')[-1]}"
    if K > MAX_HEAD_WIDTH:
        return f"heads of {K} are wider than {MAX_HEAD_WIDTH}"
    if L > MAX_PACKED_LENGTH:
        return f"packed length is above {MAX_PACKED_LENGTH}"
    return why_not_triton_here(device)


@lru_cache(maxsize=None)
def why_not_triton_here(device: torch.device) -> str:
    """Return "" if the kernels can be used on a device, otherwise the reason."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    if int(triton.__version__.split(".")[0]) < 3:
        return f"it needs triton 3.0 or later, not {triton.__version__}"
    from luna_fairseq.ops.causal_luna.triton_kernels import INTERPRETED

    if INTERPRETED.value:  # the interpreter takes tensors on any device
        return ""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"it needs an NVIDIA GPU, not device {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0 or later, not {capability[0]}.{capability[1]}"
    return ""


def triton_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    log_decay: Optional[Tensor] = None,
) -> Tensor:
    """Compute causal Luna attention with fused Triton kernels, with the arguments of :func:`causal_luna`.

    All sums are accumulated in float32. Products of two half-precision inputs are computed in half precision.
    Other products with half-precision inputs use tf32 (10 bits of fraction). Each product of float32 inputs
    uses three tf32 products, so that it matches float32 up to rounding. Inputs are copied if their strides
    differ from those of ``q``.

    Raises:
        ValueError: The device, the dtype or the sizes are not supported, q, k and v differ in dtype, or a
            mask has another shape than [B, L] or [B, T].
    """
    reason = why_not_triton(q.device, q.dtype, q.size(-1), pack_weights.size(-1))
    if reason:
        raise ValueError(
            f"The Triton form of causal Luna attention cannot be used here: {reason}. Use the backend chunk."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"Expected q, k and v of one dtype, got {q.dtype}, {k.dtype} and {v.dtype}.")
    for name, mask, length in (
        ("packed_padding_mask", packed_padding_mask, pack_weights.size(-1)),
        ("key_padding_mask", key_padding_mask, q.size(2)),
    ):
        shape = q.size(0), length
        if mask is not None and mask.shape != shape:  # the kernels would read other memory
            raise ValueError(f"Expected {name} of shape {shape}, got {tuple(mask.shape)}.")
    if q.numel() == 0:
        return q.clone()
    reciprocal = ages = None
    if log_decay is not None or key_padding_mask is not None:
        steps = count_steps(q, key_padding_mask)
        if log_decay is not None:
            steps = decayed_counts(log_decay.to(torch.float32), steps)
            ages = -cumulative_log_decay(log_decay, q, key_padding_mask)[..., 0].expand(q.shape[:3])
        reciprocal = steps.to(torch.float32).reciprocal()[..., 0].expand(q.shape[:3])
    masks = key_padding_mask, packed_padding_mask
    padding = (x if x is None else x.contiguous().view(torch.uint8) for x in masks)
    # A seed drawn on the device of q can be part of a CUDA graph, which redraws it at every
    # replay. It needs no synchronization, and activation checkpointing restores it.
    seed = torch.randint(2**62, (1,), device=q.device) if dropout > 0 else None
    v = None if v is k else v
    return CausalLunaFunction.apply(q, k, v, pack_weights, reciprocal, ages, *padding, seed, float(dropout))


def make_plan(heads: int, T: int, K: int, L: int) -> Dict[str, int]:
    """Choose how the kernels divide T positions of each of ``heads`` heads into chunks and segments.

    K is the head width, and L the number of rows of P. A program processes one segment, a run of chunks.

    Returns:
        Dictionary of sizes. Capital letters mark compile-time constants of the kernels.

        - BLOCK_T: number of positions in a chunk.
        - BLOCK_K: K rounded up to a power of two, at least 16.
        - WIDTH: L rounded up to a multiple of BLOCK_L, the number of rows of P in a block.
        - STATES: True if a head has several chunks, so that earlier chunks are summed in a state.
        - segments: number of segments of a head.
        - chunks: number of chunks in a segment.
        - rows: number of positions in all segments of a head, at least T.
        - states: number of elements in all states of a head, one state [BLOCK_K, WIDTH] for each segment.
    """
    # A sequence of one chunk needs no states. With more chunks, a chunk of 16 positions fits into registers.
    block_t = 32 if 16 < T <= 32 else 16
    total = -(-T // block_t)
    chunks = -(-total // min(max(1, PROGRAMS // heads), MAX_SEGMENTS))
    segments = -(-total // chunks)
    block_k, width = max(16, 1 << (K - 1).bit_length()), -(-L // BLOCK_L) * BLOCK_L
    sizes = {"rows": segments * chunks * block_t, "states": segments * block_k * width}
    blocks = {"BLOCK_T": block_t, "BLOCK_K": block_k, "WIDTH": width}
    return {**sizes, **blocks, "segments": segments, "chunks": chunks, "STATES": total > 1}


class CausalLunaFunction(torch.autograd.Function):
    """Autograd function of causal Luna attention that launches the Triton kernels.

    For the backward pass, it saves the inputs, the log-sum-exp of the logits, and the sums over each segment.
    """

    @staticmethod
    def forward(ctx, q, k, v, a, reciprocal, ages, padding, packed_padding, seed, dropout):
        """Compute the output [B, H, T, K] of causal Luna attention with Triton kernels.

        Shapes: batch size B, H heads of width K, T positions, L rows of the packed sequence P. q, k and v are
        queries, keys and values [B, H, T, K], and v is None if it is the same tensor as k. ``a`` are the pack
        weights [B, H, T, L]. ``reciprocal`` [B, H, T] is the reciprocal of the number of positions up to and
        including each position or, with decay, of the sum of their decay factors. ``ages`` [B, H, T] are the
        negative log decays accumulated since the start of the sequence. Either is None if it is not needed.
        The masks ``padding`` [B, T] and ``packed_padding`` [B, L] are True at padding and at masked rows of
        P. ``seed`` is the seed of the dropout mask as a tensor, and ``dropout`` the dropout probability.
        """
        from luna_fairseq.ops.causal_luna.triton_kernels import forward_kernel, segment_sums_kernel

        q, a = make_dense(q), make_dense(a)
        k, v = (match_strides(x, q) for x in (k, v))
        (B, H, T, K), L, sides = q.shape, a.size(-1), 1 if v is None else 2
        plan = make_plan(B * H, T, K, L)
        if reciprocal is not None:
            reciprocal = functional.pad(reciprocal, (0, plan["rows"] - T)).contiguous()
        ages, spans = relative_ages(plan, ages)
        ctx.numbers = dict(plan, H=H, T=T, K=K, L=L, SIDES=sides)
        ctx.numbers.update(dropout=dropout, boost=1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0)
        lse = sums = allocate(q, plan["rows"])  # with one segment, sums is a placeholder that is not read
        if plan["segments"] > 1:
            sums = allocate(q, plan["states"] * sides)
        tensors = dict(q=q, k=k, v=v, a=a, lse=lse, sums=sums, reciprocal=reciprocal, ages=ages, spans=spans)
        tensors.update(padding=padding, packed_padding=packed_padding, seed=seed)
        ctx.names = tuple(tensors)
        ctx.save_for_backward(*tensors.values())
        values = common_arguments(tensors, ctx.numbers)
        if sums is not lse:
            columns = min(plan["WIDTH"] & -plan["WIDTH"], 8192 // plan["BLOCK_K"])
            launch(segment_sums_kernel, values, plan["WIDTH"] // columns * sides, sums=sums, COLUMNS=columns)
        out = torch.empty_like(q)
        launch(forward_kernel, values, out=out)
        return out

    @staticmethod
    def backward(ctx, g):
        refuse_second_derivatives("Causal Luna attention", DERIVE_TWICE)
        from luna_fairseq.ops.causal_luna.triton_backward import key_gradient_kernel, query_gradient_kernel

        values = common_arguments(dict(zip(ctx.names, ctx.saved_tensors)), ctx.numbers)
        q, k, a, lse, ages = (values[name] for name in ("q", "k", "a", "lse", "ages"))
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        dv = dk if values["SIDES"] == 1 else torch.empty_like(k)
        da = torch.empty_like(a) if values["padding"] is None else torch.zeros_like(a)  # zero at padding
        # The first kernel stores these for the second kernel and for the gradients of 1/t and the ages.
        dlogits, used = (allocate(q, values["rows"] * values["WIDTH"], dtype=q.dtype) for _ in range(2))
        later_sums = allocate(q, values["states"] * 2) if values["STATES"] else lse
        reads, adds = (None if ages is None else torch.empty_like(lse) for _ in range(2))
        values.update(g=match_strides(g, q), dlogits=dlogits, used=used)
        launch(query_gradient_kernel, values, dq=dq, reads=reads, later_sums=later_sums)
        launch(key_gradient_kernel, values, sums=later_sums, dk=dk, dv=dv, da=da, adds=adds)
        grad_reciprocal = grad_ages = None
        if ages is not None:
            reads, adds, reciprocal = (x[..., : q.size(2)] for x in (reads, adds, values["reciprocal"]))
            grad_reciprocal, grad_ages = reads / reciprocal, (adds - reads).double()
        dv = None if dv is dk else dv
        return (dq, dk, dv, da, grad_reciprocal, grad_ages, None, None, None, None)


def relative_ages(plan: Dict[str, int], ages: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """Compute the negative log decay ("age") since the start of each chunk, and over each segment.

    ``ages`` [B, H, T], for B examples, H heads and T positions, are accumulated since the start of the
    sequence. ``plan``, the result of :func:`make_plan`, divides positions into chunks and segments. Return
    the age of each position in its chunk, and the age over each segment. Both are None without decay.
    """
    if ages is None:
        return None, None
    ages = functional.pad(ages, (1, 0))
    ages = functional.pad(ages, (0, plan["rows"] + 1 - ages.size(-1)), mode="replicate")
    length = plan["BLOCK_T"]
    chunks = ages[..., 1:].unflatten(-1, (-1, length)) - ages[..., :-1:length, None]
    return chunks.flatten(2).float(), ages[..., :: plan["chunks"] * length].diff().float()


def make_dense(x: Tensor) -> Tensor:
    """Return ``x`` if it is dense in memory with a contiguous last dimension, otherwise a contiguous copy."""
    return x if x.stride(-1) == 1 and torch.empty_like(x).stride() == x.stride() else x.contiguous()


def match_strides(x: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    """Return ``x`` with the strides of ``q``, as a copy if needed. Return None if ``x`` is None."""
    if x is None or all(n == 1 or i == j for n, i, j in zip(x.shape, x.stride(), q.stride())):
        return x
    return torch.empty_like(q).copy_(x)


def common_arguments(tensors: Dict[str, Any], numbers: Dict[str, Any]) -> Dict[str, Any]:
    """Return the arguments that the kernels share, as a dictionary from name to value.

    These are the given ``tensors`` and ``numbers``, the strides of q and of the pack weights a, the precision
    of matrix products, and scratch memory for states.
    """
    q, k, v, a = (tensors[name] for name in "qkva")
    values = {**numbers, **tensors, "v": k if v is None else v}
    values.update(zip(("x_b", "x_h", "x_t", "", "a_b", "a_h", "a_t"), (*q.stride(), *a.stride())))
    values["PRECISION"] = "tf32x3" if q.dtype == torch.float32 else "tf32"
    # States that exceed the registers are stored in scratch memory. Otherwise the argument is a placeholder.
    needs_scratch = values["STATES"] and values["WIDTH"] > BLOCK_L
    return dict(values, scratch=allocate(q, values["states"] * 2) if needs_scratch else q)


def allocate(q: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Allocate an uninitialized tensor [B, H, size] for q [B, H, T, K]."""
    return q.new_empty(*q.shape[:2], size, dtype=dtype)


def launch(kernel: Any, values: Dict[str, Any], blocks: int = 1, **more: Any) -> None:
    """Launch a Triton kernel with ``blocks`` programs for each segment of each head.

    ``values`` and ``more`` map argument names to values. Names that the kernel does not take are ignored.
    """
    values = {**values, **more}
    q = values["q"]
    grid = (q.size(0) * q.size(1) * values["segments"], blocks)
    with torch.cuda.device_of(q):
        kernel[grid](*(values[name] for name in kernel.arg_names), **choose_compile_options(values))


def choose_compile_options(values: Dict[str, Any]) -> Dict[str, int]:
    """Return the options ``num_warps``, ``num_stages`` and ``maxnreg`` with which Triton compiles a kernel.

    The options depend on the sizes L and BLOCK_K in ``values``, a dictionary of the kernel's arguments.
    """
    wide = values["BLOCK_K"] > 64
    few, warps = values["L"] <= 32 and not wide, 8 if wide and values["L"] > 32 else 4
    return {"num_warps": warps, "num_stages": 1, "maxnreg": 168 if few else 254 if wide else 248}
