"""What fairseq's commands do first: import the plugin, look at their options."""

import ast
import logging
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from luna_fairseq.checks.names import check_overrides
from luna_fairseq.checks.options import check_config, check_options
from luna_fairseq.engine.mend import KIND, RUNS, Function, Mend
from luna_fairseq.errors import InputError, in_command

logger = logging.getLogger(__name__)

ONE_PLUGIN = Mend(
    "one-plugin",
    RUNS,
    'one folder by two names is "not globally unique", as paths are compared as they are written',
)

POSSIBLE_OPTIONS = Mend(
    "possible-options",
    KIND,
    "options that cannot be (a dropout of 2, --clip-norm -1, --fp16 on a CPU, no task) are taken "
    "without a word, or end in a traceback, some of them after an epoch",
)


@ONE_PLUGIN.around("fairseq.utils:import_user_module")
def _import_once(import_user_module: Function, args: Any) -> Any:
    import fairseq

    wanted = getattr(args, "user_dir", None) or ""
    there = sys.modules.get(Path(wanted).name) if wanted else None
    places = [Path(place) for place in getattr(there, "__path__", ())]
    beside = Path(fairseq.__file__).parent
    # Where fairseq looks, in its order.
    folders = (Path(wanted), beside / wanted, beside.parent / wanted) if places else ()
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        return import_user_module(args)
    if any(place.samefile(found) for place in places):
        return import_user_module(Namespace(user_dir=str(places[0])))
    raise InputError(
        f"--user-dir {wanted} is another copy of {places[0]}, which this process has imported already: "
        "give that one, or uninstall it"
    )


@POSSIBLE_OPTIONS.around("fairseq.options:parse_args_and_arch")
def _parsed_and_checked(parse: Function, parser: ArgumentParser, *args: Any, **kwargs: Any) -> Any:
    _offer_int8(parser)
    try:
        parsed = parse(parser, *args, **kwargs)
    except (KeyError, RuntimeError) as error:
        # Of all commands fairseq-validate alone has no task of its own.
        missing = {(None,): "task is missing: give that of the training, such as --task translation",
                   (): "arch is missing: give a model, such as --arch luna_base"}.get(error.args)  # fmt: skip
        if missing is None:
            raise
        raise InputError(f"--{missing}") from None
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    check_options(options)
    if getattr(options, "int8", False) and hasattr(options, "model_overrides"):
        overrides = {**ast.literal_eval(options.model_overrides), "int8": True}
        options.cpu, options.model_overrides = True, repr(overrides)
    return parsed


def _offer_int8(parser: ArgumentParser) -> None:
    """Give fairseq-generate, fairseq-interactive and fairseq-eval-lm, and no other command, ``--int8``."""
    has = parser._option_string_actions
    if "--model-overrides" in has and ("--beam" in has or "--context-window" in has) and "--int8" not in has:
        parser.add_argument("--int8", action="store_true", help="weights in 8 bits, on the CPU")


@POSSIBLE_OPTIONS.around("fairseq.checkpoint_utils:load_model_ensemble_and_task")
def _overridden(load: Function, filenames: Any, arg_overrides: Any = None, *args: Any, **kw: Any) -> Any:
    """fairseq sets no option that a model does not have, and says nothing."""
    loaded = load(filenames, arg_overrides, *args, **kw)
    if len(filenames) == 1 and _program() in ("generate.py", "interactive.py", "eval_lm.py", "validate.py"):
        check_overrides(arg_overrides or {}, loaded[1])
    if (arg_overrides or {}).get("int8"):
        for model in loaded[0]:
            if not getattr(getattr(getattr(model, "decoder", None), "cfg", None), "int8", False):
                raise InputError(
                    f"--int8: the checkpoint's model, a {type(model).__name__}, has no weights in 8 bits: "
                    "Luna's translation models, causal language models and peers have; leave it out"
                )
    return loaded


def _program() -> str:
    """The file of fairseq's command that this process is."""
    main = getattr(sys.modules.get("__main__"), "cli_main", None)
    return Path(main.__code__.co_filename).name if main else ""


@POSSIBLE_OPTIONS.around("fairseq.tasks:setup_task")
def _set_up(setup_task: Function, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    """Checked for fairseq-hydra-train, which reads a plugin after its options, and for the processes that it
    starts; a task that masks whole words is told --bpe where it looks for it."""
    root = cfg._get_root() if hasattr(cfg, "_get_root") else None
    if root is not None and _program() == "hydra_train.py" and in_command(spawned=True):
        check_config(root)
    task = setup_task(cfg, *args, **kwargs)
    if root is not None and getattr(cfg, "mask_whole_words", False) and not hasattr(task, "args"):
        task.args = root.bpe
    return task


@POSSIBLE_OPTIONS.around("fairseq_cli.train:get_valid_stats")
def without_the_metric(get: Function, cfg: Any, trainer: Any, stats: Any, *args: Any, **kw: Any) -> Any:
    """A --best-checkpoint-metric that validation had not this time (BLEU of empty translations alone)."""
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric in stats:
        return get(cfg, trainer, stats, *args, **kw)
    logger.warning(f"validation has no {metric}, which --best-checkpoint-metric asks for, but "
                   f"{', '.join(stats)}: it decides nothing this time")  # fmt: skip
    return {**stats, "num_updates": trainer.get_num_updates(), metric: None}
