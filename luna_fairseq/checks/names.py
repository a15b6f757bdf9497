"""Checks for unknown option names, in places where fairseq accepts any name."""

import ast
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, Collection, Dict, Iterable, Mapping

from luna_fairseq.errors import InputError


def flatten_config(config: Any) -> Namespace:
    """Convert fairseq's nested configuration into a flat namespace, as if parsed from the command line."""
    from omegaconf import OmegaConf

    options: Dict[str, Any] = {}
    for group, values in OmegaConf.to_container(config, resolve=False).items():
        if isinstance(values, dict):
            # A reference such as ${dataset.batch_size} does not replace the value of that name.
            options.update((k, v) for k, v in values.items() if k not in options or str(v)[:2] != "${")
            options["arch" if group == "model" else group] = values.get("_name")
    return Namespace(**options)


def check_groups(config: Any) -> None:
    """Raise InputError if a configuration group, such as ``common``, contains an unknown option.

    fairseq-hydra-train itself accepts any name in these groups.
    """
    from fairseq.dataclass.configs import FairseqConfig

    for group, field in FairseqConfig.__dataclass_fields__.items():
        known = getattr(field.type, "__dataclass_fields__", {})
        for option in config.get(group) or ():
            if known and option not in known:
                raise InputError(f"{group} has no option {option}{suggest_name(option, known)}")


def check_overrides(
    overrides: Mapping[str, Any],
    trained: Any,
    where: str = "--model-overrides",
    allowed: Collection[str] = (),
) -> None:
    """Raise InputError if an override names an option that a checkpoint's configuration does not have.

    ``overrides`` maps option names to new values, and ``trained`` is the checkpoint's configuration. Names in
    ``allowed`` are accepted too. The message names ``where``, the option or function with the overrides.
    """
    # fairseq-validate passes all of its options as overrides, including --model-overrides.
    if "model_overrides" in overrides:
        overrides = ast.literal_eval(overrides["model_overrides"])
    if isinstance(trained, Namespace) or isinstance(trained.model, Namespace):
        return
    known = {*trained, *vars(flatten_config(trained)), *allowed}
    for name in overrides:
        if name not in known:
            suggestion = suggest_name(name, known)
            raise InputError(f"{where}: the checkpoint's training had no option {name}{suggestion}")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a sentence for an error message that suggests a similar known name, or "" if there is none.

    Example:
        >>> suggest_name("encoder_layer", ["encoder_layers", "decoder_layers"])
        '. Did you mean encoder_layers?'
    """
    similar = get_close_matches(name, sorted(names), 1, 0.5)
    return f". Did you mean {similar[0]}?" if similar else ""
