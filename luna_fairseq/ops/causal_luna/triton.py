"""Causal Luna attention in Triton: NVIDIA GPUs of compute capability 8.0 and later, or Triton's interpreter
on a CPU.

Triton is imported when it is first needed, so that this module can be imported where there is none.
"""

import importlib.util
from functools import lru_cache
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from luna_fairseq.ops.causal_luna.decay import decayed_counts, find_ages
from luna_fairseq.ops.causal_luna.naive import count_steps

MAX_PACKED_LENGTH = 256
MAX_HEAD_WIDTH = 128
# A sequence is cut into no more segments than keep this many programs busy: some four on each of 132
# multiprocessors.
PROGRAMS = 512
# States [K, L] up to this many numbers are carried in registers through the chunks of a segment.
MAX_CARRIED_STATE = 2048
SCAN_BLOCK = 1024
# Of a thread: as many as 8 warps can have. Not told so, NVIDIA's assembler gives some of the kernels that run
# through several chunks 32 on an A100, and keeps everything else in memory.
MAX_REGISTERS = 255


def triton_suits(q: Tensor, pack_weights: Tensor) -> bool:
    """Whether :func:`triton_causal_luna` takes q [B, H, T, K] and pack_weights [B, H, T, L] on this
    machine."""
    return not why_not_triton(q, pack_weights)


