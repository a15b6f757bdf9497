"""Loading of recipes (YAML files with the options of a training run), and checks of the names in them.

A recipe has groups, such as "optimizer". A group sets options, and may select a component by name, such as
"adam". All groups, components and options must exist in fairseq.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

import yaml
from omegaconf import OmegaConf

import luna_fairseq
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from luna_fairseq.checks.names import suggest_name
from luna_fairseq.commands.recipes import Settings
from luna_fairseq.errors import InputError

# Group with settings of hydra, which are not options of fairseq-train.
HYDRA = "hydra"


def load_settings(path: Path) -> Settings:
    """Load a recipe's YAML file as a mapping from group, such as "optimizer", to options."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(str(path)))
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(options, dict) for options in content.values()):
        raise InputError(f"{path} is not a recipe. Expected groups (task, model, ...), each with its options")
    return content


def check_recipe(path: Path, content: Settings, settings: Settings) -> None:
    """Raise InputError if fairseq does not know a group, component or option in a recipe's file.

    A component is a class that a group selects by name, such as an optimizer. ``content`` has the options of
    the file, and ``settings`` also has the options of the base file that the recipe extends.
    """
    registries = _component_registries()
    for group, options in content.items():
        if group == HYDRA:
            continue
        if group not in FairseqConfig.__dataclass_fields__:
            raise _unknown_name_error(path, [group], f"group {group}", FairseqConfig.__dataclass_fields__)
        name = str(settings[group].get("_name", ""))
        registry = registries.get(group)
        if registry is not None and name not in registry:
            # Otherwise the name is in the file of the family, which is checked separately.
            if options.get("_name") == name:
                raise _unknown_name_error(path, [group, "_name"], f"{group} {name}", registry)
            continue
        known = _known_options(group, registry[name] if registry else None)
        for key in options:
            if key not in known and key != "_name":
                raise _unknown_name_error(path, [group, key], f"option {key} of {name or group}", known, key)


def replaced_options(group: str, options: Iterable[str], name: str) -> List[str]:
    """Return the ``options`` that the component ``name`` of a group, such as "optimizer", does not have."""
    registry = _component_registries()[group]
    known = _known_options(group, registry[name]) if name in registry else list(options)
    return [option for option in options if option not in known and option != "_name"]


def _component_registries() -> Dict[str, Any]:
    """Return fairseq's registry for each kind of component, such as "optimizer", "task" or "model"."""
    luna_fairseq.register()
    registries = {"task": TASK_REGISTRY, "model": ARCH_MODEL_REGISTRY}
    return {**registries, **{group: one["registry"] for group, one in REGISTRIES.items()}}


def option_actions(group: str, name: Optional[str]) -> Dict[str, argparse.Action]:
    """Return a component's options as argparse actions, whose defaults include the preset ``name``."""
    actions = _known_options(group, _component_registries().get(group, {}).get(name))
    preset = argparse.Namespace()
    if group == "model" and name in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[name](preset)
    for key, action in actions.items():
        action.default = getattr(preset, key, action.default)
    return actions


def _known_options(group: str, component: Any) -> Dict[str, argparse.Action]:
    """Return the options of a component, such as an optimizer class, as argparse actions by name.

    If ``component`` is None, return the options of ``group`` in fairseq's configuration, such as "dataset".
    """
    parser = argparse.ArgumentParser(add_help=False)
    if component is None:
        gen_parser_from_dataclass(parser, FairseqConfig.__dataclass_fields__[group].type())
    elif hasattr(component, "add_args"):
        component.add_args(parser)
    return {action.dest: action for action in parser._actions}


def _unknown_name_error(
    path: Path,
    keys: Sequence[str],
    kind_and_name: str,
    known_names: Iterable[str],
    word: Optional[str] = None,
) -> InputError:
    """Build an InputError for an unknown name in a recipe, with line number and a similar known name.

    ``keys`` is the path of YAML keys to the name, which is ``word`` or the last word of ``kind_and_name``.
    """
    near = suggest_name(word or kind_and_name.split()[-1], known_names)
    return InputError(f"{path}, line {_find_line(path, keys)}: {kind_and_name} is unknown{near}")


def _find_line(path: Path, keys: Sequence[str]) -> int:
    """Return the line number of the nested key ``keys`` in a YAML file, from 1. Missing keys are skipped."""
    node, line = yaml.compose(path.read_text(encoding="utf-8")), 0
    for key in keys:
        for name, value in node.value:
            if name.value == key:
                node, line = value, name.start_mark.line
                break
    return line + 1
