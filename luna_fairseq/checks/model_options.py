"""Functions that read the options of models from checkpoints, compare them, and format them for a command.

The dataclass of a model is the only list of its options.

An option with ``MAY_CHANGE`` in its metadata, such as dropout, does not change the function that a trained
model computes. Every other option is *fixed*, because it determines how the weights are used. fairseq's
models have no such metadata. Their options are treated like options of the same name in our models.
"""

from argparse import ArgumentParser
from dataclasses import fields
from typing import Any, Dict, List, Mapping, Tuple

from luna_fairseq.errors import InputError

MAY_CHANGE = "may_change"
# Metadata that names another option, whose value replaces None.
DEFAULT_FROM = "default_from"
# Options of earlier versions that models no longer support.
REMOVED = ("carry_packed",)
_OURS = "luna_fairseq."


def plain_options(config: Any) -> Dict[str, Any]:
    """Convert a flat configuration into a dictionary.

    Enums are converted to strings. References to other groups of options are not resolved.

    Args:
        config: dataclass, DictConfig, Namespace or mapping.

    Returns:
        Values by the name of the option.
    """
    # Imported here, because the engine's table can be listed without fairseq and omegaconf.
    from omegaconf import OmegaConf

    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=False)
    items = config if isinstance(config, Mapping) else vars(config)
    return {name: getattr(value, "value", value) for name, value in items.items()}


def model_name(options: Mapping[str, Any]) -> str:
    """Return the name of the registered model that options belong to.

    Args:
        options: options of a model, with ``_name`` or ``arch``.

    Returns:
        The name of the model, or the name of the architecture if it is unknown.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    name = str(options.get("_name") or options.get("arch"))
    return ARCH_MODEL_NAME_REGISTRY.get(name, name)


def dataclass_of(options: Mapping[str, Any]) -> Any:
    """Return the dataclass of the model that options belong to, or None for a model of another package.

    Args:
        options: options of a model, with ``_name`` or ``arch``.
    """
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    return _ours(MODEL_DATACLASS_REGISTRY.get(model_name(options)))


def _ours(dataclass: Any) -> Any:
    """Return a dataclass of this package unchanged, and None for any other dataclass."""
    return dataclass if getattr(dataclass, "__module__", "").startswith(_OURS) else None


def complete(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Add default values for the options that are missing.

    Args:
        options: options of a model.

    Returns:
        A new dictionary with all options of the model, or a copy of ``options`` for a model of another
        package.
    """
    dataclass = dataclass_of(options)
    if dataclass is None:
        return dict(options)
    return fill_open({**plain_options(dataclass()), **options}, dataclass)


def fill_open(options: Dict[str, Any], dataclass: Any) -> Dict[str, Any]:
    """Replace values of None by the value of the option that the metadata ``default_from`` names.

    Args:
        options: values by the name of the option, updated in place.
        dataclass: dataclass that declares the options.

    Returns:
        ``options`` itself.
    """
    for field in fields(dataclass):
        source = field.metadata.get(DEFAULT_FROM)
        if source is not None and options[field.name] is None:
            options[field.name] = options[source]
    return options


def fill_in_options(state: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Complete the configuration of a checkpoint in place, and apply overrides.

    Options that are newer than the checkpoint get the default of the model's dataclass. fairseq would use the
    current preset of the architecture instead. If ``eval_bleu_args`` or ``eval_bleu_detok_args`` is None, as
    in older versions, the value becomes ``{}``.

    Args:
        state: content of the checkpoint, changed in place.
        overrides: new values by name, applied to every group that has an option of this name.
    """
    from omegaconf import OmegaConf, open_dict

    from fairseq.dataclass.utils import overwrite_args_by_name

    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        if getattr(state.get("args"), name, "") is None:
            setattr(state["args"], name, "{}")
    model: Any = (state.get("cfg") or {}).get("model")
    # A checkpoint with args in place of a configuration was written by the authors' code, and fairseq applies
    # the correct presets.
    if state.get("args") is not None or not OmegaConf.is_config(model):
        return
    dataclass = dataclass_of(plain_options(model))
    with open_dict(model):
        for name, default in plain_options(dataclass()).items() if dataclass is not None else ():
            if name not in model:
                model[name] = default
    overwrite_args_by_name(state["cfg"], overrides)


def check_removed_options(path: Any, options: Mapping[str, Any]) -> None:
    """Check that a checkpoint's model uses no option that has been removed.

    Args:
        path: file of the checkpoint.
        options: options of the checkpoint's model.

    Raises:
        InputError: The model uses an option in ``REMOVED``.
    """
    for name in REMOVED:
        if options.get(name):
            raise InputError(
                f"{path} was trained with --{name.replace('_', '-')}, which has been removed. Load it with "
                "the code at commit 2c9cbee"
            )


def fixed_options(model: str) -> List[str]:
    """Return the names of a model's fixed options, which determine how its weights are used.

    Args:
        model: name of the model. For an unknown model, the names of all models of this package are returned.
    """
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    ours = list(filter(None, map(_ours, MODEL_DATACLASS_REGISTRY.values())))
    dataclass = MODEL_DATACLASS_REGISTRY.get(model)
    if dataclass in ours:
        declared = fields(dataclass)
        return [f.name for f in declared if not f.metadata.get(MAY_CHANGE) and f.name != "_name"]
    may_change = {f.name for each in ours for f in fields(each) if f.metadata.get(MAY_CHANGE)}
    if model not in MODEL_REGISTRY:
        names = {f.name: None for each in ours for f in fields(each) if f.name != "_name"}
    else:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        MODEL_REGISTRY[model].add_args(parser)
        names = {action.dest: None for action in parser._actions}
    return [name for name in names if name not in may_change]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> List[Tuple[str, Any, Any]]:
    """Compare the fixed options of two models.

    Args:
        one: options of the first model.
        other: options of the second model.

    Returns:
        For each fixed option that differs, a tuple of its name, its value in ``one`` and its value in
        ``other``. If the models have different classes, only ``arch`` is returned. Options that only one
        model has are ignored, because newer code added them with a default that changes nothing.
    """
    models = model_name(one), model_name(other)
    if models[0] != models[1]:
        return [("arch", one.get("arch") or one.get("_name"), other.get("arch") or other.get("_name"))]
    one, other = complete(one), complete(other)
    shared = [name for name in fixed_options(models[0]) if name in one and name in other]
    return [(name, one[name], other[name]) for name in shared if one[name] != other[name]]


def command_line(options: Mapping[str, Any]) -> List[str]:
    """Return the arguments of fairseq-train that build the same model: ``--arch`` and all fixed options.

    Options that are None or False are omitted, because every boolean option is False by default.

    Args:
        options: options of a model, with ``_name`` or ``arch``.
    """
    model = model_name(options)
    words = ["--arch", model]
    for name in fixed_options(model):
        value = options.get(name)
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words
