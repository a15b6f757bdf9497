"""Apollo, an adaptive parameter-wise diagonal quasi-Newton method, as a plain torch optimizer.

This is Apollo of Ma (2020), "Apollo: An Adaptive Parameter-wise Diagonal Quasi-Newton Method for Nonconvex
Stochastic Optimization", arXiv 2009.13586: the optimizer of the translation experiments of the Luna paper.
An unrelated optimizer of 2024 (low-rank gradient scaling) is also called APOLLO.

One update of one parameter tensor ``p`` with gradient ``g``, t updates so far including this one::

    a = (1 - beta) / (1 - beta**t)
    y = g - m                                        m: moving average of gradients, before this update
    n = ||d||_4 + e                                  d: the previous direction; e = eps / sigma | eps
    u = d / n
    B = B - (a * <y / n, u> + <B, u**2>) * u**2      B: diagonal approximation of the Hessian
    m = m + a * y
    D = max(|B|, sigma)                              rebound "constant", e = eps / sigma
      | max(|B|, max|y|) + eps / a                   rebound "belief",   e = eps
    d = m / D
    p = p - lr * d

``apollo_update.py`` holds this update in two forms. Norm, inner products and maximum run over the whole
tensor, so the result depends on how parameters are cut into tensors: Apollo must never be given parameters
that are flattened into one tensor or sharded.
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

# The multi-tensor form holds two temporary copies of the tensors it is given (and float32 copies of
# low-precision ones): it takes at most so many elements at once (128 MiB per copy in float32).
_MULTI_TENSOR_ELEMENTS = 1 << 25


class Apollo(Optimizer):
    r"""Apollo (Ma, 2020, arXiv 2009.13586, Algorithm 1), with the rebounds "constant" and "belief".

    Warm-up of the learning rate is essential: at least 100 updates from about ``1e-4 * lr``; 500 to 1,000 are
    usual. Gradients and state are float32 for float16 and bfloat16 parameters, which are rounded to their own
    type after the update.

    Args:
        params: parameters, or dicts of parameter groups (each may override any option).
        lr: learning rate, >= 0. It goes with ``sigma`` (see there): 0.1 for translation with large
            batches, 0.003 to 0.03 for small data.
        beta: decay rate of the moving average of gradients, in [0, 1) (default: 0.9).
        eps: keeps the first directions finite, > 0 (default: 1e-4).
        rebound: lower bound of the curvature: "constant" (sigma) or "belief" (the largest deviation of the
            gradient from its moving average) (default: "constant").
        sigma: the constant rebound, > 0; unused with "belief" (default: 0.01). ``lr`` with sigma 0.01 is the
            same as 100 times ``lr`` with sigma 1.0, so both conventions are in circulation: lr 0.1 with 0.01,
            and lr 10 with 1.0. A learning rate of the other convention brings a warning, once.
        weight_decay: coefficient, >= 0 (default: 0).
        weight_decay_type: "L2" adds ``weight_decay * p`` to the gradient; "decoupled" adds it to the
            direction; "stable" adds it to the direction divided by the mean curvature. Default: "L2" for
            "constant", "decoupled" for "belief".
        foreach: True takes the multi-tensor implementation (several tensors per kernel), False the formulas
            as they are written, tensor by tensor; by default the former for parameters on a CUDA device, and
            for those on a CPU the latter in blocks that stay in its cache.

    State of each parameter: ``step`` (int), ``exp_avg_grad`` (m), ``approx_hessian`` (B), ``update`` (d).
    A parameter without gradient is skipped and keeps its own step count.

    Raises:
        InputError: (a ValueError) a hyperparameter is out of its range.
        RuntimeError: a gradient is sparse.
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
        """Add a parameter group; it may override every option. Raises InputError for a bad one, which is not
        added."""
        group = {**self.defaults, **param_group}
        _check_hyperparameters(group)
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        tensors = (p[1] if isinstance(p, tuple) else p for p in params)  # named ones, since torch 2.6
        dtypes = {p.dtype for p in tensors if isinstance(p, Tensor)}  # anything else is refused by torch
        for dtype in dtypes:
            if not dtype.is_floating_point:
                raise InputError(f"Apollo: parameters must be real floating-point tensors, got {dtype}")
        super().add_param_group({**param_group, "params": params})
        _resolve_weight_decay_type(self.param_groups[-1])
        if group["rebound"] == "constant":
            _warn_about_learning_rate(float(group["lr"]), float(group["sigma"]))
        elif dtypes.intersection(_LOW_PRECISION):
            _warn_about_rounded_belief()

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Complete the groups of a state saved by an implementation with fewer options."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name in _OPTIONS:  # torch adds keys of its own to the defaults
                group.setdefault(name, self.defaults[name])
            _resolve_weight_decay_type(group)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load a state; that of float16 and bfloat16 parameters stays float32 (torch would round it)."""
        if not hasattr(self, "register_load_state_dict_pre_hook"):  # torch < 2.2
            super().load_state_dict(state_dict)
            return self._keep_float32(state_dict)
        # Other hooks may put another state in its place: what they leave is what counts.
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
        """Take the state of low-precision parameters as it was saved."""
        saved_keys = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        params = itertools.chain.from_iterable(g["params"] for g in self.param_groups)
        for key, p in zip(saved_keys, params):
            if p.dtype in _LOW_PRECISION and key in state_dict["state"]:
                saved = state_dict["state"][key]
                for name in _STATE_TENSORS:
                    self.state[p][name] = saved[name].to(device=p.device, dtype=torch.float32, copy=True)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Update the parameters once.

        Args:
            closure: recomputes the loss and its gradients, and returns the loss.
        Returns:
            what the closure returned, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            if p.grad is not None and p.grad.is_sparse:
                raise RuntimeError(
                    "Apollo does not support sparse gradients; use dense embeddings (sparse=False)"
                )
        for group in self.param_groups:
            # Parameters of one step count share the scalars of the update.
            buckets: Dict[Tuple[torch.device, torch.dtype, int], List[Tensor]] = defaultdict(list)
            for p in group["params"]:
                # An empty tensor has no largest element, and nothing to update.
                if p.grad is None or p.numel() == 0:
                    continue
                state = self._state_of(p)
                state["step"] += 1
                buckets[(p.device, p.dtype, state["step"])].append(p)
            for (device, _, step), params in buckets.items():
                self._update_bucket(params, step, device, group)
        return loss

    def _state_of(self, p: Tensor) -> Dict[str, Any]:
        """The state of a parameter, created when missing, on its device and in the type to compute in."""
        state = self.state[p]
        dtype = _compute_dtype(p)
        if not state:
            state["step"] = 0
            for name in _STATE_TENSORS:
                state[name] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)
        for name in _STATE_TENSORS:
            # fairseq's memory-efficient wrapper puts the loaded state, on the CPU, back in place.
            state[name] = state[name].to(device=p.device, dtype=dtype)
        return state

    def _update_bucket(
        self, params: List[Tensor], step: int, device: torch.device, group: Dict[str, Any]
    ) -> None:
        """Update parameters of one device, type and step count."""
        by_default = group["foreach"] is None
        foreach = device.type == "cuda" if by_default else group["foreach"]
        update = blocked_update if by_default and device.type == "cpu" else single_tensor_update
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
    return torch.float32 if p.dtype in _LOW_PRECISION else p.dtype


def _chunks(params: List[Tensor], limit: int) -> Iterator[List[Tensor]]:
    """Cut a list into runs of at most ``limit`` elements in total, or of one tensor."""
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
    for name, (is_good, wanted) in _RANGES.items():
        value = group[name]
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not is_good(float(value)):
            raise InputError(f"Apollo: {name} must be {wanted}, got {value!r}")
    for name, known in (("rebound", REBOUNDS), ("weight_decay_type", (*WEIGHT_DECAY_TYPES, None))):
        if group[name] not in known:
            words = ", ".join(filter(None, known))
            raise InputError(f"Apollo: {name} must be one of {words}, got {group[name]!r}")


def _resolve_weight_decay_type(group: Dict[str, Any]) -> None:
    if group["weight_decay_type"] is None:
        group["weight_decay_type"] = "L2" if group["rebound"] == "constant" else "decoupled"


@lru_cache(maxsize=None)  # once
def _warn_about_rounded_belief() -> None:
    warnings.warn(
        'Apollo: rebound "belief" divides by the deviation of the gradient from its average, which for '
        "float16 and bfloat16 parameters may round to nothing, and training diverge: keep the parameters in "
        'float32 (fairseq: --bf16 without --memory-efficient-bf16), or take rebound "constant"',
        UserWarning,
        stacklevel=5,
    )


@lru_cache(maxsize=None)  # a trainer may build its optimizer several times: one warning for each pair
def _warn_about_learning_rate(lr: float, sigma: float) -> None:
    """Warn about a learning rate of the other convention for sigma.

    The first direction is g / sigma, so lr / sigma is what counts: about 10 in both published conventions,
    and 0.3 to 10 in all settings known to work. Mixing the conventions makes it 100 times larger or smaller.
    The warning is given from ten times the published ratio on; and below a hundredth of it, but there only
    for sigma of the order of 1, as with sigma 0.01 a small rate is simply a small rate (fine-tuning).
    """
    ratio = lr / sigma
    if ratio >= 99.9:  # 100, whatever the rounding
        hint = (
            f"steps about 100 times too large; did you mean lr {lr / 100:g}, or --apollo-sigma (sigma) 1.0?"
        )
    elif sigma >= 0.1 and 0 < ratio <= 0.1001:
        hint = (
            f"steps about 100 times too small; did you mean lr {lr * 100:g}, or --apollo-sigma (sigma) 0.01?"
        )
    else:
        return
    warnings.warn(
        f"Apollo: learning rate {lr:g} with sigma {sigma:g} looks like a mix of two conventions (lr about "
        "0.1 goes"
        f" with sigma 0.01, lr about 10 with sigma 1.0) and makes {hint}",
        UserWarning,
        stacklevel=5,
    )
