"""Apollo optimizer (Ma, 2020, arXiv 2009.13586) for fairseq, selected with ``--optimizer apollo``."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import torch
from omegaconf import II
from torch import Tensor

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from luna_fairseq.errors import InputError
from luna_fairseq.optim.apollo import REBOUNDS, WEIGHT_DECAY_TYPES, Apollo, resolve_weight_decay_type


@dataclass
class ApolloConfig(FairseqDataclass):
    """Options of ``--optimizer apollo``. The help text of each field describes the option."""

    apollo_beta: float = field(
        default=0.9,
        metadata={"help": "decay rate of Apollo's moving average of gradients", "least": 0, "below": 1},
    )
    apollo_eps: float = field(default=1e-4, metadata={"help": "Apollo's epsilon", "above": 0})
    apollo_rebound: ChoiceEnum(list(REBOUNDS)) = field(
        default="constant", metadata={"help": "lower bound of Apollo's curvature"}
    )
    apollo_sigma: float = field(
        default=0.01,
        metadata={
            "help": "size of the constant rebound; the scale of --lr depends on it (lr 0.1 with 0.01 equals "
            "lr 10 with 1.0)",
            "above": 0,
        },
    )
    weight_decay: float = field(
        default=0.0, metadata={"help": "weight decay", "argparse_alias": "--wd", "least": 0}
    )
    weight_decay_type: Optional[ChoiceEnum(list(WEIGHT_DECAY_TYPES))] = field(
        default=None,
        metadata={
            "help": "where the weight decay is added: to the gradient (L2), to the direction (decoupled), or "
            "to the direction after division by the mean curvature (stable); default: L2 for the constant "
            "rebound, decoupled for belief"
        },
    )
    clip_mode: ChoiceEnum(["total", "each"]) = field(
        default="total",
        metadata={
            "help": "apply --clip-norm to the norm of all gradients together (total), or to the norm of each "
            "parameter's gradient (each); with each, the logged gnorm is the largest of these norms"
        },
    )
    clip_norm: float = field(default=II("optimization.clip_norm"), metadata={"least": 0})
    amp: bool = II("common.amp")
    lr: List[float] = field(default=II("optimization.lr"), metadata={"least": 0})


@register_optimizer("apollo", dataclass=ApolloConfig)
class FairseqApollo(FairseqOptimizer):
    """Apollo optimizer for fairseq's trainer, selected with ``--optimizer apollo``.

    With ``--clip-mode each``, the gradient of each parameter is clipped in :meth:`step` rather than in
    :meth:`clip_grad_norm`. fairseq's fp16 and bf16 wrappers call ``clip_grad_norm`` before they divide the
    gradients by the loss scale.

    Example:
        Train a model with Apollo::

            fairseq-train data-bin --user-dir luna_fairseq --arch luna_base --optimizer apollo --lr 0.1
    """

    def __init__(self, cfg: ApolloConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg)
        if cfg.amp:
            # The wrapper uses the torch optimizer directly, without step and load_state_dict of this class.
            raise InputError(
                "--amp does not work with --optimizer apollo, because fairseq's AMP wrapper ignores "
                "--clip-mode each, and Apollo's options when a run is resumed. Use --bf16, or --fp16 "
                "--fp16-no-flatten-grads."
            )
        self._optimizer = Apollo(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        """Options of ``--optimizer apollo``, as keyword arguments for the torch optimizer."""
        decay_type = self.cfg.weight_decay_type
        return {
            "lr": self.cfg.lr[0] if isinstance(self.cfg.lr, Sequence) else self.cfg.lr,
            "beta": self.cfg.apollo_beta,
            "eps": self.cfg.apollo_eps,
            "rebound": str(self.cfg.apollo_rebound),
            "sigma": self.cfg.apollo_sigma,
            "weight_decay": self.cfg.weight_decay,
            "weight_decay_type": None if decay_type is None else str(decay_type),
        }

    @property
    def supports_memory_efficient_fp16(self) -> bool:
        """True, because Apollo computes the update in float32 for half-precision parameters."""
        return True

    @property
    def supports_flat_params(self) -> bool:
        """False, because flattening or sharding would change the norms, which Apollo computes per tensor."""
        return False

    @property
    def clips_each_parameter(self) -> bool:
        """True if :meth:`step` clips the norm of each gradient, False if the trainer clips the total norm."""
        return str(self.cfg.clip_mode) == "each"

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Optional[Callable] = None) -> Tensor:
        """Clip the gradients to the total norm ``max_norm``, and return the total norm before clipping.

        In the clip mode "each", return the largest norm of a single gradient; :meth:`step` clips later.
        """
        if not self.clips_each_parameter:
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        norms = gradient_norms(self._gradients())
        return norms.max() if len(norms) > 0 else next(iter(self.params)).new_zeros((), dtype=torch.float32)

    def load_state_dict(
        self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None
    ) -> None:
        """Load the optimizer state and the learning rate, but keep this run's other hyperparameters.

        ``optimizer_overrides`` takes precedence. Raises InputError if the state is that of another optimizer
        or does not fit the parameters.
        """
        # fairseq compares the names of the optimizers, but in half precision each is called FP16Optimizer.
        found = {name for values in state_dict["state"].values() for name in values}
        if found and "exp_avg_grad" not in found:
            raise InputError(
                f"the optimizer state in the checkpoint ({', '.join(sorted(found))}) is not Apollo's. "
                "Use the --optimizer of the training, or --reset-optimizer to continue from the weights alone"
            )
        try:
            super().load_state_dict(state_dict, optimizer_overrides)
        except ValueError as error:
            raise InputError(
                f"Apollo's state in the checkpoint does not belong to these parameters ({error}). "
                "Use --reset-optimizer to continue from the weights alone."
            ) from error
        options = {**self.optimizer_config, **(optimizer_overrides or {})}
        options.pop("lr")
        for group in self._optimizer.param_groups:
            group.update(options)
            resolve_weight_decay_type(group)

    def step(self, closure: Optional[Callable] = None, scale: float = 1.0, groups: Any = None) -> None:
        """Divide the gradients by ``scale``, and update the parameters. ``closure`` recomputes the gradients.

        In the clip mode "each", the gradient of each parameter is clipped after the division.
        """
        if self.clips_each_parameter:
            if closure is not None:
                closure()
                closure = None
            if scale != 1.0:
                self.multiply_grads(1.0 / scale)
                scale = 1.0
            clip_each(self._gradients(), self.cfg.clip_norm)
        super().step(closure, scale=scale, groups=groups)

    @torch.no_grad()
    def _gradients(self) -> List[Tensor]:
        """Return the gradients of all parameters that have one, detached from the autograd graph."""
        return [p.grad.detach() for p in self.params if p.grad is not None]


def gradient_norms(grads: Sequence[Tensor]) -> Tensor:
    """Compute the L2 norm of each of N gradients, as a vector [N] on the device of the first gradient.

    The vector is in float32, or in float64 if any gradient is in float64.
    """
    if not grads:
        return torch.empty(0)
    wide = torch.float64 if any(g.dtype is torch.float64 for g in grads) else torch.float32
    return torch.stack([torch.norm(g, p=2, dtype=wide).to(grads[0].device) for g in grads])


def clip_each(grads: Sequence[Tensor], max_norm: float) -> Tensor:
    """Clip each tensor in place to an L2 norm of at most ``max_norm``; 0 means no limit.

    Each tensor is multiplied by min(1, max_norm / (norm + 1e-6)). Returns the norms before clipping.
    """
    norms = gradient_norms(grads)
    if max_norm > 0 and len(norms) > 0:
        for g, scale in zip(grads, (max_norm / (norms + 1e-6)).clamp_(max=1).unbind()):
            g.mul_(scale.to(g.device))
    return norms
