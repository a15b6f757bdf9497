"""Checks of option names in dictionaries and configuration groups, where fairseq accepts any name."""

import ast
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, Collection, Iterable, Mapping

from luna_fairseq.errors import InputError


def flat(config: Any) -> Namespace:
    """Flatten a configuration into a namespace with the names of the command line.

    Args:
        config: configuration of fairseq with groups of options. The name of each group's component becomes an
            option as well, such as ``arch`` or ``task``.
    """
    from omegaconf import OmegaConf

    options = {}
    for group, values in OmegaConf.to_container(config, resolve=False).items():
        if isinstance(values, dict):
            options.update(values)
            options["arch" if group == "model" else group] = values.get("_name")
    return Namespace(**options)


def check_groups(config: Any) -> None:
    """Check the names of all options in the groups that are not components.

    fairseq-hydra-train accepts any name in these groups (``common``, ``dataset`` and so on).

    Args:
        config: configuration of fairseq-hydra-train.

    Raises:
        InputError: a group has an unknown option.
    """
    from fairseq.dataclass.configs import FairseqConfig

    for group, field in FairseqConfig.__dataclass_fields__.items():
        known = getattr(field.type, "__dataclass_fields__", {})
        for option in config.get(group) or ():
            if known and option not in known:
                raise InputError(f"{group} has no option {option}{nearest(option, known)}")


def check_overrides(
    overrides: Mapping[str, Any], trained: Any, where: str = "--model-overrides", also: Collection[str] = ()
) -> None:
    """Check that overrides change only options that the checkpoint was trained with.

    Args:
        overrides: dictionary from the name of an option to its new value.
        trained: configuration of the training. A namespace, which old checkpoints have, is not checked.
        where: source of the overrides, for error messages (default: "--model-overrides").
        also: further names to accept (default: none).

    Raises:
        InputError: the training had no option of that name.
    """
    # fairseq-validate passes all of its options as overrides, including --model-overrides.
    if "model_overrides" in overrides:
        overrides = ast.literal_eval(overrides["model_overrides"])
    if isinstance(trained, Namespace) or isinstance(trained.model, Namespace):
        return
    known = {*trained, *vars(flat(trained)), *also}
    for name in overrides:
        if name not in known:
            raise InputError(f"{where}: the checkpoint's training had no option {name}{nearest(name, known)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name, which suggests a similar name.

    Args:
        name: unknown name.
        names: known names.

    Returns:
        The suggestion; empty if no known name is similar.

    Example:
        >>> nearest("encoder_layer", ["encoder_layers", "decoder_layers"])
        '; nearest: encoder_layers'
    """
    found = get_close_matches(name, sorted(names), 1, 0.5)
    return f"; nearest: {found[0]}" if found else ""
