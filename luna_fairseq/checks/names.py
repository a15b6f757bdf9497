"""Options by their names, and names that nothing has: fairseq sets any where it asks for a dictionary."""

import ast
from argparse import Namespace
from difflib import get_close_matches
from typing import Any, Collection, Iterable, Mapping

from luna_fairseq.errors import InputError


def flat(config: Any) -> Namespace:
    """The options of all groups under the names of the command line."""
    from omegaconf import OmegaConf

    options = {}
    for group, values in OmegaConf.to_container(config, resolve=False).items():
        if isinstance(values, dict):
            options.update(values)
            options["arch" if group == "model" else group] = values.get("_name")
    return Namespace(**options)


def check_groups(config: Any) -> None:
    """Raise InputError for an unknown option in fairseq-hydra-train's groups without a name, which take
    any."""
    from fairseq.dataclass.configs import FairseqConfig

    for group, field in FairseqConfig.__dataclass_fields__.items():
        known = getattr(field.type, "__dataclass_fields__", {})
        for option in config.get(group) or ():
            if known and option not in known:
                raise InputError(f"{group} has no option {option}{nearest(option, known)}")


def check_overrides(
    overrides: Mapping[str, Any], trained: Any, where: str = "--model-overrides", also: Collection[str] = ()
) -> None:
    """Raise InputError for what is neither among the options of a training's configuration nor ``also`` one.
    fairseq-validate gives all its options as overrides, --model-overrides among them."""
    if "model_overrides" in overrides:
        overrides = ast.literal_eval(overrides["model_overrides"])
    if isinstance(trained, Namespace) or isinstance(trained.model, Namespace):
        return  # takes any
    known = {*trained, *vars(flat(trained)), *also}
    for name in overrides:
        if name not in known:
            raise InputError(f"{where}: the checkpoint's training had no option {name}{nearest(name, known)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """How a line ends that says that there is no such ``name``, where one of ``names`` is like it."""
    found = get_close_matches(name, sorted(names), 1, 0.5)
    return f"; nearest: {found[0]}" if found else ""
