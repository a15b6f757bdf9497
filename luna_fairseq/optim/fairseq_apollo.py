"""``--optimizer apollo``: Apollo (Ma, 2020, arXiv 2009.13586) in fairseq, and ``--clip-mode``."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import torch
from omegaconf import II
from torch import Tensor

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from luna_fairseq.errors import InputError
from luna_fairseq.optim.apollo import REBOUNDS, WEIGHT_DECAY_TYPES, Apollo


@dataclass
class ApolloConfig(FairseqDataclass):
    """Options of ``--optimizer apollo``."""

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
            "help": "size of the constant rebound; --lr belongs to it (lr 0.1 with 0.01 is lr 10 with 1.0)",
            "above": 0,
        },
    )
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay", "least": 0})
    weight_decay_type: Optional[ChoiceEnum(list(WEIGHT_DECAY_TYPES))] = field(
        default=None,
        metadata={
            "help": "added to the gradient (L2), to the direction (decoupled), or to the direction, divided "
            "by the mean curvature (stable); by default L2 for the constant rebound, decoupled for belief"
        },
    )
    clip_mode: ChoiceEnum(["total", "each"]) = field(
        default="total",
        metadata={
            "help": "apply --clip-norm to the norm of all gradients together (total), or to each parameter's "
            "own (each; the logged gnorm is then the largest)"
        },
    )
    clip_norm: float = field(default=II("optimization.clip_norm"), metadata={"least": 0})
    amp: bool = II("common.amp")
    lr: List[float] = field(default=II("optimization.lr"), metadata={"least": 0})


@register_optimizer("apollo", dataclass=ApolloConfig)
class FairseqApollo(FairseqOptimizer):
    """Apollo under fairseq's trainer.

    Per-parameter clipping happens in ``step``, not in ``clip_grad_norm``: fairseq's fp16 and bf16 wrappers
    ask for the norm of gradients that still carry the loss scale, and remove it only just before the step.

    Raises:
        InputError: an option is out of its range, or --amp was given.
    """

    def __init__(self, cfg: ApolloConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg)
        if cfg.amp:
            # GradScaler is shown the torch optimizer when unscaling and this object when stepping, takes them
            # for two, and unscales again. Adam does not notice the size of its gradients; Apollo does.
            raise InputError(
                "--amp does not work with --optimizer apollo, because fairseq's AMP wrapper divides the "
                "gradients by the loss scale twice; use --bf16, or --fp16 --fp16-no-flatten-grads"
            )
        self._optimizer = Apollo(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        """Keyword arguments of ``Apollo``."""
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
        """Apollo computes in float32 whatever the type of the parameters."""
        return True

    @property
    def supports_flat_params(self) -> bool:
        """Norms are taken per tensor: flattened or sharded parameters would change the result."""
        return False

    @property
    def clips_each_parameter(self) -> bool:
        """True if ``step`` clips. Then the trainer must not (``engine.precision``)."""
        return str(self.cfg.clip_mode) == "each"

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Optional[Callable] = None) -> Tensor:
        """Return the gradient norm; clip by it in mode "total" only.

        Args:
            max_norm: largest norm allowed, 0 for no clipping. Mode "each" clips to --clip-norm instead, in
                ``step``.
            aggregate_norm_fn: combines the norms of several workers' shards (fully sharded training, which
                fairseq refuses for an optimizer without support for flat parameters).

        Returns:
            a scalar: the norm of all gradients, or in mode "each" the largest of the parameters' norms.
        """
        if not self.clips_each_parameter:
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        norms = gradient_norms(self._gradients())
        return norms.max() if len(norms) > 0 else next(iter(self.params)).new_zeros((), dtype=torch.float32)

    def load_state_dict(
        self, state_dict: Dict[str, Any], optimizer_overrides: Optional[Dict[str, Any]] = None
    ) -> None:
        """fairseq's. Raises InputError when the state is of other parameters, as in a checkpoint of the
        authors' code.

        Args:
            state_dict: what ``state_dict`` gave.
            optimizer_overrides: options that replace those of the state.
        """
        try:
            super().load_state_dict(state_dict, optimizer_overrides)
        except ValueError as error:
            raise InputError(
                f"Apollo's state in the checkpoint does not belong to these parameters ({error}): "
                "give --reset-optimizer to train on from the weights alone"
            ) from error

    def step(self, closure: Optional[Callable] = None, scale: float = 1.0, groups: Any = None) -> None:
        """Clip each parameter's gradient in mode "each", then update.

        Args:
            closure: recomputes the gradients first.
            scale: what the gradients are to be divided by.
            groups: not used.
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
        return [p.grad.detach() for p in self.params if p.grad is not None]


def gradient_norms(grads: Sequence[Tensor]) -> Tensor:
    """L2 norm of each tensor: [number of tensors], on the first one's device; float32, float64 if one is."""
    if not grads:
        return torch.empty(0)
    wide = torch.float64 if any(g.dtype is torch.float64 for g in grads) else torch.float32
    return torch.stack([torch.norm(g, p=2, dtype=wide).to(grads[0].device) for g in grads])


def clip_each(grads: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale each tensor in place by ``min(1, max_norm / (its own L2 norm + 1e-6))``; 0 only measures.

    Returns:
        the norms before clipping, [number of tensors]: see :func:`gradient_norms`.
    """
    norms = gradient_norms(grads)
    if max_norm > 0 and len(norms) > 0:
        for g, scale in zip(grads, (max_norm / (norms + 1e-6)).clamp_(max=1).unbind()):
            g.mul_(scale.to(g.device))
    return norms
