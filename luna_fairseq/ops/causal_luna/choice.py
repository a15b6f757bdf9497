"""What the backend ``auto`` stands for: triton where it suits, has shown that it is right, and is faster;
chunk everywhere else."""

import logging
import time
from functools import lru_cache
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

logger = logging.getLogger(__name__)
# Positions of the numbers that are compared: several chunks, the last one not full.
SAMPLE = 100
# Batch, heads and positions of those that both forms are timed on: milliseconds on a GPU.
TIMED = (2, 8, 1024)
# Of output and gradients, root mean square: several times what rounding alone does to them.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Rates that forget, and how much more rounding does to their gradient, a sum of what nearly cancels.
RATES, RATES_TOLERANCE = (0.25, 0.06), 20


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, rates: Optional[Tensor] = None
) -> str:
    """``chunk`` or ``triton``, for q, k, v [B, H, T, K] and pack_weights [B, H, T, L], with rates [H] where
    it forgets.

    The first time that a device, type, K, and L up to the next power of two, is met, whether it forgets, and
    whether ``v`` is ``k``, both forms are compared on a few random numbers, output and gradients, and timed;
    the choice is logged.
    """
    if traced() or not q.dtype == k.dtype == v.dtype:
        return "chunk"
    reason = why_not_triton(q, pack_weights)
    if reason:
        log_once(logging.INFO, f"causal Luna attention on {q.device}: chunk; not triton, because {reason}")
        return "chunk"
    L = 1 << (pack_weights.size(-1) - 1).bit_length()  # the next power of two
    return choice(q.device, q.dtype, q.size(-1), L, rates is not None, v is k)


def traced() -> bool:
    """Whether torch.compile is at work, which looks into the chunkwise form and can fuse parts of it."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return is_compiling is not None and is_compiling()


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def choice(
    device: torch.device, dtype: torch.dtype, K: int, L: int, forgets: bool = False, tied: bool = False
) -> str:
    """The backend for heads of K and L rows of P."""
    where = f"causal Luna attention on {device}"
    try:
        reason = disagreement(sample(2, 2, SAMPLE, K, L, device, dtype, forgets, tied))
        if not reason:
            size = TIMED if device.type == "cuda" else (2, 2, SAMPLE)  # the interpreter is slow
            timed = sample(*size, K, L, device, dtype, forgets, tied)
            ours, theirs = (milliseconds(form, timed) for form in (triton_causal_luna, chunk_causal_luna))
    except Exception as error:  # whatever a compiler that meets a new device may raise
        reason = f"it fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if reason:
        log_once(logging.WARNING, f"{where}: chunk; triton would suit, but {reason}")
        return "chunk"
    faster = "triton" if ours <= theirs else "chunk"
    of = f"heads of {K}, l {L}, {str(dtype).split('.')[-1]}"
    log_once(logging.INFO, f"{where}: {faster} ({of}: triton {ours:.2f} ms, chunk {theirs:.2f} ms)")
    return faster


@lru_cache(maxsize=None)
def log_once(level: int, message: str) -> None:
    """Log what is the same for all layers, and mostly for all shapes."""
    logger.log(level, message)


def sample(
    B: int,
    H: int,
    T: int,
    K: int,
    L: int,
    device: torch.device,
    dtype: torch.dtype,
    forgets: bool,
    tied: bool,
) -> List[Optional[Tensor]]:
    """Random q, k, v (None: it is k), pack weights, rates (None: nothing is forgotten), and the gradient of
    the output."""
    # From a generator of its own: training's random numbers stay what they are without this comparison.
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(B, H, T, K, generator=generator).to(device, dtype) for _ in range(4))
    pack_weights = torch.rand(B, H, T, L, generator=generator).to(device)
    rates = torch.tensor(RATES, device=device).repeat(H // 2) if forgets else None
    return [q, k, None if tied else v, pack_weights, rates, grad]


def disagreement(inputs: List[Optional[Tensor]]) -> str:
    """What the Triton form makes of a sample that the chunkwise one in float32 does not; empty if they
    agree."""
    device, dtype = inputs[0].device, inputs[0].dtype
    padding = torch.arange(SAMPLE, device=device) < torch.tensor([[SAMPLE // 3], [0]], device=device)
    actual = output_and_gradients(triton_causal_luna, inputs, key_padding_mask=padding)
    floats = [None if x is None else x.float() for x in inputs]
    expected = output_and_gradients(chunk_causal_luna, floats, key_padding_mask=padding)
    for name, ours, theirs in zip(
        ("output", *(f"gradient of {x}" for x in "q k v A rates".split())), actual, expected
    ):
        if ours is None:
            continue
        difference = ((ours.float() - theirs).norm() / theirs.norm()).item()
        times = RATES_TOLERANCE if name == "gradient of rates" else 1
        if not difference <= times * TOLERANCE[dtype]:
            return f"its {name} differs by {difference:.1e} from that of the chunkwise form"
    return ""


def milliseconds(form: Callable[..., Tensor], inputs: List[Optional[Tensor]]) -> float:
    """The least that three passes forward and backward with dropout take, after one that compiles."""
    q, taken = inputs[0], []
    with torch.random.fork_rng([q.device] if q.is_cuda else []):
        for _ in range(4):
            start = synchronized_clock(q)
            output_and_gradients(form, inputs, dropout=0.1)
            taken.append(1e3 * (synchronized_clock(q) - start))
    return min(taken[1:])


def synchronized_clock(x: Tensor) -> float:
    """Seconds, when all that was asked of the tensor's device is done."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def output_and_gradients(
    form: Callable[..., Tensor], inputs: List[Optional[Tensor]], **options: object
) -> Tuple[Optional[Tensor], ...]:
    """What ``form`` returns of a sample [..], then the gradients of q, k, v, A and rates, None where there is
    none of it."""
    *inputs, grad = inputs
    with torch.autocast(grad.device.type, enabled=False):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
        q, k, v, pack_weights, rates = leaves
        output = form(q, k, k if v is None else v, pack_weights, rates=rates, **options)
        gradients = iter(torch.autograd.grad(output, [x for x in leaves if x is not None], grad))
    return (output, *(None if x is None else next(gradients) for x in leaves))
