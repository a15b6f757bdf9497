"""Patches ``one-plugin`` and ``our-options``, which act when a command of fairseq starts."""

import ast
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from luna_fairseq.checks.options import check_config, check_options
from luna_fairseq.command_errors import in_command
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
    "model before the preset of --arch. Impossible options of our models and tasks are accepted, and "
    "fairseq-generate knows neither --int8 nor --shortlist.",
)


@ONE_PLUGIN.replaces("fairseq.utils:import_user_module")
def _import_once(import_user_module: Function, args: Any) -> Any:
    """Import the folder of --user-dir, unless it is already imported under another path.

    Args:
        import_user_module: fairseq's original function.
        args: options of the command, one of which is ``user_dir``.

    Returns:
        Result of the original function.

    Raises:
        InputError: --user-dir names another copy of an imported package.
    """
    import fairseq

    user_dir = getattr(args, "user_dir", None) or ""
    imported = sys.modules.get(Path(user_dir).name) if user_dir else None
    places = [Path(place) for place in getattr(imported, "__path__", ())]
    package = Path(fairseq.__file__).parent
    # fairseq searches these folders in this order.
    folders = (Path(user_dir), package / user_dir, package.parent / user_dir) if places else ()
    named = next((folder for folder in folders if folder.is_dir()), None)
    if named is None:
        return import_user_module(args)
    if any(place.samefile(named) for place in places):
        return import_user_module(Namespace(user_dir=str(places[0])))
    raise InputError(
        f"--user-dir {user_dir} is another copy of {places[0]}, which this process has imported already. "
        "Use that folder, or uninstall it"
    )


@OUR_OPTIONS.replaces("fairseq.options:parse_args_and_arch")
def _parse_and_check(parse: Function, parser: ArgumentParser, *args: Any, **kwargs: Any) -> Any:
    """Parse the command line and check the options.

    ``--int8`` is replaced by ``--cpu`` and a model override, and ``--shortlist`` by a model override.

    Args:
        parse: fairseq's original function.
        parser: parser of a command.
        args: further arguments of the original function.
        kwargs: further arguments of the original function.

    Returns:
        Result of the original function, with the options of the command.
    """
    _add_model_options(parser)
    parsed = parse(parser, *args, **kwargs)
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    check_options(options)
    if hasattr(options, "model_overrides"):
        given = {name: getattr(options, name, None) for name in ("int8", "shortlist")}
        given = {name: value for name, value in given.items() if value}
        if given:
            options.model_overrides = repr({**ast.literal_eval(options.model_overrides), **given})
            options.cpu = options.cpu or "int8" in given
    return parsed


def _add_model_options(parser: ArgumentParser) -> None:
    """Add options that override the model's to the parser of a command that loads a model for use.

    fairseq-generate, fairseq-interactive and fairseq-eval-lm get ``--int8``, the first two ``--shortlist``.

    Args:
        parser: parser to which the options are added.
    """
    options = parser._option_string_actions
    if "--model-overrides" not in options:
        return
    if ("--beam" in options or "--context-window" in options) and "--int8" not in options:
        parser.add_argument("--int8", action="store_true", help="use 8-bit weights on the CPU")
    if "--beam" in options and "--shortlist" not in options:
        shortlist = "file of luna-make-shortlist, to which target pieces are restricted"
        parser.add_argument("--shortlist", metavar="FILE", help=shortlist)


@OUR_OPTIONS.replaces("fairseq.sequence_generator:SequenceGenerator._generate")
def _generate(generate: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Generate translations of a batch, restricted to the shortlist of the models if they have one.

    Args:
        generate: fairseq's original method.
        self: sequence generator of fairseq.
        args: further arguments of the original method.
        kwargs: further arguments of the original method.

    Returns:
        Hypotheses of each sentence.
    """
    shortlist = getattr(self.model.single_model, "shortlist", None)
    if shortlist is None:
        return generate(self, *args, **kwargs)
    return shortlist.generate(partial(generate, self), self, *args, **kwargs)


@OUR_OPTIONS.replaces("fairseq_cli.train:add_defaults")
def _check_and_apply_preset(add_defaults: Function, cfg: Any) -> None:
    """Apply the preset of the architecture before the defaults of the model, and check the options.

    fairseq-hydra-train imports a plugin only after it has read the options, so they are checked here.

    Args:
        add_defaults: fairseq's original function.
        cfg: configuration of the command, updated in place.

    Raises:
        InputError: An option has an invalid value.
    """
    from omegaconf import OmegaConf, open_dict

    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    model = cfg.get("model")
    name = model.get("_name") if OmegaConf.is_config(model) else None
    if name in ARCH_CONFIG_REGISTRY and ARCH_MODEL_REGISTRY[name].__module__.startswith("luna_fairseq."):
        with open_dict(model):
            ARCH_CONFIG_REGISTRY[name](model)
    add_defaults(cfg)
    if _is_hydra_train() and in_command(spawned=True):
        check_config(cfg)


def _is_hydra_train() -> bool:
    """Return True if this process runs fairseq-hydra-train."""
    main = getattr(sys.modules.get("__main__"), "cli_main", None)
    return main is not None and Path(main.__code__.co_filename).name == "hydra_train.py"
