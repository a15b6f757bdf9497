"""Statistics of models and optimizers, for --tensorboard-logdir and --wandb-project."""

from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, DefaultDict, Dict, Iterator, List, Tuple

import torch

from luna_fairseq.engine.mend import KIND, Mend

STATISTICS = Mend(
    "statistics",
    KIND,
    what="with --tensorboard-logdir, --wandb-project or --aim-repo, also logs statistics of "
    "attentions and the optimizer: gamma, entropy and coverage of pack attention, Apollo's curvature",
    why="it logs what the criterion returns, and these belong to none",
)

Statistics = DefaultDict[str, List[float]]
_WRAPPED = ("fp32_optimizer", "wrapped_optimizer")  # as fairseq's fp16 optimizers call the inner one


@STATISTICS.around("fairseq.trainer:Trainer.train_step")
def _train_and_log(train_step: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    from fairseq.logging import metrics  # the table is read where there is no fairseq, too

    if not _asked_for(self.cfg) or (self.get_num_updates() + 1) % self.cfg.common.log_interval:
        return train_step(self, *args, **kwargs)
    with collecting(self.model) as collected:
        output = train_step(self, *args, **kwargs)
    if output is not None:  # None: the gradients overflowed, and nothing was updated
        for name, values in sorted(collected.items()):
            metrics.log_scalar(name, sum(values) / len(values), priority=5000, round=4)
        for name, value in _of_optimizer(self.optimizer).items():
            metrics.log_scalar(name, value, priority=5001)
    return output


def _asked_for(cfg: Any) -> bool:
    common = cfg.common
    return any(getattr(common, name, None) for name in ("tensorboard_logdir", "wandb_project", "aim_repo"))


@contextmanager
def collecting(model: torch.nn.Module) -> Iterator[Statistics]:
    """What the modules with a method ``statistics`` return of what they are called with in the context, by
    name.

    ``statistics`` takes what ``forward`` takes, and draws no random number that training would have drawn.
    """
    collected: Statistics = defaultdict(list)
    modules = [(name, module) for name, module in model.named_modules() if hasattr(module, "statistics")]
    for name, module in modules:
        module.__dict__["forward"] = partial(_forward, module, module.forward, _place(name), collected)
    try:
        yield collected
    finally:
        for _, module in modules:
            del module.__dict__["forward"]


def _forward(module: Any, forward: Any, place: str, collected: Statistics, *args: Any, **kwargs: Any) -> Any:
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        found: Dict[str, float] = module.statistics(*args, **kwargs)
    for name, value in found.items():
        collected[f"luna/{name}/{place}"].append(value)
    return forward(*args, **kwargs)


def _place(name: str) -> str:
    """Without what fairseq puts around a model: module.encoder.layers.0.self_attn is encoder.0.self_attn."""
    left_out = ("module", "layers", "sentence_encoder", "_fsdp_wrapped_module")
    return ".".join(part for part in name.split(".") if part not in left_out)


def _of_optimizer(optimizer: Any) -> Dict[str, float]:
    inner: Tuple[Any, ...] = tuple(getattr(optimizer, name, None) for name in _WRAPPED)
    for candidate in (optimizer, *inner):
        if hasattr(candidate, "statistics"):
            return {f"apollo/{name}": value for name, value in candidate.statistics().items()}
    return {}
