"""Functions that read, complete and compare the model options in checkpoints.

The dataclass of a model declares all of its options. Options such as dropout do not change the output of a
trained model, and have ``MAY_CHANGE`` in the metadata of their field. All other options are called *fixed*:
weights trained with one value give different outputs with another. fairseq's own models have no such
metadata, so the metadata of this package's options with the same names apply.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from typing import Any, Dict, List, Mapping, Tuple

MAY_CHANGE = "may_change"
# Metadata of an option that also leaves training as it is, and changes only its time or memory.
COSTS_ONLY = "costs_only"
# Metadata that names another option, whose value replaces None.
DEFAULT_FROM = "default_from"
# Metadata of an option that has no effect without others: a dictionary from the names of these options to
# values, of which one is enough. True stands for any value, and False for an option that is not set. An empty
# dictionary marks an option that never has an effect.
USED_WITH = "used_with"
_OURS = "luna_fairseq."


def plain_options(config: Any) -> Dict[str, Any]:
    """Convert a flat configuration to a dictionary, with enums replaced by their values.

    Interpolations such as ``${task.data}`` are not resolved.
    """
    # Imported here, because the engine's table can be listed without fairseq and omegaconf.
    from omegaconf import OmegaConf

    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=False)
    items = config if isinstance(config, Mapping) else vars(config)
    return {name: getattr(value, "value", value) for name, value in items.items()}


def get_option(config: Any, name: str) -> Any:
    """Return the value of an option in a checkpoint's configuration, or None if the option is missing."""
    # get() raises for a missing option in omegaconf 2.0.
    if name not in config:
        return None
    return getattr(config, name) if isinstance(config, Namespace) else config[name]


def model_name(options: Mapping[str, Any]) -> str:
    """Return the name under which fairseq registers the model with these options, such as "luna"."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    name = str(options.get("_name") or options.get("arch"))
    return ARCH_MODEL_NAME_REGISTRY.get(name, name)


def model_dataclass(options: Mapping[str, Any]) -> Any:
    """Return the dataclass that declares a model's options. None if the model is not from this package."""
    return _our_dataclass(model_name(options))


def _our_dataclass(model: str) -> Any:
    """Return the dataclass registered for a model name. None if the model is not from this package."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    dataclass = MODEL_DATACLASS_REGISTRY.get(model)
    return dataclass if is_ours(dataclass) else None


def is_ours(cls: Any) -> bool:
    """Return True if a class is defined in this package or derived from such a class."""
    return any(base.__module__.startswith(_OURS) for base in getattr(cls, "__mro__", ()))


def add_defaults(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a copy of a model's options. For this package's models, add defaults for missing options."""
    dataclass = model_dataclass(options)
    if dataclass is None:
        return dict(options)
    return fill_in_defaults({**plain_options(dataclass()), **options}, dataclass)


def fill_in_defaults(options: Dict[str, Any], dataclass: Any) -> Dict[str, Any]:
    """Replace each option that is None with the value of the option that it defaults to, in place.

    For example, ``encoder_projected_attention_heads`` defaults to ``encoder_attention_heads``. The field
    metadata of ``dataclass`` name these defaults.
    """
    for field in fields(dataclass):
        source = field.metadata.get(DEFAULT_FROM)
        if source is not None and options[field.name] is None:
            options[field.name] = options[source]
    return options


