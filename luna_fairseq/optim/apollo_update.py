"""One update of Apollo (formulas: ``apollo.py``), of one tensor and of a list of tensors.

Both functions change parameters and state in place, and take the same arguments:

* a parameter, its gradient, and its state m, B, d, of one shape; or lists of these, of one length. All are of
  one floating-point type and on one device. Gradients are not changed.
* ``step``: the number of this update, from 1, the same for all of them.
* ``group``: ``lr, beta, eps, rebound, sigma, weight_decay, weight_decay_type`` as in ``Apollo``.
"""

import math
from typing import Any, Dict, List

import torch
from torch import Tensor


def single_tensor_update(
    p: Tensor, g: Tensor, m: Tensor, hessian: Tensor, d: Tensor, *, step: int, group: Dict[str, Any]
) -> None:
    """The formulas as they are written: the reference."""
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
    """The same on whole lists, several tensors per kernel; nothing in it waits for the device."""
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
    if hasattr(torch, "_foreach_clamp_min_"):
        torch._foreach_clamp_min_(tensors, least)
    else:  # torch 1.13
        for tensor in tensors:
            tensor.clamp_(min=least)


def _update_hessians(
    ys: List[Tensor], hessians: List[Tensor], updates: List[Tensor], alpha: float, norm_offset: float
) -> None:
    """``B -= <alpha * y + B * d, d> / n**4 * d**2``, in which one number per tensor replaces u. Spoils ys."""
    squares = torch._foreach_mul(updates, updates)
    n = torch.stack(list(torch._foreach_norm(squares, 2))).sqrt_().add_(norm_offset)
    torch._foreach_mul_(ys, alpha)
    torch._foreach_addcmul_(ys, hessians, updates)
    torch._foreach_mul_(ys, updates)
    n_squared = n * n
    # Divided twice, as n**4 may be too small for a float.
    scales = torch.stack([y.sum() for y in ys]).div_(n_squared).div_(n_squared)
    torch._foreach_addcmul_(hessians, squares, list(scales.unbind()), value=-1)


def norm_offset(group: Dict[str, Any]) -> float:
    """What is added to the norm of the previous direction, in that direction's own scale."""
    return group["eps"] / group["sigma"] if group["rebound"] == "constant" else group["eps"]
