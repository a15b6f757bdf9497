"""Apollo update on a CPU, in blocks that fit into the cache, which reduces memory traffic."""

from typing import Any, Dict, List

import torch
from torch import Tensor

from luna_fairseq.optim.apollo_update import norm_offset, single_tensor_update

# Number of elements of a block, and of the largest tensor for which the plain implementation is as fast.
BLOCK = 1 << 19
SMALL_TENSOR = 1 << 16


def blocked_update(*tensors: Tensor, step: int, group: Dict[str, Any]) -> None:
    """Update one parameter tensor and its state in place, block by block, to reduce memory traffic.

    ``tensors`` are p, g, m, hessian and d of :func:`single_tensor_update`, all of the same shape. The result
    is equal up to rounding. The update makes two passes over the tensors, or three if ``weight_decay_type``
    is "stable", which depends on the mean curvature.
    """
    if tensors[0].numel() <= SMALL_TENSOR or not all(x.is_contiguous() for x in tensors):
        single_tensor_update(*tensors, step=step, group=group)
        return
    blocks = list(zip(*(x.view(-1).split(BLOCK) for x in tensors)))
    alpha = (1 - group["beta"]) / (1 - group["beta"] ** step)
    decay = group["weight_decay"]
    decay_type = group["weight_decay_type"] if decay != 0 else None

    def deviation(p: Tensor, g: Tensor, m: Tensor) -> Tensor:
        """Return the deviation of the gradient g, with L2 weight decay, from its moving average m."""
        return (g.add(p, alpha=decay) if decay_type == "L2" else g) - m

    fourth: Any = 0.0
    product: Any = 0.0
    largest: List[Tensor] = []  # maximum of |y| in each block
    for p, g, m, hessian, d in blocks:
        y, squares = deviation(p, g, m), d * d
        fourth = fourth + squares.dot(squares)
        product = product + alpha * y.dot(d) + hessian.dot(squares)
        if group["rebound"] == "belief":
            largest.append(y.abs().max())
    n_squared = fourth.pow(0.25).add_(norm_offset(group)).square_()
    # The division is split into two steps, because n**4 may underflow.
    change = -(product / n_squared / n_squared)
    floor = torch.stack(largest).max() if largest else None

    denominators: Any = 0.0
    for p, g, m, hessian, d in blocks:
        y = deviation(p, g, m)
        hessian.addcmul_(d * d, change)
        m.add_(y, alpha=alpha)
        if floor is None:
            denominator = hessian.abs().clamp_(min=group["sigma"])
        else:
            denominator = torch.max(hessian.abs(), floor).add_(group["eps"] / alpha)
        torch.div(m, denominator, out=d)
        if decay_type == "decoupled":
            d.add_(p, alpha=decay)
        if decay_type == "stable":
            denominators = denominators + denominator.sum()
        else:
            p.add_(d, alpha=-group["lr"])
    if decay_type == "stable":
        for p, _, _, _, d in blocks:
            d.addcmul_(p, decay * tensors[0].numel() / denominators)
            p.add_(d, alpha=-group["lr"])
