"""Apollo, an adaptive parameter-wise diagonal quasi-Newton method, as a plain torch optimizer.

This is Apollo of Ma (2020), "Apollo: An Adaptive Parameter-wise Diagonal Quasi-Newton Method for Nonconvex
Stochastic Optimization", arXiv 2009.13586. The Luna paper uses it for translation. An unrelated optimizer of
2024 (low-rank gradient scaling) is also called APOLLO.

The formulas below define update t of one parameter tensor ``p`` with gradient ``g``::

    a = (1 - beta) / (1 - beta**t)
    y = g - m                                        m: moving average of gradients, before this update
    n = ||d||_4 + e                                  d: direction of the previous update; e: see D
    u = d / n
    B = B - (a * <y / n, u> + <B, u**2>) * u**2      B: diagonal approximation of the Hessian
    m = m + a * y
    D = max(|B|, sigma)                              rebound "constant", e = eps / sigma
      | max(|B|, max|y|) + eps / a                   rebound "belief",   e = eps
    d = m / D
    p = p - lr * d

The module apollo_update.py implements this update. Norms, inner products and the maximum are computed over a
whole tensor, so the result depends on how the parameters are split into tensors. Apollo must therefore not be
used with parameters that are sharded or flattened into a single tensor.
"""

import itertools
import math
import warnings
from collections import defaultdict
from functools import lru_cache
from numbers import Real
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.optim import Optimizer

from luna_fairseq.errors import InputError
from luna_fairseq.optim.apollo_blocks import blocked_update
from luna_fairseq.optim.apollo_update import multi_tensor_update, single_tensor_update

REBOUNDS = ("constant", "belief")
WEIGHT_DECAY_TYPES = ("L2", "decoupled", "stable")

_OPTIONS = ("lr", "beta", "eps", "rebound", "sigma", "weight_decay", "weight_decay_type", "foreach")
_STATE_TENSORS = ("exp_avg_grad", "approx_hessian", "update")
_LOW_PRECISION = (torch.float16, torch.bfloat16)

# Maximum number of elements in one multi-tensor update, 128 MiB in float32. The multi-tensor implementation
# makes two temporary copies of all its tensors, and float32 copies of low-precision tensors.
_MULTI_TENSOR_ELEMENTS = 1 << 25


