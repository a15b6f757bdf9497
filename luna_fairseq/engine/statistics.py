"""Statistics of models and optimizers, for --tensorboard-logdir and --wandb-project."""

from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import Any, DefaultDict, Iterator, List

import torch

from luna_fairseq.engine.mend import KIND, Function, Mend

STATISTICS = Mend(
    "statistics",
    KIND,
    "--tensorboard-logdir, --wandb-project and --aim-repo get what the criterion returns: not gamma, "
    "entropy and coverage of pack attention, nor Apollo's curvature",
)

Statistics = DefaultDict[str, List[float]]
_SINKS = ("tensorboard_logdir", "wandb_project", "aim_repo")
# What fairseq puts around a model: module.encoder.layers.0.self_attn is encoder.0.self_attn.
_AROUND = ("module", "layers", "sentence_encoder", "_fsdp_wrapped_module")


@STATISTICS.around("fairseq.trainer:Trainer.train_step")
def _train_and_log(train_step: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    from fairseq.logging import metrics

    common = self.cfg.common
    asked = any(getattr(common, name, None) for name in _SINKS)
    if not asked or (self.get_num_updates() + 1) % common.log_interval:
        return train_step(self, *args, **kwargs)
    with collecting(self.model) as collected:
        output = train_step(self, *args, **kwargs)
    if output is not None:  # None: the gradients overflowed, and nothing was updated
        for name, values in sorted(collected.items()):
            metrics.log_scalar(name, sum(values) / len(values), priority=5000, round=4)
        # fairseq's fp16 optimizers are around another one.
        inner = [getattr(self.optimizer, name, None) for name in ("fp32_optimizer", "wrapped_optimizer")]
        optimizer: Any = next((x for x in (self.optimizer, *inner) if hasattr(x, "statistics")), None)
        for name, value in optimizer.statistics().items() if optimizer else ():
            metrics.log_scalar(f"apollo/{name}", value, priority=5001)
    return output


@contextmanager
def collecting(model: torch.nn.Module) -> Iterator[Statistics]:
    """What the modules with a method ``statistics`` return of what they are called with in the context, by
    name.

    ``statistics`` takes what ``forward`` takes, and draws no random number that training would have drawn.
    """
    collected: Statistics = defaultdict(list)
    modules = [(name, module) for name, module in model.named_modules() if hasattr(module, "statistics")]
    for name, module in modules:
        place = ".".join(part for part in name.split(".") if part not in _AROUND)
        module.__dict__["forward"] = partial(_forward, module, module.forward, place, collected)
    try:
        yield collected
    finally:
        for _, module in modules:
            del module.__dict__["forward"]


def _forward(module: Any, forward: Any, place: str, collected: Statistics, *args: Any, **kwargs: Any) -> Any:
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        for name, value in module.statistics(*args, **kwargs).items():
            collected[f"luna/{name}/{place}"].append(value)
    return forward(*args, **kwargs)