def fill_in_options(state: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Apply overrides to a loaded checkpoint's configuration, and add missing options, in place.

    An option that is newer than the checkpoint is set to the default in the model's dataclass. fairseq itself
    would use the architecture's preset, which may have changed since training. If ``eval_bleu_args`` or
    ``eval_bleu_detok_args`` of an old checkpoint is None, it becomes "{}". Paths to pretrained embeddings
    (``--encoder-embed-path``) are removed, because the checkpoint contains the embeddings.
    """
    from omegaconf import OmegaConf, open_dict

    from fairseq.dataclass.utils import overwrite_args_by_name

    for options in filter(None, (state.get("args"), (state.get("cfg") or {}).get("model"))):
        if model_dataclass(plain_options(options)) is not None:
            for name in ("encoder_embed_path", "decoder_embed_path"):
                if getattr(options, name, None):
                    setattr(options, name, None)
    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        if getattr(state.get("args"), name, "") is None:
            setattr(state["args"], name, "{}")
    model: Any = (state.get("cfg") or {}).get("model")
    # A checkpoint with args in place of a configuration was written by the authors' code, and fairseq applies
    # the correct presets.
    if state.get("args") is not None or not OmegaConf.is_config(model):
        return
    dataclass = model_dataclass(plain_options(model))
    with open_dict(model):
        for name, default in plain_options(dataclass()).items() if dataclass is not None else ():
            if name not in model:
                model[name] = default
    overwrite_args_by_name(state["cfg"], overrides)


def fixed_options(model: str) -> List[str]:
    """Return the names of a model's options that must not change after training, such as encoder_layers."""
    from fairseq.models import MODEL_REGISTRY

    dataclass = _our_dataclass(model)
    if dataclass is not None:
        names = [f.name for f in fields(dataclass)]
    elif model not in MODEL_REGISTRY:
        names = list(dict.fromkeys(f.name for each in _our_dataclasses() for f in fields(each)))
    else:
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        MODEL_REGISTRY[model].add_args(parser)
        names = list(dict.fromkeys(action.dest for action in parser._actions))
    may_change = marked_options(model)
    return [name for name in names if name not in may_change and name != "_name"]


def marked_options(model: str, mark: str = MAY_CHANGE) -> Dict[str, List[str]]:
    """Return a model's options whose metadata contain ``mark``, as a dictionary from name to flag aliases.

    Models from other packages have no metadata. For them, return all marked options of this package.
    """
    dataclass = _our_dataclass(model)
    declared = [f for each in ([dataclass] if dataclass else _our_dataclasses()) for f in fields(each)]
    return {
        f.name: list(filter(None, [f.metadata.get("argparse_alias")]))
        for f in declared
        if f.metadata.get(mark)
    }


def _our_dataclasses() -> List[Any]:
    """Return the dataclasses that declare the options of this package's models."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    return list(filter(is_ours, MODEL_DATACLASS_REGISTRY.values()))


def find_unused(options: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Return the options of a model that have no effect, because the options that they need are not set.

    ``options`` is a complete dictionary. The result maps each name to the option values that it needs, one of
    which is enough. An empty dictionary of needs means that the option never has an effect on this model.
    """
    found, dataclass = {}, model_dataclass(options)
    for field in fields(dataclass) if dataclass is not None else ():
        needs = field.metadata.get(USED_WITH)
        if needs is not None:
            needs = {name: value for name, value in needs.items() if name in dataclass.__dataclass_fields__}
            if not any(_has_value(options[name], value) for name, value in needs.items()):
                found[field.name] = needs
    return found


def _has_value(option: Any, value: Any) -> bool:
    """Return True if an option has a value in the metadata ``USED_WITH``: True for set, False for not set."""
    return (bool(option) if isinstance(value, bool) else option) == value


def find_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> List[Tuple[str, Any, Any]]:
    """Return the options that differ between two models, among those that affect the output.

    Each option is a tuple (name, first value, second value). For models of different classes, only "arch" is
    returned. Options that only one model has are ignored, because their defaults change no output. Options
    without an effect on either model are ignored, too.
    """
    models = model_name(one), model_name(other)
    if models[0] != models[1]:
        return [("arch", one.get("arch") or one.get("_name"), other.get("arch") or other.get("_name"))]
    one, other = add_defaults(one), add_defaults(other)
    unused = find_unused(one).keys() & find_unused(other).keys()
    names = [name for name in fixed_options(models[0]) if name not in unused]
    shared = [name for name in names if name in one and name in other]
    return [(name, one[name], other[name]) for name in shared if one[name] != other[name]]


def command_line(options: Mapping[str, Any]) -> List[str]:
    """Return the fairseq-train arguments for the architecture and the fixed options of a checkpoint.

    Options without an effect are left out, because a training refuses them.
    """
    model, unused = model_name(options), find_unused(add_defaults(options))
    words = ["--arch", model]
    for name in fixed_options(model):
        value = options.get(name)
        if name not in unused and value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words
