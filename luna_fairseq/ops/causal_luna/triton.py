"""Causal Luna attention in Triton: NVIDIA GPUs of compute capability 8.0 and later, or Triton's interpreter
on a CPU.

Triton is imported when it is first needed, so that this module can be imported where there is none.
"""

import importlib.util
from functools import lru_cache
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from luna_fairseq.ops.causal_luna.decay import cumulative_log_decay, decayed_counts
from luna_fairseq.ops.causal_luna.inputs import BLOCK_L, count_steps

MAX_PACKED_LENGTH = 256
MAX_HEAD_WIDTH = 128
# A sequence is cut into no more segments than keep this many programs busy: some three on each of 132
# multiprocessors. A program reads the sums of all segments before its own: no more than MAX_SEGMENTS.
PROGRAMS, MAX_SEGMENTS = 384, 32


def why_not_triton(device: torch.device, dtype: torch.dtype, K: int, L: int) -> str:
    """Why :func:`triton_causal_luna` does not take heads of K and L rows of P, in a few words; empty if it
    does."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it computes in float16, bfloat16 or float32, not {str(dtype).split('.')[-1]}"
    if K > MAX_HEAD_WIDTH:
        return f"heads of {K} are wider than {MAX_HEAD_WIDTH}"
    if L > MAX_PACKED_LENGTH:
        return f"packed length is above {MAX_PACKED_LENGTH}"
    return why_not_triton_here(device)


@lru_cache(maxsize=None)
def why_not_triton_here(device: torch.device) -> str:
    """The part of :func:`why_not_triton` that depends on the machine alone."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    if int(triton.__version__.split(".")[0]) < 3:
        return f"it needs triton 3.0 or later, not {triton.__version__}"
    from luna_fairseq.ops.causal_luna.triton_kernels import INTERPRETED

    if INTERPRETED.value:  # tensors of any device
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
    """What :func:`naive_causal_luna` defines, in fused kernels. Returns [B, H, T, K] in the type of ``q``.

    Args:
        q, k, v: [B, H, T, K], float16, bfloat16 or float32, K at most 128; of one layout in memory, without
            gaps, or it costs a copy. Where ``v`` is ``k`` itself (tied), it is read once
        pack_weights: [B, H, T, L], L at most 256; any layout, the last dimension dense or it costs a copy
        packed_padding_mask: [B, L], True at rows of P that are left out
        key_padding_mask: [B, T], True at padded positions
        dropout: probability with which an unpack weight is dropped
        log_decay: of each head per position [H], below 0; None where nothing decays

    Sums are float32. Products of half-precision inputs with other numbers use the tensor cores' tf32 (10 bits
    of fraction), those of float32 inputs three tf32 products each, which is float32 to rounding.

    Raises:
        ValueError: something that :func:`why_not_triton` names, or q, k, v of different types
    """
    reason = why_not_triton(q.device, q.dtype, q.size(-1), pack_weights.size(-1))
    if reason:
        raise ValueError(
            f"The Triton form of causal Luna attention cannot be used here: {reason}. Use the backend chunk."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one type, not {q.dtype}, {k.dtype} and {v.dtype}")
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
    # Drawn on q's device: unlike a number from the CPU's generator it can be captured in a CUDA graph and
    # drawn anew at every replay, it never waits for the device, and activation checkpointing restores it.
    seed = torch.randint(2**62, (1,), device=q.device) if dropout > 0 else None
    given = (reciprocal, ages, *padding, seed, float(dropout))
    return CausalLunaFunction.apply(q, k, None if v is k else v, pack_weights, *given)


def make_plan(heads: int, T: int, K: int, L: int) -> Dict[str, int]:
    """How the kernels cut the work on ``heads`` (B H) heads of T positions (see triton_kernels.py), by the
    names of their arguments: positions of a chunk and padded K, powers of two; L up to the end of the last
    block of BLOCK_L; segments of each head, which keep a GPU busy; chunks of each segment. And of a head its
    ``rows``, positions of all chunks, and the size of the ``states`` of its segments."""
    # One chunk needs no states; of several each of 16 positions fits into registers.
    block_t = 32 if 16 < T <= 32 else 16
    total = -(-T // block_t)
    chunks = -(-total // min(max(1, PROGRAMS // heads), MAX_SEGMENTS))
    segments = -(-total // chunks)
    block_k, width = max(16, 1 << (K - 1).bit_length()), -(-L // BLOCK_L) * BLOCK_L
    sizes = {"rows": segments * chunks * block_t, "states": segments * block_k * width}
    blocks = {"BLOCK_T": block_t, "BLOCK_K": block_k, "WIDTH": width}
    return {**sizes, **blocks, "segments": segments, "chunks": chunks, "STATES": total > 1}


class CausalLunaFunction(torch.autograd.Function):
    """The kernels in a row. ``v`` is None where it is ``k``; 1/t and ages [B, H, T], padding of positions
    [B, T] and of P [B, L], dropout's seed [1], or None. Keeps the inputs, the logarithm of the softmax's
    denominator, and the sums of the segments where there are several."""

    @staticmethod
    def forward(ctx, q, k, v, a, reciprocal, ages, padding, packed_padding, seed, dropout):
        from luna_fairseq.ops.causal_luna.triton_kernels import forward_kernel, segment_sums_kernel

        q, a = dense(q), dense(a)
        k, v = (as_laid_out(x, q) for x in (k, v))
        (B, H, T, K), L, sides = q.shape, a.size(-1), 1 if v is None else 2
        plan = make_plan(B * H, T, K, L)
        if reciprocal is not None:
            reciprocal = functional.pad(reciprocal, (0, plan["rows"] - T)).contiguous()
        ages, spans = ages_of_parts(plan, ages)
        ctx.numbers = dict(plan, H=H, T=T, K=K, L=L, SIDES=sides)
        ctx.numbers.update(dropout=dropout, boost=1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0)
        lse = sums = memory(q, plan["rows"])  # of one segment there are no sums, and nothing is read
        if plan["segments"] > 1:
            sums = memory(q, plan["states"] * sides)
        tensors = dict(q=q, k=k, v=v, a=a, lse=lse, sums=sums, reciprocal=reciprocal, ages=ages, spans=spans)
        tensors.update(padding=padding, packed_padding=packed_padding, seed=seed)
        ctx.names = tuple(tensors)
        ctx.save_for_backward(*tensors.values())
        values = arguments(tensors, ctx.numbers)
        if sums is not lse:
            columns = min(plan["WIDTH"] & -plan["WIDTH"], 8192 // plan["BLOCK_K"])
            launch(segment_sums_kernel, values, plan["WIDTH"] // columns * sides, sums=sums, COLUMNS=columns)
        out = torch.empty_like(q)
        launch(forward_kernel, values, out=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        from luna_fairseq.ops.causal_luna.triton_backward import key_gradient_kernel, query_gradient_kernel

        values = arguments(dict(zip(ctx.names, ctx.saved_tensors)), ctx.numbers)
        q, k, a, lse, ages = (values[name] for name in ("q", "k", "a", "lse", "ages"))
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        dv = dk if values["SIDES"] == 1 else torch.empty_like(k)
        da = torch.empty_like(a) if values["padding"] is None else torch.zeros_like(a)  # zero at padding
        # What the kernels leave to each other and to 1/t and ages.
        dlogits, used = (memory(q, values["rows"] * values["WIDTH"], dtype=q.dtype) for _ in range(2))
        later_sums = memory(q, values["states"] * 2) if values["STATES"] else lse
        reads, adds = (None if ages is None else torch.empty_like(lse) for _ in range(2))
        values.update(g=as_laid_out(g, q), dlogits=dlogits, used=used)
        launch(query_gradient_kernel, values, dq=dq, reads=reads, later_sums=later_sums)
        launch(key_gradient_kernel, values, sums=later_sums, dk=dk, dv=dv, da=da, adds=adds)
        of_times = [None, None]
        if ages is not None:
            reads, adds, reciprocal = (x[..., : q.size(2)] for x in (reads, adds, values["reciprocal"]))
            of_times = [reads / reciprocal, (adds - reads).double()]
        return (dq, dk, None if dv is dk else dv, da, *of_times, None, None, None, None)


def ages_of_parts(plan: Dict[str, int], ages: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """Ages [B, H, T] since the beginning of each row's chunk [B, H, rows], and of whole segments [B, H,
    segments]; nothing ages after T."""
    if ages is None:
        return None, None
    ages = functional.pad(ages, (1, 0))
    ages = functional.pad(ages, (0, plan["rows"] + 1 - ages.size(-1)), mode="replicate")
    length = plan["BLOCK_T"]
    chunks = ages[..., 1:].unflatten(-1, (-1, length)) - ages[..., :-1:length, None]
    return chunks.flatten(2).float(), ages[..., :: plan["chunks"] * length].diff().float()


def dense(x: Tensor) -> Tensor:
    """``x`` without gaps in memory, its last dimension dense: as the kernels read it."""
    return x if x.stride(-1) == 1 and torch.empty_like(x).stride() == x.stride() else x.contiguous()


def as_laid_out(x: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    """``x`` laid out in memory as ``q`` is: as all that is [B, H, T, K]."""
    if x is None or all(n == 1 or i == j for n, i, j in zip(x.shape, x.stride(), q.stride())):
        return x
    return torch.empty_like(q).copy_(x)


def arguments(tensors: Dict[str, Any], numbers: Dict[str, Any]) -> Dict[str, Any]:
    """What the kernels have in common, by the names of their arguments."""
    q, k, v, a = (tensors[name] for name in "qkva")
    values = {**numbers, **tensors, "v": k if v is None else v}
    values.update(zip(("x_b", "x_h", "x_t", "", "a_b", "a_h", "a_t"), (*q.stride(), *a.stride())))
    values["PRECISION"] = "tf32x3" if q.dtype == torch.float32 else "tf32"
    # Where states lie that are not kept in registers; anything where there are none.
    stored = values["STATES"] and values["WIDTH"] > BLOCK_L
    return dict(values, scratch=memory(q, values["states"] * 2) if stored else q)


def memory(q: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of each head: [B, H, size]."""
    return q.new_empty(*q.shape[:2], size, dtype=dtype)


def launch(kernel: Any, values: Dict[str, Any], blocks: int = 1, **more: Any) -> None:
    """One of the kernels, with those of the values that it has arguments for."""
    values = {**values, **more}
    q = values["q"]
    grid = (q.size(0) * q.size(1) * values["segments"], blocks)
    with torch.cuda.device_of(q):
        kernel[grid](*(values[name] for name in kernel.arg_names), **tuning(values))


def tuning(values: Dict[str, Any]) -> Dict[str, int]:
    """How the kernels are compiled: with so many registers of a thread that three programs fit on a
    multiprocessor where that spills none, else two. Not told so, NVIDIA's assembler gives some kernels 32,
    and of 255 it spills some."""
    wide = values["BLOCK_K"] > 64
    few, warps = values["L"] <= 32 and not wide, 8 if wide and values["L"] > 32 else 4
    return {"num_warps": warps, "num_stages": 1, "maxnreg": 168 if few else 254 if wide else 248}
