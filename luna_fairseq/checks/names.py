"""Checks of the names of options in places where fairseq accepts any name."""

import ast
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, Collection, Iterable, Mapping

from luna_fairseq.errors import InputError


def flat(config: Any) -> Namespace:
    """Flatten a configuration into a namespace with the names of the command line.

    Args:
        config: configuration of fairseq with groups of options. The name of a group's component also becomes
            an option, such as ``arch`` or ``task``.

    Returns:
        Namespace with the options of all groups.
    """
    from omegaconf import OmegaConf

    options = {}
    for group, values in OmegaConf.to_container(config, resolve=False).items():
        if isinstance(values, dict):
            options.update(values)
            options["arch" if group == "model" else group] = values.get("_name")
    return Namespace(**options)


def check_groups(config: Any) -> None:
    """Check the names of options in groups such as ``common`` and ``dataset``.

    fairseq-hydra-train accepts any name in these groups.

    Args:
        config: configuration of fairseq-hydra-train.

    Raises:
        InputError: A group has an unknown option.
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
        overrides: new values by the name of the option.
        trained: configuration of the training. The namespaces of old checkpoints are not checked.
        where: source of the overrides, for error messages (default: "--model-overrides").
        also: further names to accept (default: none).

    Raises:
        InputError: The training had no option of that name.
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
        The suggestion, or an empty string if no known name is similar.

    Example:
        >>> nearest("encoder_layer", ["encoder_layers", "decoder_layers"])
        '; nearest: encoder_layers'
    """
    similar = get_close_matches(name, sorted(names), 1, 0.5)
    return f"; nearest: {similar[0]}" if similar else ""
