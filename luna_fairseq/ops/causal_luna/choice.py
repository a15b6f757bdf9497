"""What the backend ``auto`` stands for: triton where it suits and has shown that it is right, chunk
everywhere else."""

import logging
from functools import lru_cache
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton

logger = logging.getLogger(__name__)
# Positions of the numbers that are compared: several chunks, the last one not full.
SAMPLE = 100
# Of output and gradients, root mean square: several times what rounding alone does to them.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Rates that forget, and how much more rounding does to their gradient, a sum of what nearly cancels.
RATES, RATES_TOLERANCE = (0.25, 0.06), 20


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, pack_weights: Tensor, rates: Optional[Tensor] = None
) -> str:
    """``chunk`` or ``triton``, for q, k, v [B, H, T, K] and pack_weights [B, H, T, L], with rates [H] where
    it forgets.

    The first time that a device, type, K, and L up to the next power of two, is met, and whether it forgets,
    the Triton form is compared with the chunkwise one on a few random numbers, output and gradients, and the
    choice is logged.
    """
    if traced() or not q.dtype == k.dtype == v.dtype:
        return "chunk"
    L = 1 << (pack_weights.size(-1) - 1).bit_length()  # the next power of two
    return choice(q.device, q.dtype, q.size(-1), L, rates is not None)


def traced() -> bool:
    """Whether torch.compile is at work, which looks into the chunkwise form and can fuse parts of it."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return is_compiling is not None and is_compiling()


@lru_cache(maxsize=None)
@torch.inference_mode(False)
@torch.enable_grad()
def choice(device: torch.device, dtype: torch.dtype, K: int, L: int, forgets: bool = False) -> str:
    """The backend for heads of K and L rows of P."""
    # From a generator of its own: training's random numbers stay what they are without this comparison.
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(2, 2, SAMPLE, K, generator=generator).to(device, dtype) for _ in range(4))
    pack_weights = torch.rand(2, 2, SAMPLE, L, generator=generator).to(device)
    reason = why_not_triton(q, pack_weights)
    if reason:
        log_once(logging.INFO, f"causal Luna attention on {device}: chunk; not triton, because {reason}")
        return "chunk"
    rates = [torch.tensor(RATES, device=device)] if forgets else []
    reason = disagreement([q, k, v, pack_weights, *rates], grad)
    if reason:
        log_once(
            logging.WARNING, f"causal Luna attention on {device}: chunk; triton would suit, but {reason}"
        )
        return "chunk"
    log_once(logging.INFO, f"causal Luna attention on {device}: triton")
    return "triton"


@lru_cache(maxsize=None)
def log_once(level: int, message: str) -> None:
    """Log what is the same for all layers, and mostly for all shapes."""
    logger.log(level, message)


def disagreement(inputs: List[Tensor], grad: Tensor) -> str:
    """What the Triton form makes of these inputs that the chunkwise one in float32 does not; empty if they
    agree."""
    padding = torch.arange(SAMPLE, device=grad.device) < torch.tensor(
        [[SAMPLE // 3], [0]], device=grad.device
    )
    try:
        actual = output_and_gradients(triton_causal_luna, inputs, padding, grad)
    except Exception as error:  # whatever a compiler that meets a new device may raise
        return f"it fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    expected = output_and_gradients(chunk_causal_luna, [x.float() for x in inputs], padding, grad.float())
    for name, ours, theirs in zip(
        ("output", *(f"gradient of {x}" for x in ("q", "k", "v", "A", "rates"))), actual, expected
    ):
        difference = ((ours.float() - theirs).norm() / theirs.norm()).item()
        times = RATES_TOLERANCE if name == "gradient of rates" else 1
        if not difference <= times * TOLERANCE[grad.dtype]:
            return f"its {name} differs by {difference:.1e} from that of the chunkwise form"
    return ""


def output_and_gradients(
    form: Callable[..., Tensor], inputs: List[Tensor], padding: Tensor, grad: Tensor
) -> Tuple[Tensor, ...]:
    """What ``form`` returns [..], then the gradient of each input, q, k, v, A and perhaps rates, where
    ``grad`` is that of the output."""
    with torch.autocast(grad.device.type, enabled=False):
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = form(*leaves[:4], key_padding_mask=padding, rates=leaves[4] if leaves[4:] else None)
        return (output, *torch.autograd.grad(output, leaves, grad))
