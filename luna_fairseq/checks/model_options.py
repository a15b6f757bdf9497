"""Read a model's options, compare them with another model's, and write them as words of a command line.

The dataclass of the model is the only list of its options.

A trained model computes the same with any value of an option that has ``MAY_CHANGE`` in its metadata
(dropout, memory, initial weights). Every other option decides what the weights mean. fairseq's models declare
options without this metadata, so that the options of our models of the same name decide.
"""

from argparse import ArgumentParser
from dataclasses import fields
from typing import Any, Dict, List, Mapping, Tuple

from luna_fairseq.errors import InputError

MAY_CHANGE = "may_change"
DEFAULT_FROM = "default_from"  # the option whose value is the default of one whose own default is None
# Options of earlier versions without which a model computes something else.
REMOVED = ("carry_packed",)
_OURS = "luna_fairseq."


def plain_options(config: Any) -> Dict[str, Any]:
    """Return name -> value for a flat configuration (dataclass, DictConfig, Namespace or mapping).

    Enums become strings. References to other groups of options are not resolved.
    """
    from omegaconf import OmegaConf  # the engine's table is read where there is no fairseq, too

    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=False)
    items = config if isinstance(config, Mapping) else vars(config)
    return {name: getattr(value, "value", value) for name, value in items.items()}


def model_name(options: Mapping[str, Any]) -> str:
    """Return the name of the registered model of ``options``. An unknown architecture is its own name."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    name = str(options.get("_name") or options.get("arch"))
    return ARCH_MODEL_NAME_REGISTRY.get(name, name)


def dataclass_of(options: Mapping[str, Any]) -> Any:
    """Return the dataclass of the model of ``options``, or None if the model is not one of ours."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    return _ours(MODEL_DATACLASS_REGISTRY.get(model_name(options)))


def _ours(dataclass: Any) -> Any:
    return dataclass if getattr(dataclass, "__module__", "").startswith(_OURS) else None


def complete(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``options`` completed by the defaults of the model's dataclass, if the model is one of ours."""
    dataclass = dataclass_of(options)
    if dataclass is None:
        return dict(options)
    return fill_open({**plain_options(dataclass()), **options}, dataclass)


def fill_open(options: Dict[str, Any], dataclass: Any) -> Dict[str, Any]:
    """Replace None, in place, by the value of the option that ``default_from`` names. Returns ``options``."""
    for field in fields(dataclass):
        source = field.metadata.get(DEFAULT_FROM)
        if source is not None and options[field.name] is None:
            options[field.name] = options[source]
    return options


def fill_in_options(state: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Complete the configuration of a checkpoint, in place, and apply ``overrides`` to all of it.

    Options that the model has gained since get the default of its dataclass. fairseq would take them from
    today's preset of the architecture. A None of --eval-bleu, which older versions stored, becomes {}.
    """
    from omegaconf import OmegaConf, open_dict

    from fairseq.dataclass.utils import overwrite_args_by_name

    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        if getattr(state.get("args"), name, "") is None:
            setattr(state["args"], name, "{}")
    model: Any = (state.get("cfg") or {}).get("model")
    # A checkpoint with args in place of a configuration is of the authors' code, whose presets are right.
    if state.get("args") is not None or not OmegaConf.is_config(model):
        return
    dataclass = dataclass_of(plain_options(model))
    with open_dict(model):
        for name, default in plain_options(dataclass()).items() if dataclass is not None else ():
            if name not in model:
                model[name] = default
    overwrite_args_by_name(state["cfg"], overrides)


def check_removed_options(path: Any, options: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of a model that uses an option of earlier versions.

    Args:
        path: name of the checkpoint
        options: the options of its model

    Raises:
        InputError: one of the options in ``REMOVED`` is on
    """
    for name in REMOVED:
        if options.get(name):
            raise InputError(
                f"{path} was trained with --{name.replace('_', '-')}, which has been removed. Load it with "
                "the code at commit 2c9cbee"
            )


def lasting(model: str) -> List[str]:
    """Return the names of a registered model's options that may not change.

    If ``model`` is not registered, the options of all models of this package are returned.
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
    """Return (option, value in ``one``, value in ``other``) where equal weights would compute differently.

    If the models are of different classes, the only option is ``arch``. An option that only one of them has
    came with newer code, whose default changes nothing, and is left out.
    """
    models = model_name(one), model_name(other)
    if models[0] != models[1]:
        return [("arch", one.get("arch") or one.get("_name"), other.get("arch") or other.get("_name"))]
    one, other = complete(one), complete(other)
    shared = [name for name in lasting(models[0]) if name in one and name in other]
    return [(name, one[name], other[name]) for name in shared if one[name] != other[name]]


def command_line(options: Mapping[str, Any]) -> List[str]:
    """Return the words with which fairseq-train builds the same model: ``--arch`` and all lasting options.

    An option that is None or False is left out, because every boolean is False by default.
    """
    model = model_name(options)
    words = ["--arch", model]
    for name in lasting(model):
        value = options.get(name)
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words
