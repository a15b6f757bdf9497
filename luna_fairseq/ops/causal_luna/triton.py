"""Causal Luna attention in Triton: NVIDIA GPUs of compute capability 8.0 and later, or Triton's interpreter
on a CPU.

Triton is imported when it is first needed, so that this module can be imported where there is none.
"""

import importlib.util
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from luna_fairseq.ops.causal_luna.decay import cumulative_log_decay, decayed_counts
from luna_fairseq.ops.causal_luna.inputs import count_steps

MAX_PACKED_LENGTH = 256
MAX_HEAD_WIDTH = 128
# A sequence is cut into no more segments than keep this many programs busy: some three on each of 132
# multiprocessors. A program reads the sums of all segments before its own: no more than MAX_SEGMENTS.
PROGRAMS, MAX_SEGMENTS = 384, 32
BLOCK_L = 16  # rows of P at a time


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
    if interpreted():
        return ""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"it needs an NVIDIA GPU, not device {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0 or later, not {capability[0]}.{capability[1]}"
    return ""


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter (TRITON_INTERPRET=1), which takes tensors of any
    device."""
    from triton import JITFunction

    from luna_fairseq.ops.causal_luna.triton_kernels import forward_kernel

    return not isinstance(forward_kernel, JITFunction)


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
            f"the Triton form of causal Luna attention can't be used: {reason}; choose the backend chunk"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one type, not {q.dtype}, {k.dtype} and {v.dtype}")
    if q.numel() == 0:
        return q.clone()
    reciprocal = ages = None
    if log_decay is not None or key_padding_mask is not None:
        steps = count_steps(q, key_padding_mask)
        if log_decay is not None:
            log_decay = log_decay.to(torch.float32)
            steps = decayed_counts(log_decay, steps)
            ages = -cumulative_log_decay(log_decay, q, key_padding_mask)[..., 0].expand(q.shape[:3])
        reciprocal = steps.to(torch.float32).reciprocal()[..., 0].expand(q.shape[:3])
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask.contiguous().view(torch.uint8)
    if packed_padding_mask is not None:
        packed_padding_mask = packed_padding_mask.contiguous().view(torch.uint8)
    seed = None
    if dropout > 0:
        # Drawn on q's device: unlike a number from the CPU's generator it can be captured in a CUDA graph and
        # drawn anew at every replay, it never waits for the device, and activation checkpointing restores it.
        seed = torch.randint(2**62, (1,), device=q.device)
    given = (reciprocal, ages, key_padding_mask, packed_padding_mask, seed)
    return CausalLunaFunction.apply(q, k, None if v is k else v, pack_weights, *given, float(dropout))


class Plan(NamedTuple):
    """How the kernels cut their work: see triton_kernels.py.

    Attributes:
        block_t, block_k: positions of a chunk, padded K; powers of two
        width: L up to the end of the last block of BLOCK_L
        segments: of each head
        chunks: of each segment
    """

    block_t: int
    block_k: int
    width: int
    segments: int
    chunks: int

    @property
    def rows(self) -> int:
        """Positions of all chunks."""
        return self.segments * self.chunks * self.block_t


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` and 16, the least side of a block in a matrix
    product."""
    return max(16, 1 << (n - 1).bit_length())


