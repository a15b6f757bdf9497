"""Apollo update for one tensor and for a list of tensors.

The formulas are given in apollo.py. All functions update parameters and state in place, and leave gradients
unchanged. All tensors of a call have the same floating-point dtype, device and step count. A ``group`` maps
names of :class:`~luna_fairseq.optim.apollo.Apollo`'s options to values, and ``step`` counts from 1.
"""

import math
from typing import Any, Dict, List

import torch
from torch import Tensor


def single_tensor_update(
    p: Tensor, g: Tensor, m: Tensor, hessian: Tensor, d: Tensor, *, step: int, group: Dict[str, Any]
) -> None:
    """Update one parameter ``p`` and its state in place, given the gradient ``g`` of the same shape.

    ``m`` is the moving average of gradients, ``hessian`` the diagonal approximation of the Hessian, and ``d``
    the direction of the previous update, overwritten with the new one. Faster functions must match this one.
    """
    alpha = (1 - group["beta"]) / (1 - group["beta"] ** step)
    decay = group["weight_decay"]
    decay_type = group["weight_decay_type"] if decay != 0 else None
    if decay_type == "L2":
        g = g.add(p, alpha=decay)
    y = g - m
    n = d.norm(p=4).add_(norm_offset(group))
    u = d / n
    u_squared = u * u
    change = -alpha * (y / n).mul_(u).sum() - (hessian * u_squared).sum()
    hessian.addcmul_(u_squared, change)
    m.add_(y, alpha=alpha)
    if group["rebound"] == "constant":
        denominator = hessian.abs().clamp_(min=group["sigma"])
    else:
        denominator = torch.max(hessian.abs(), y.abs().max()).add_(group["eps"] / alpha)
    torch.div(m, denominator, out=d)
    if decay_type == "decoupled":
        d.add_(p, alpha=decay)
    elif decay_type == "stable":
        d.addcmul_(p, decay / denominator.mean())
    p.add_(d, alpha=-group["lr"])


def multi_tensor_update(
    params: List[Tensor],
    grads: List[Tensor],
    exp_avg_grads: List[Tensor],
    approx_hessians: List[Tensor],
    updates: List[Tensor],
    *,
    step: int,
    group: Dict[str, Any],
) -> None:
    """Update a list of parameters and their states in place with torch's foreach operations.

    The lists hold p, g, m, hessian and d of :func:`single_tensor_update`. No operation waits for the GPU.
    """
    alpha = (1 - group["beta"]) / (1 - group["beta"] ** step)
    decay = group["weight_decay"]
    decay_type = group["weight_decay_type"] if decay != 0 else None
    constant = group["rebound"] == "constant"

    ys = torch._foreach_sub(grads, exp_avg_grads)
    if decay_type == "L2":
        torch._foreach_add_(ys, params, alpha=decay)
    torch._foreach_add_(exp_avg_grads, ys, alpha=alpha)
    floors = () if constant else torch._foreach_norm(ys, math.inf)
    _update_hessians(ys, approx_hessians, updates, alpha, norm_offset(group))
    del ys

    denominators = torch._foreach_abs(approx_hessians)
    if constant:
        _clamp_min_(denominators, group["sigma"])
    else:
        denominators = torch._foreach_maximum(denominators, list(floors))
        torch._foreach_add_(denominators, group["eps"] / alpha)
    torch._foreach_zero_(updates)
    torch._foreach_addcdiv_(updates, exp_avg_grads, denominators)
    if decay_type == "decoupled":
        torch._foreach_add_(updates, params, alpha=decay)
    elif decay_type == "stable":
        scales = torch.stack([x.mean() for x in denominators]).reciprocal_().mul_(decay)
        torch._foreach_addcmul_(updates, params, list(scales.unbind()))
    torch._foreach_add_(params, updates, alpha=-group["lr"])


def _clamp_min_(tensors: List[Tensor], least: float) -> None:
    """Clamp all elements of several tensors in place to at least ``least``."""
    if hasattr(torch, "_foreach_clamp_min_"):
        torch._foreach_clamp_min_(tensors, least)
    else:  # torch 1.13
        for tensor in tensors:
            tensor.clamp_(min=least)


def _update_hessians(
    ys: List[Tensor], hessians: List[Tensor], updates: List[Tensor], alpha: float, norm_offset: float
) -> None:
    """Update the Hessian approximations B of several tensors in place.

    B, d and y are the tensors in ``hessians``, ``updates`` (previous directions) and ``ys`` (deviations of
    the gradients, overwritten), and n is ``||d||_4 + norm_offset``. The formula ``B -= <alpha * y + B * d, d>
    / n**4 * d**2`` equals the one in apollo.py, but does not need the normalized direction u as a tensor.
    """
    squares = torch._foreach_mul(updates, updates)
    n = torch.stack(list(torch._foreach_norm(squares, 2))).sqrt_().add_(norm_offset)
    torch._foreach_mul_(ys, alpha)
    torch._foreach_addcmul_(ys, hessians, updates)
    torch._foreach_mul_(ys, updates)
    n_squared = n * n
    # The division is split into two steps, because n**4 may underflow.
    scales = torch.stack([y.sum() for y in ys]).div_(n_squared).div_(n_squared)
    torch._foreach_addcmul_(hessians, squares, list(scales.unbind()), value=-1)


def norm_offset(group: Dict[str, Any]) -> float:
    """Return e in the formulas of apollo.py, a small number added to the norm of the previous direction."""
    return group["eps"] / group["sigma"] if group["rebound"] == "constant" else group["eps"]
