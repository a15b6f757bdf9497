"""Options that cannot be: refused in one line, before anything is trained."""

import re
from typing import Any, Callable, Iterator, Mapping, Tuple

import torch

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError

POSSIBLE_OPTIONS = Mend(
    "possible-options",
    what="refuses options that cannot be (a dropout of 2, no layers, --clip-norm -1, --fp16 on a CPU, no "
    "task, adaptive softmax without adaptive_loss, a model beyond memory) in one line, when it starts",
    why="it takes some of them without a word (a negative norm clips nothing) and ends in a traceback with "
    "others, some of them after an epoch",
)

_PROBABILITY = re.compile(r"(dropout|layerdrop|label_smoothing)$")
# Not of every name: --base-layers 0 of fairseq's language models means none of these.
_COUNT = re.compile(
    r"^(en|de)coder_(\w+_)?(layers|embed_dim|attention_heads)$|^(max_tokens|batch_size|update_freq)(_valid)?$"
)
_NOT_NEGATIVE = re.compile(r"^clip_norm$")
_BEYOND_MEMORY = re.compile(r"allocate memory|out of memory|not enough memory|overflow")


def check_values(options: Mapping[str, Any]) -> None:
    """Raise InputError where an option is no probability, no number of things, or negative."""
    for name, value in _numbers(options):
        option = f"--{name.replace('_', '-')} {value:g}"
        if _PROBABILITY.search(name) and not 0 <= value < 1:
            raise InputError(f"{option}: a probability is at least 0 and less than 1")
        if _COUNT.search(name) and value < 1:
            raise InputError(f"{option}: must be at least 1")
        if _NOT_NEGATIVE.search(name) and not value >= 0:
            raise InputError(f"{option}: must be at least 0 (0 clips nothing)")


def _numbers(options: Mapping[str, Any]) -> Iterator[Tuple[str, float]]:
    for name, given in options.items():
        for value in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield str(name), value


def _as_mapping(config: Any) -> Mapping[str, Any]:
    from omegaconf import OmegaConf  # the table is read where there is no fairseq, too

    if not OmegaConf.is_config(config):
        return vars(config)
    # What is missing stays so: an interpolation is another group's, and checked there.
    return OmegaConf.to_container(config, resolve=False)


@POSSIBLE_OPTIONS.around("fairseq.options:parse_args_and_arch")
def _of_a_task(parse: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return parse(*args, **kwargs)
    except KeyError as error:
        if error.args != (None,):
            raise
        # Of all commands fairseq-validate alone has no task of its own.
        raise InputError("--task is missing: give that of the training, such as --task translation") from None


@POSSIBLE_OPTIONS.around(
    "fairseq.tasks:setup_task",
    "fairseq.criterions:build_criterion",
    "fairseq.optim:build_optimizer",
    "fairseq.optim.lr_scheduler:build_lr_scheduler",
    "fairseq.data.data_utils:raise_if_valid_subsets_unintentionally_ignored",
)
def _explained_by_fairseq(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What is wrong while something is built from options is wrong with the options."""
    try:
        return build(*args, **kwargs)
    except (InputError, NotImplementedError):
        raise
    except Exception as error:
        explained = isinstance(error, (ValueError, AssertionError)) or type(error) is Exception
        if not explained or not str(error):
            raise
        raise InputError(" ".join(str(error).split())) from error


@POSSIBLE_OPTIONS.around("fairseq.models:build_model")
def _that_can_be_built(build_model: Callable[..., Any], cfg: Any, *args: Any, **kwargs: Any) -> Any:
    check_values(_as_mapping(cfg))
    try:
        return _explained_by_fairseq(build_model, cfg, *args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not _BEYOND_MEMORY.search(str(error)):
            raise
        raise InputError(
            f"the model does not fit into memory ({str(error).splitlines()[0][:200]}): give a smaller "
            "--projection-length, width or dictionary"
        ) from None


@POSSIBLE_OPTIONS.around("fairseq.trainer:Trainer.__init__")
def _that_can_be_trained(
    init: Callable[..., Any], self: Any, cfg: Any, task: Any, model: Any, criterion: Any, *args: Any
) -> None:
    for group in (cfg.optimization, cfg.dataset, cfg.criterion):
        check_values(_as_mapping(group) if group is not None else {})
    common = cfg.common
    flat = common.fp16 and not common.fp16_no_flatten_grads and not common.memory_efficient_fp16
    if flat and (common.cpu or not torch.cuda.is_available()):
        raise InputError(
            "--fp16 needs a GPU, or --fp16-no-flatten-grads beside it: --bf16 works on a CPU, too"
        )
    adaptive = getattr(getattr(model, "decoder", None), "adaptive_softmax", None) is not None
    if adaptive and getattr(cfg.criterion, "_name", None) != "adaptive_loss":
        raise InputError("--adaptive-softmax-cutoff needs --criterion adaptive_loss")
    if not adaptive and getattr(cfg.criterion, "_name", None) == "adaptive_loss":
        raise InputError(
            "--criterion adaptive_loss needs a model with adaptive softmax: give --adaptive-softmax-cutoff, "
            "which models with a decoder have, or another criterion"
        )
    init(self, cfg, task, model, criterion, *args)