def make_plan(heads: int, T: int, K: int, L: int) -> Plan:
    """Blocks for ``heads`` (B H) heads of T positions, in segments that keep a GPU busy."""
    # One chunk needs no states; of several each of 16 positions fits into registers.
    block_t = next_power_of_two(T) if T <= 32 else 16
    chunks = -(-T // block_t)
    per_segment = -(-chunks // min(max(1, PROGRAMS // heads), MAX_SEGMENTS))
    width = -(-L // BLOCK_L) * BLOCK_L
    return Plan(block_t, next_power_of_two(K), width, -(-chunks // per_segment), per_segment)


class CausalLunaFunction(torch.autograd.Function):
    """The kernels in a row. ``v`` is None where it is ``k``; ``given``: 1/t and ages [B, H, T], padding of
    positions [B, T] and of P [B, L], dropout's seed [1], or None. Keeps the inputs, the logarithm of the
    softmax's denominator, and the sums of the segments where there are several."""

    @staticmethod
    def forward(ctx, q, k, v, a, reciprocal, ages, padding, packed_padding, seed, dropout):
        from luna_fairseq.ops.causal_luna.triton_kernels import forward_kernel, segment_sums_kernel

        q, a = dense(q), dense(a)
        k, v = (as_laid_out(x, q) for x in (k, v))
        plan = make_plan(q.size(0) * q.size(1), *q.shape[2:], a.size(-1))
        if reciprocal is not None:
            reciprocal = functional.pad(reciprocal, (0, plan.rows - q.size(2))).contiguous()
        given = [reciprocal, *ages_of_parts(plan, ages), padding, packed_padding, seed]
        values = arguments(plan, q, k, v, a, given, dropout)
        out, lse = torch.empty_like(q), memory(q, plan.rows)
        sums = lse  # of one segment there are none, and nothing is read
        if plan.segments > 1:
            sums = memory(q, plan.segments, values["SIDES"], plan.block_k, plan.width)
            block_l = min(plan.width & -plan.width, 4096 // plan.block_k)
            launch(segment_sums_kernel, values, plan.width // block_l, sums=sums, BLOCK_L=block_l)
        launch(forward_kernel, values, out=out, lse=lse, sums=sums, scratch=scratch(plan, values))
        ctx.save_for_backward(q, k, v, a, *given, sums, lse)
        ctx.dropout = dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        from luna_fairseq.ops.causal_luna.triton_backward import key_gradient_kernel, query_gradient_kernel

        q, k, v, a, *given, sums, lse = ctx.saved_tensors
        reciprocal, ages, _, padding, *_ = given
        plan = make_plan(q.size(0) * q.size(1), *q.shape[2:], a.size(-1))
        values = arguments(plan, q, k, v, a, given, ctx.dropout)
        values.update(g=as_laid_out(g, q), lse=lse, sums=sums, scratch=scratch(plan, values))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), None if v is None else torch.empty_like(v)
        da = torch.empty_like(a) if padding is None else torch.zeros_like(a)  # zero at padding
        # What the kernels leave to each other and to 1/t and ages.
        dlogits, used = (memory(q, plan.rows, plan.width, dtype=q.dtype) for _ in range(2))
        later_sums = memory(q, plan.segments, 2, plan.block_k, plan.width) if values["STATES"] else lse
        reads, adds = (None if ages is None else torch.empty_like(lse) for _ in range(2))
        values.update(dlogits=dlogits, used=used)
        launch(query_gradient_kernel, values, dq=dq, reads=reads, later_sums=later_sums)
        launch(
            key_gradient_kernel, values, sums=later_sums, dk=dk, dv=dk if v is None else dv, da=da, adds=adds
        )
        of_times = [None, None]
        if ages is not None:
            reads, adds, reciprocal = (x[..., : q.size(2)] for x in (reads, adds, reciprocal))
            of_times = [reads / reciprocal, (adds - reads).double()]
        return (dq, dk, dv, da, *of_times, None, None, None, None)


def ages_of_parts(plan: Plan, ages: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """Ages [B, H, T] since the beginning of each row's chunk [B, H, rows], and of whole segments [B, H,
    segments]; nothing ages after T."""
    if ages is None:
        return None, None
    ages = functional.pad(ages, (1, 0))
    ages = functional.pad(ages, (0, plan.rows + 1 - ages.size(-1)), mode="replicate")
    chunks = ages[..., 1:].unflatten(-1, (-1, plan.block_t)) - ages[..., : -1 : plan.block_t, None]
    return chunks.flatten(2).float(), ages[..., :: plan.chunks * plan.block_t].diff().float()


def dense(x: Tensor) -> Tensor:
    """``x`` without gaps in memory, its last dimension dense: as the kernels read it."""
    return x if x.stride(-1) == 1 and torch.empty_like(x).stride() == x.stride() else x.contiguous()


def as_laid_out(x: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    """``x`` laid out in memory as ``q`` is: as all that is [B, H, T, K]."""
    if x is None or all(n == 1 or i == j for n, i, j in zip(x.shape, x.stride(), q.stride())):
        return x
    return torch.empty_like(q).copy_(x)


def arguments(
    plan: Plan, q: Tensor, k: Tensor, v: Optional[Tensor], a: Tensor, given: Sequence[Optional[Tensor]],
    dropout: float,
) -> Dict[str, Any]:  # fmt: skip
    """What the kernels have in common, by the names of their arguments; ``given`` as of the function, its
    ages in their two parts."""
    _, H, T, K = q.shape
    names = ("reciprocal", "ages", "spans", "padding", "packed_padding", "seed")
    values = dict(zip(names, given), q=q, k=k, v=k if v is None else v, a=a, dropout=dropout, scale=K**-0.5)
    values.update(zip(("x_b", "x_h", "x_t", "", "a_b", "a_h", "a_t"), (*q.stride(), *a.stride())))
    return {
        **dict(values, boost=1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0),
        **dict(T=T, H=H, segments=plan.segments, chunks=plan.chunks, K=K, L=a.size(-1)),
        **dict(SIDES=1 if v is None else 2, STATES=plan.segments * plan.chunks > 1),
        **dict(BLOCK_T=plan.block_t, BLOCK_K=plan.block_k, BLOCK_L=BLOCK_L, WIDTH=plan.width),
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
    }


def memory(q: Tensor, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of each head: [B, H, ..]."""
    return q.new_empty(*q.shape[:2], *size, dtype=dtype)


def scratch(plan: Plan, values: Dict[str, Any]) -> Tensor:
    """Where states lie that are not kept in registers; anything where there are none."""
    if plan.width == BLOCK_L or not values["STATES"]:
        return values["q"]
    return memory(values["q"], plan.segments, 2, plan.block_k, plan.width)


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
