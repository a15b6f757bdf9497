"""fairseq patches ``one-plugin`` and ``our-options``: import plugins only once, and check and extend options.

The patches take effect when a fairseq command starts.
"""

import ast
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from luna_fairseq.checks.model_options import is_ours
from luna_fairseq.checks.options import check_config, check_options
from luna_fairseq.command_errors import is_command
from luna_fairseq.engine.patch import RESULTS, RUNS, Function, Patch
from luna_fairseq.errors import InputError

ONE_PLUGIN = Patch(
    "one-plugin",
    RUNS,
    '--user-dir fails with "not globally unique" if it names the imported folder by another path, such as a '
    "symbolic link, because fairseq compares paths as text.",
)

OUR_OPTIONS = Patch(
    "our-options",
    RESULTS,
    "fairseq-hydra-train silently trains a model of the default size, because it applies the defaults of the "
    "model before the preset of --arch. Impossible options of our models and tasks are accepted. "
    "fairseq-generate knows neither --int8 nor --shortlist, and --no-repeat-ngram-size has no effect.",
)


@ONE_PLUGIN.replaces("fairseq.utils:import_user_module")
def _import_once(import_user_module: Function, args: Any) -> Any:
    """Replacement for ``import_user_module`` that accepts any path to a --user-dir already imported.

    A different copy of the package raises InputError.
    """
    import fairseq

    user_dir = getattr(args, "user_dir", None) or ""
    imported = sys.modules.get(Path(user_dir).name) if user_dir else None
    imported_folders = [Path(folder) for folder in getattr(imported, "__path__", ())]
    package = Path(fairseq.__file__).parent
    # fairseq searches these folders, in this order.
    folders = (Path(user_dir), package / user_dir, package.parent / user_dir) if imported_folders else ()
    named = next((folder for folder in folders if folder.is_dir()), None)
    if named is None:
        return import_user_module(args)
    if any(folder.samefile(named) for folder in imported_folders):
        return import_user_module(Namespace(user_dir=str(imported_folders[0])))
    raise InputError(
        f"--user-dir {user_dir} is another copy of {imported_folders[0]}, which this process has imported "
        "already. Use that folder, or uninstall it"
    )


@OUR_OPTIONS.replaces("fairseq.options:parse_args_and_arch")
def _parse_and_check(parse: Function, parser: ArgumentParser, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``parse_args_and_arch`` that adds and checks options of this package.

    ``--int8`` and ``--shortlist`` are converted to ``--model-overrides``. ``--int8`` also sets ``--cpu``.
    """
    _add_model_options(parser)
    parsed = parse(parser, *args, **kwargs)
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    check_options(options)
    if hasattr(options, "model_overrides"):
        overrides = {name: getattr(options, name, None) for name in ("int8", "shortlist")}
        overrides = {name: value for name, value in overrides.items() if value}
        if overrides:
            options.model_overrides = repr({**ast.literal_eval(options.model_overrides), **overrides})
            options.cpu = options.cpu or "int8" in overrides
    return parsed


def _add_model_options(parser: ArgumentParser) -> None:
    """Add ``--int8`` and ``--shortlist`` to the parser of a fairseq command.

    Commands that generate get both options, ``fairseq-eval-lm`` gets ``--int8``, and other commands get none.
    """
    options = parser._option_string_actions
    if "--model-overrides" not in options:
        return
    if ("--beam" in options or "--context-window" in options) and "--int8" not in options:
        parser.add_argument("--int8", action="store_true", help="use 8-bit weights on the CPU")
    if "--beam" in options and "--shortlist" not in options:
        shortlist = "file of luna-make-shortlist, to which target pieces are restricted"
        parser.add_argument("--shortlist", metavar="FILE", help=shortlist)


@OUR_OPTIONS.replaces("fairseq.tasks.fairseq_task:FairseqTask.build_generator")
def _build_our_generator(
    build: Function, self: Any, models: Any, args: Any, seq_gen_cls: Any = None, *more: Any, **kwargs: Any
) -> Any:
    """Replacement for ``build_generator`` that lets the first model choose the class if none is given."""
    if seq_gen_cls is None and all(hasattr(model, "choose_generator") for model in models):
        seq_gen_cls = models[0].choose_generator(args)
    return build(self, models, args, seq_gen_cls, *more, **kwargs)


@OUR_OPTIONS.replaces("fairseq_cli.hydra_train:add_defaults")
def _apply_preset(add_defaults: Function, cfg: Any) -> None:
    """Replacement for fairseq-hydra-train's ``add_defaults`` that first applies the preset of --arch.

    fairseq-hydra-train would ignore --arch. In a multirun, the plugin is already imported when the second
    job calls this function.
    """
    from omegaconf import OmegaConf, open_dict

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    if isinstance(cfg.get("model"), str):  # ``model: luna`` in a YAML file
        cfg.model = {"_name": cfg.model}
    model = cfg.get("model")
    name = model.get("_name") if OmegaConf.is_config(model) else None
    if name in ARCH_CONFIG_REGISTRY and is_ours(ARCH_MODEL_REGISTRY[name]):
        with open_dict(model):
            ARCH_CONFIG_REGISTRY[name](model)
    add_defaults(cfg)


@OUR_OPTIONS.replaces("fairseq_cli.train:add_defaults")
def _check_and_apply_preset(add_defaults: Function, cfg: Any) -> None:
    """Replacement for fairseq-train's ``add_defaults`` that applies the preset of --arch, and checks options.

    fairseq-hydra-train imports plugins after parsing, so its options are checked here.
    """
    _apply_preset(add_defaults, cfg)
    if _is_hydra_train() and is_command(spawned=True):
        check_config(cfg)


def _is_hydra_train() -> bool:
    """Return True if this process runs fairseq-hydra-train."""
    main = getattr(sys.modules.get("__main__"), "cli_main", None)
    return main is not None and Path(main.__code__.co_filename).name == "hydra_train.py"