def why_not_triton(q: Tensor, pack_weights: Tensor) -> str:
    """Why :func:`triton_causal_luna` does not take these tensors, in a few words; empty if it does."""
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it computes in float16, bfloat16 or float32, not {str(q.dtype).split('.')[-1]}"
    if q.size(-1) > MAX_HEAD_WIDTH:
        return f"heads of {q.size(-1)} are wider than {MAX_HEAD_WIDTH}"
    if pack_weights.size(-1) > MAX_PACKED_LENGTH:
        return f"packed length {pack_weights.size(-1)} is above {MAX_PACKED_LENGTH}"
    return why_not_triton_here(q.device)


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
    rates: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_causal_luna` defines, in fused kernels. Returns [B, H, T, K] in the type of ``q``.

    Args:
        q, k, v: [B, H, T, K], float16, bfloat16 or float32, K at most 128; any strides, the last one 1 or it
            costs a copy
        pack_weights: [B, H, T, L], L at most 256
        packed_padding_mask: [B, L], True at rows of P that are left out
        key_padding_mask: [B, T], True at padded positions
        dropout: probability with which an unpack weight is dropped
        rates: how fast each head forgets, per position [H]; None where it does not

    Sums are float32. Products of half-precision inputs with other numbers use the tensor cores' tf32 (10 bits
    of fraction), those of float32 inputs three tf32 products each, which is float32 to rounding.

    Raises:
        ValueError: something that :func:`why_not_triton` names, or q, k, v of different types
    """
    reason = why_not_triton(q, pack_weights)
    if reason:
        raise ValueError(
            f"the Triton form of causal Luna attention can't be used: {reason}; choose the backend chunk"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one type, not {q.dtype}, {k.dtype} and {v.dtype}")
    if q.numel() == 0:
        return q.clone()
    reciprocal = ages = None
    if rates is not None or key_padding_mask is not None:
        steps = count_steps(q, key_padding_mask)
        if rates is not None:
            rates = rates.to(torch.float32)
            steps, ages = decayed_counts(rates, steps), find_ages(rates, q, key_padding_mask)[..., 0]
        reciprocal = steps.to(torch.float32).reciprocal()[..., 0]
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask.contiguous().view(torch.uint8)
    if packed_padding_mask is not None:
        packed_padding_mask = packed_padding_mask.contiguous().view(torch.uint8)
    seed = None
    if dropout > 0:
        # Drawn on q's device: unlike a number from the CPU's generator it can be captured in a CUDA graph and
        # drawn anew at every replay, it never waits for the device, and activation checkpointing restores it.
        seed = torch.randint(2**62, (1,), device=q.device)
    given = (reciprocal, ages, key_padding_mask, packed_padding_mask)
    return CausalLunaFunction.apply(q, k, v, pack_weights, *given, seed, float(dropout))


class Plan(NamedTuple):
    """How the kernels cut their work: see triton_kernels.py.

    Attributes:
        block_t, block_k, block_l: positions of a chunk, padded K, rows of P at a time; powers of two
        segments: of each head
        chunks: of each segment
        carry: states stay in registers from chunk to chunk
        warps: of a program
        stages: depth of the software pipeline
    """

    block_t: int
    block_k: int
    block_l: int
    segments: int
    chunks: int
    carry: bool
    warps: int
    stages: int


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n`` and 16, the least side of a block in a matrix
    product."""
    return max(16, 1 << (n - 1).bit_length())


def make_plan(heads: int, T: int, K: int, L: int, itemsize: int) -> Plan:
    """Blocks for ``heads`` (B H) heads of T positions of ``itemsize`` bytes a number, in segments that keep a
    GPU busy."""
    block_k = next_power_of_two(K)
    block_l = min(next_power_of_two(L), 32)
    carry = T > 32 and L <= block_l and block_k * block_l <= MAX_CARRIED_STATE
    # States that go through memory are its main traffic: the longer the chunks the less of it, while
    # registers last.
    block_t = min(next_power_of_two(T), 32 if carry or block_k > 64 else 64)
    chunks = -(-T // block_t)
    per_segment = min(chunks, max(1, heads * chunks // PROGRAMS)) if carry else 1
    small = carry and block_k * itemsize <= 128
    # Stages buffer the next chunk's loads in shared memory, of which some GPUs have 99 KiB: only where blocks
    # are small.
    stages = 3 if carry and block_k * itemsize <= 256 else 1
    return Plan(
        block_t, block_k, block_l, -(-chunks // per_segment), per_segment, carry, 4 if small else 8, stages
    )


class CausalLunaFunction(torch.autograd.Function):
    """The kernels in a row. Keeps the inputs alone, and the states of the segments where those are smaller
    than q."""

    @staticmethod
    def forward(ctx, q, k, v, pack_weights, reciprocal, ages, padding, packed_padding, seed, dropout):
        q, k, v, a = (unit_stride(x) for x in (q, k, v, pack_weights))
        given = Given(
            *(x if x is None else x.contiguous() for x in (reciprocal, ages)), padding, packed_padding
        )
        plan = make_plan(q.size(0) * q.size(1), *q.shape[2:], a.size(-1), q.element_size())
        with torch.cuda.device_of(q):
            states = prefix_states(plan, k, v, a, given)
            out = launch_forward(plan, q, k, v, a, states, given, seed, dropout)
        keep = states is not None and states.numel() * states.element_size() <= q.numel() * q.element_size()
        ctx.save_for_backward(q, k, v, a, states if keep else None, *given, seed)
        ctx.plan, ctx.dropout = plan, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, a, states, *given, seed = ctx.saved_tensors
        given = Given(*given)
        with torch.cuda.device_of(q):
            if states is None:
                states = prefix_states(ctx.plan, k, v, a, given)
            *gradients, reads, adds = launch_backward(
                ctx.plan, q, k, v, a, unit_stride(g), states, given, seed, ctx.dropout
            )
        of_reciprocal = of_ages = None
        if given.ages is not None:
            of_reciprocal = reads.sum_to_size(given.reciprocal.shape) / given.reciprocal
            of_ages = (adds - reads).to(given.ages.dtype).sum_to_size(given.ages.shape)
        return (*gradients, of_reciprocal, of_ages, None, None, None, None)


class Given(NamedTuple):
    """What the kernels read besides q, k, v and pack weights; None where it is not there.

    Attributes:
        reciprocal: 1/t [B, 1, T], or with ages [1 or B, H, T]; not needed without padding or ages
        ages: see :func:`find_ages` [1 or B, H, T]
        padding: [B, T]
        packed_padding: of P [B, L]
    """

    reciprocal: Optional[Tensor]
    ages: Optional[Tensor]
    padding: Optional[Tensor]
    packed_padding: Optional[Tensor]


def unit_stride(x: Tensor) -> Tensor:
    """``x`` with its last dimension dense, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def prefix_states(plan: Plan, k: Tensor, v: Tensor, a: Tensor, given: Given) -> Optional[Tensor]:
    """What comes before each segment [B H, segments, 2, K, L] in float32; None for a single segment."""
    if plan.segments == 1:
        return None
    from luna_fairseq.ops.causal_luna.triton_kernels import segment_sums_kernel

    B, H, T, K = k.shape
    L = a.size(-1)
    states = k.new_empty((B * H, plan.segments, 2, K, L), dtype=torch.float32)
    segment_sums_kernel[(B * H * plan.segments * -(-L // plan.block_l),)](
        k, v, a, states, *pointers(k, given.ages, given.padding), T, H, plan.segments, plan.chunks,
        *strides(k, v, a), K=K, L=L, **time_flags(given), **blocks(plan, k),
    )  # fmt: skip
    scan(states, plan, k, given, reverse=False)
    return states


def scan(states: Tensor, plan: Plan, k: Tensor, given: Given, reverse: bool) -> None:
    """Exclusive sums over the segments, in place."""
    from luna_fairseq.ops.causal_luna.triton_kernels import exclusive_scan_kernel

    size = states[0, 0].numel()
    exclusive_scan_kernel[(len(states) * -(-size // SCAN_BLOCK),)](
        states, *pointers(k, given.ages), plan.segments, k.size(2), k.size(1), plan.chunks * plan.block_t,
        SIZE=size, REVERSE=reverse, **time_flags(given), BLOCK=SCAN_BLOCK,
    )  # fmt: skip


def time_flags(given: Given) -> dict:
    """What decides where 1/t and ages stand."""
    return {"HAS_PADDING": given.padding is not None, "FADES": given.ages is not None}


def launch_forward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, a: Tensor, states: Optional[Tensor], given: Given,
    seed: Optional[Tensor], dropout: float,
) -> Tensor:  # fmt: skip
    """The output [B, H, T, K], laid out in memory as ``q`` is."""
    from luna_fairseq.ops.causal_luna.triton_kernels import forward_kernel

    out = torch.empty_like(q)
    B, H, T, K = q.shape
    forward_kernel[(B * H * plan.segments,)](
        q, k, v, a, out, *pointers(q, states, *given, seed), dropout, boost(dropout), K**-0.5,
        T, H, plan.segments, plan.chunks, *strides(q, k, v, a, out), K=K, L=a.size(-1),
        HAS_PACKED_PADDING=given.packed_padding is not None, HAS_DROPOUT=seed is not None,
        **flags(plan, q, states, given), **blocks(plan, q),
    )  # fmt: skip
    return out


def launch_backward(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, a: Tensor, g: Tensor, states: Optional[Tensor], given: Given,
    seed: Optional[Tensor], dropout: float,
) -> Tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v [B, H, T, K] and pack weights [B, H, T, L], each laid out as what it belongs to;
    with ages, reads and adds [B, H, T], else None."""
    from luna_fairseq.ops.causal_luna.triton_backward import key_gradient_kernel, query_gradient_kernel

    B, H, T, K = q.shape
    L = a.size(-1)
    dq, dk, dv, da = (torch.empty_like(x) for x in (q, k, v, a))
    d, w = (q.new_empty((B * H, T, L), dtype=torch.float32) for _ in range(2))
    suffix = None if states is None else torch.empty_like(states)
    reads, adds = (
        None if given.ages is None else q.new_empty((B, H, T), dtype=torch.float32) for _ in range(2)
    )
    options = {**flags(plan, q, states, given), **blocks(plan, q)}
    grid = (B * H * plan.segments,)
    query_gradient_kernel[grid](
        q, k, v, a, g, dq, d, w, *pointers(q, reads, states, suffix, *given, seed), dropout, boost(dropout),
        K**-0.5, T, H, plan.segments, plan.chunks, *strides(q, k, v, a, g, dq),
        K=K, L=L, HAS_PACKED_PADDING=given.packed_padding is not None, HAS_DROPOUT=seed is not None,
        **options,
    )  # fmt: skip
    if suffix is not None:
        scan(suffix, plan, k, given, reverse=True)
    key_gradient_kernel[grid](
        q, k, v, a, g, d, w, dk, dv, da, *pointers(q, adds, suffix, given.ages, given.padding), T, H,
        plan.segments, plan.chunks, *strides(q, k, v, a, g, dk, dv, da), K=K, L=L, **options,
    )  # fmt: skip
    return dq, dk, dv, da, reads, adds


def pointers(stand_in: Tensor, *tensors: Optional[Tensor]) -> Tuple[Tensor, ...]:
    """Arguments that a kernel may do arithmetic with, though it reads nothing through those that are
    missing."""
    return tuple(stand_in if x is None else x for x in tensors)


def strides(*tensors: Tensor) -> Tuple[int, ...]:
    """Of batch, head and position; the last one is 1."""
    return tuple(n for x in tensors for n in x.stride()[:3])


def boost(dropout: float) -> float:
    """What the weights that dropout leaves are multiplied with."""
    return 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0


def flags(plan: Plan, q: Tensor, states: Optional[Tensor], given: Given) -> dict:
    """What the kernels that read states leave out when there is none of it, and the registers they need."""
    return {
        **({"maxnreg": MAX_REGISTERS} if plan.segments * plan.chunks > 1 else {}),
        "CARRY": plan.carry,
        "LOADED": states is not None,
        **time_flags(given),
        # The interpreter multiplies bfloat16 numbers as if their bits were integers.
        "NATIVE": not (interpreted() and q.dtype == torch.bfloat16),
    }


def blocks(plan: Plan, q: Tensor) -> dict:
    """Sizes of the kernels' tiles, and how they are launched."""
    return {
        "BLOCK_T": plan.block_t,
        "BLOCK_K": plan.block_k,
        "BLOCK_L": plan.block_l,
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
        "num_warps": plan.warps,
        "num_stages": plan.stages,
    }
