"""Another form of causal Luna attention against the chunkwise one, on random numbers: what it gives, and how
long it takes."""

import time
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna

# Of output and gradients, root mean square: several times what rounding alone does to them.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
# Log decays, and how much more rounding does to their gradient, a sum of what nearly cancels.
LOG_DECAY, DECAY_TOLERANCE = (-0.25, -0.06), 20


class Sample(NamedTuple):
    """What a form is given, and the gradient of its output; v None: it is k; log_decay None: nothing
    decays."""

    q: Tensor
    k: Tensor
    v: Optional[Tensor]
    pack_weights: Tensor
    log_decay: Optional[Tensor]
    grad: Tensor


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
) -> Sample:
    """Random q, k, v [B, H, T, K], pack weights [B, H, T, L], and log_decay [H]."""
    # From a generator of its own: training's random numbers stay what they are without this comparison.
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(B, H, T, K, generator=generator).to(device, dtype) for _ in range(4))
    pack_weights = torch.rand(B, H, T, L, generator=generator).to(device)
    log_decay = torch.tensor(LOG_DECAY, device=device).repeat(H // 2) if forgets else None
    return Sample(q, k, None if tied else v, pack_weights, log_decay, grad)


def disagreement(form: Callable[..., Tensor], inputs: Sample) -> str:
    """What ``form`` makes of a sample of two sentences that the chunkwise one in float32 does not; empty if
    they agree."""
    device, dtype, T = inputs.q.device, inputs.q.dtype, inputs.q.size(2)
    padding = torch.arange(T, device=device) < torch.tensor([[T // 3], [0]], device=device)
    actual = output_and_gradients(form, inputs, key_padding_mask=padding)
    floats = Sample(*(None if x is None else x.float() for x in inputs))
    expected = output_and_gradients(chunk_causal_luna, floats, key_padding_mask=padding)
    for name, ours, theirs in zip(
        ("output", *(f"gradient of {x}" for x in "q k v A log_decay".split())), actual, expected
    ):
        if ours is None or theirs is None:
            continue
        difference = ((ours.float() - theirs).norm() / theirs.norm()).item()
        times = DECAY_TOLERANCE if name == "gradient of log_decay" else 1
        if not difference <= times * TOLERANCE[dtype]:
            return f"its {name} differs by {difference:.1e} from that of the chunkwise form"
    return ""


def milliseconds(form: Callable[..., Tensor], inputs: Sample) -> float:
    """The least that three passes forward and backward with dropout take, after one that compiles."""
    q, taken = inputs.q, []
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
    form: Callable[..., Tensor], inputs: Sample, **options: Any
) -> Tuple[Optional[Tensor], ...]:
    """What ``form`` returns of a sample [..], then the gradients of q, k, v, A and log_decay, None where
    there is none of it."""
    with torch.autocast(inputs.grad.device.type, enabled=False):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs[:-1]]
        q, k, v, pack_weights, log_decay = leaves
        output = form(q, k, k if v is None else v, pack_weights, log_decay=log_decay, **options)
        gradients = iter(torch.autograd.grad(output, [x for x in leaves if x is not None], inputs.grad))
    return (output, *(None if x is None else next(gradients) for x in leaves))