class Apollo(Optimizer):
    """Apollo optimizer (Ma, 2020, arXiv 2009.13586, Algorithm 1), with the rebounds "constant" and "belief".

    Apollo needs a learning-rate warm-up from about ``1e-4 * lr`` over at least 100 updates, and usually 500
    to 1,000. For float16 and bfloat16 parameters, the update is computed in float32 and then rounded.

    The state of each parameter has four entries: ``step`` (number of updates), ``exp_avg_grad`` (moving
    average of gradients), ``approx_hessian`` (diagonal approximation of the Hessian) and ``update``
    (direction of the last update). A parameter without a gradient is skipped, and its step count is
    unchanged.

    Args:
        params: parameters, or dictionaries of parameter groups, each of which may override any option.
        lr: learning rate, at least 0. Its scale depends on ``sigma``. With the default sigma, 0.1 is typical
            for translation with large batches, and 0.003 to 0.03 for small datasets.
        beta: decay rate of the moving average of gradients, in [0, 1).
        eps: term that keeps the first directions finite, greater than 0.
        rebound: lower bound of the curvature. "constant" means sigma, and "belief" means the largest
            deviation of the gradient from its moving average.
        sigma: lower bound of the curvature for the rebound "constant", greater than 0. A learning rate of lr
            with sigma 0.01 is equivalent to 100 lr with sigma 1.0, and both conventions are in use. A warning
            is issued if the learning rate seems to follow the other convention.
        weight_decay: weight decay, at least 0.
        weight_decay_type: "L2" adds ``weight_decay * p`` to the gradient of a parameter p. "decoupled" adds
            ``weight_decay * p`` to the direction, and "stable" adds ``weight_decay * p / c``, where c is the
            mean curvature. None is "L2" for the rebound "constant" and "decoupled" for "belief".
        foreach: use the multi-tensor implementation, which updates several tensors per kernel. None does so
            only on a CUDA device. On a CPU, None updates one tensor at a time, in blocks that fit into the
            cache.

    Raises:
        InputError: A hyperparameter is out of range, or a parameter is not a real floating-point tensor.
            InputError is a ValueError.
        RuntimeError: :meth:`step` finds a sparse gradient.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = Apollo(model.parameters(), lr=0.01)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Union[Iterable[Tensor], Iterable[Dict[str, Any]]],
        lr: float,
        beta: float = 0.9,
        eps: float = 1e-4,
        rebound: str = "constant",
        sigma: float = 0.01,
        weight_decay: float = 0,
        weight_decay_type: Optional[str] = None,
        foreach: Optional[bool] = None,
    ) -> None:
        values = (lr, beta, eps, rebound, sigma, weight_decay, weight_decay_type, foreach)
        defaults = dict(zip(_OPTIONS, values))
        _check_hyperparameters(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Add a parameter group, which may override any option of the optimizer.

        Raises InputError, without adding the group, if a hyperparameter is out of range or a parameter is not
        a real floating-point tensor.
        """
        group = {**self.defaults, **param_group}
        _check_hyperparameters(group)
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        tensors = (p[1] if isinstance(p, tuple) else p for p in params)  # named parameters, since torch 2.6
        dtypes = {p.dtype for p in tensors if isinstance(p, Tensor)}  # torch refuses other objects
        for dtype in dtypes:
            if not dtype.is_floating_point:
                raise InputError(f"Apollo: expected real floating-point parameters, got {dtype}")
        super().add_param_group({**param_group, "params": params})
        resolve_weight_decay_type(self.param_groups[-1])
        if group["rebound"] == "constant":
            _warn_about_learning_rate(float(group["lr"]), float(group["sigma"]))
        elif dtypes.intersection(_LOW_PRECISION):
            _warn_about_rounded_belief()

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Restore a pickled or loaded state, with ``self.defaults`` for options missing from a group."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name in _OPTIONS:  # self.defaults may have additional keys, which torch adds
                group.setdefault(name, self.defaults[name])
            resolve_weight_decay_type(group)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load the optimizer state, and keep it in float32 for float16 and bfloat16 parameters.

        By default, torch casts the state to the dtype of the parameters.
        """
        if not hasattr(self, "register_load_state_dict_pre_hook"):  # torch < 2.2
            super().load_state_dict(state_dict)
            return self._keep_float32(state_dict)
        # Other hooks may replace the state, so the state to keep is the one they return.
        loaded: List[Dict[str, Any]] = []
        hooks = [
            self.register_load_state_dict_pre_hook(lambda _, state: loaded.append(state)),
            self.register_load_state_dict_post_hook(lambda _: self._keep_float32(loaded[-1]), prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _keep_float32(self, state_dict: Dict[str, Any]) -> None:
        """Copy the saved state of float16 and bfloat16 parameters in float32, because torch rounded it."""
        saved_keys = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        params = itertools.chain.from_iterable(g["params"] for g in self.param_groups)
        for key, p in zip(saved_keys, params):
            if p.dtype in _LOW_PRECISION and key in state_dict["state"]:
                saved = state_dict["state"][key]
                for name in _STATE_TENSORS:
                    self.state[p][name] = saved[name].to(device=p.device, dtype=torch.float32, copy=True)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update the parameters once. Return the loss from ``closure``, or None without ``closure``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            if p.grad is not None and p.grad.is_sparse:
                raise RuntimeError(
                    "Apollo does not support sparse gradients. Use dense embeddings (sparse=False)."
                )
        for group in self.param_groups:
            # Parameters with the same step count share the scalar factors of the update.
            buckets: Dict[Tuple[torch.device, torch.dtype, int], List[Tensor]] = defaultdict(list)
            for p in group["params"]:
                # The maximum of an empty tensor is undefined, and there is nothing to update.
                if p.grad is None or p.numel() == 0:
                    continue
                state = self._get_state(p)
                state["step"] += 1
                buckets[(p.device, p.dtype, state["step"])].append(p)
            for (device, _, step), params in buckets.items():
                self._update_bucket(params, step, device, group)
        return loss

    def _get_state(self, p: Tensor) -> Dict[str, Any]:
        """Return the optimizer state of a parameter. The first call creates it, in float32 or float64."""
        state = self.state[p]
        dtype = _compute_dtype(p)
        if not state:
            state["step"] = 0
            for name in _STATE_TENSORS:
                state[name] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        for name in _STATE_TENSORS:
            # fairseq's memory-efficient wrapper restores the loaded state on the CPU.
            state[name] = state[name].to(device=p.device, dtype=dtype)
        return state

    def _update_bucket(
        self, params: List[Tensor], step: int, device: torch.device, group: Dict[str, Any]
    ) -> None:
        """Update parameters that share their group, device, dtype and step count, in place."""
        is_default = group["foreach"] is None
        foreach = device.type == "cuda" if is_default else group["foreach"]
        update = blocked_update if is_default and device.type == "cpu" else single_tensor_update
        for chunk in _chunks(params, _MULTI_TENSOR_ELEMENTS if foreach else 1):
            dtype = _compute_dtype(chunk[0])
            values = [p.to(dtype) for p in chunk]
            states = ([self.state[p][name] for p in chunk] for name in _STATE_TENSORS)
            lists = (values, [p.grad.to(dtype) for p in chunk], *states)
            if foreach:
                multi_tensor_update(*lists, step=step, group=group)
            else:
                update(*(x for (x,) in lists), step=step, group=group)
            for p, value in zip(chunk, values):
                if p is not value:
                    p.copy_(value)


def _compute_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of a parameter's update: float32 for half precision, else the parameter's dtype."""
    return torch.float32 if p.dtype in _LOW_PRECISION else p.dtype


