"""A recipe's file against what fairseq knows: the options of the components that it names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

import yaml
from omegaconf import OmegaConf

import luna_fairseq
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from luna_fairseq.checks.names import nearest
from luna_fairseq.errors import InputError

Settings = Dict[str, Dict[str, Any]]
# Groups of fairseq-hydra-train's own, that no command line has.
HYDRA = "hydra"


def load(path: Path) -> Settings:
    """The groups of a recipe's file. Raises InputError where it is missing, or is no mapping of groups to
    options."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(str(path)))
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(options, dict) for options in content.values()):
        raise InputError(f"{path} is no recipe: it must list groups (task, model, ...) with their options")
    return content


def check_recipe(path: Path, content: Settings, settings: Settings) -> None:
    """Raise InputError for a group, a name or an option that no command line of fairseq would take, with its
    line and the nearest known.

    Args:
        path: a recipe's file.
        content: its groups.
        settings: those of the whole recipe, which name the task, the model, ...
    """
    luna_fairseq.register()
    # What the name of a group can be; a group that is not here has none.
    registries = {"task": TASK_REGISTRY, "model": ARCH_MODEL_REGISTRY}
    registries.update({group: one["registry"] for group, one in REGISTRIES.items()})
    for group, options in content.items():
        if group == HYDRA:
            continue
        if group not in FairseqConfig.__dataclass_fields__:
            raise _unknown(path, [group], f"group {group}", FairseqConfig.__dataclass_fields__)
        name = str(settings[group].get("_name", ""))
        registry = registries.get(group)
        if registry is not None and name not in registry:
            if options.get("_name") == name:  # otherwise another file's fault
                raise _unknown(path, [group, "_name"], f"{group} {name}", registry)
            continue
        known = _options(group, registry[name] if registry else None)
        for key in options:
            if key not in known and key != "_name":
                raise _unknown(path, [group, key], f"option {key} of {name or group}", known, key)


def _options(group: str, component: Any) -> List[str]:
    """Options that the group, or the component it names, adds to fairseq's command line."""
    parser = argparse.ArgumentParser(add_help=False)
    if component is None:
        gen_parser_from_dataclass(parser, FairseqConfig.__dataclass_fields__[group].type())
    elif hasattr(component, "add_args"):
        component.add_args(parser)
    return [action.dest for action in parser._actions]


def _unknown(
    path: Path, keys: Sequence[str], what: str, known: Iterable[str], word: Optional[str] = None
) -> InputError:
    near = nearest(word or what.split()[-1], known)
    return InputError(f"{path}, line {_line(path, keys)}: {what} is unknown{near}")


def _line(path: Path, keys: Sequence[str]) -> int:
    """Where ``keys``, one inside the other, stand in a file."""
    node, line = yaml.compose(path.read_text(encoding="utf-8")), 0
    for key in keys:
        for name, value in node.value:
            if name.value == key:
                node, line = value, name.start_mark.line
                break
    return line + 1