def _chunks(params: List[Tensor], limit: int) -> Iterator[List[Tensor]]:
    """Yield lists of tensors with at most ``limit`` elements in total. A larger tensor gets its own list."""
    chunk: List[Tensor] = []
    size = 0
    for p in params:
        if chunk and size + p.numel() > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append(p)
        size += p.numel()
    if chunk:
        yield chunk


_RANGES: Dict[str, Tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: x >= 0, "a number >= 0"),
    "beta": (lambda x: 0 <= x < 1, "a number in [0, 1)"),
    "eps": (lambda x: x > 0, "a number > 0"),
    "sigma": (lambda x: x > 0, "a number > 0"),
    "weight_decay": (lambda x: x >= 0, "a number >= 0"),
}


def _check_hyperparameters(group: Dict[str, Any]) -> None:
    """Raise InputError if a hyperparameter in a parameter group is out of range."""
    for name, (is_good, wanted) in _RANGES.items():
        value = group[name]
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not is_good(float(value)):
            raise InputError(f"Apollo: {name} must be {wanted}, got {value!r}")
    for name, known in (("rebound", REBOUNDS), ("weight_decay_type", (*WEIGHT_DECAY_TYPES, None))):
        if group[name] not in known:
            words = ", ".join(filter(None, known))
            raise InputError(f"Apollo: {name} must be one of {words}, got {group[name]!r}")


def resolve_weight_decay_type(group: Dict[str, Any]) -> None:
    """Replace a weight decay type of None in place: "L2" for the rebound "constant", else "decoupled"."""
    if group["weight_decay_type"] is None:
        group["weight_decay_type"] = "L2" if group["rebound"] == "constant" else "decoupled"


@lru_cache(maxsize=None)  # the warning is issued only once
def _warn_about_rounded_belief() -> None:
    """Warn that training of half-precision parameters may diverge with the rebound "belief"."""
    warnings.warn(
        'Apollo: with rebound "belief", training of float16 and bfloat16 parameters may diverge, because the '
        "deviation of the gradient from its average may round to zero. Keep the parameters in float32 "
        '(fairseq: --bf16 without --memory-efficient-bf16), or use rebound "constant".',
        UserWarning,
        stacklevel=5,
    )


@lru_cache(maxsize=None)  # a trainer may build its optimizer several times: one warning per pair
def _warn_about_learning_rate(lr: float, sigma: float) -> None:
    """Warn if the learning rate does not match sigma, because two conventions may have been mixed up.

    The first direction is the gradient divided by sigma, so the ratio lr / sigma determines the step size.
    The ratio is about 10 in both published conventions, and 0.3 to 10 in all settings known to work. Mixing
    the conventions makes the ratio 100 times larger or smaller.

    The warning is issued for ratios of at least 100. It is also issued for ratios of at most 0.1 if sigma is
    at least 0.1. With sigma 0.01, such a ratio is simply a small learning rate, as in fine-tuning.
    """
    ratio = lr / sigma
    if ratio >= 99.9:  # 100, allowing for rounding
        hint = (
            f"steps about 100 times too large. Did you mean lr {lr / 100:g}, or --apollo-sigma (sigma) 1.0?"
        )
    elif sigma >= 0.1 and 0 < ratio <= 0.1001:
        hint = (
            f"steps about 100 times too small. Did you mean lr {lr * 100:g}, or --apollo-sigma (sigma) 0.01?"
        )
    else:
        return
    warnings.warn(
        f"Apollo: learning rate {lr:g} with sigma {sigma:g} looks like a mix of two conventions (lr about "
        f"0.1 goes with sigma 0.01, lr about 10 with sigma 1.0) and makes {hint}",
        UserWarning,
        stacklevel=5,
    )
