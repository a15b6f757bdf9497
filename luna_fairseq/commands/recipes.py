"""Recipes: YAML files with all options of a training run.

The file of a recipe, ``configs/FAMILY/NAME.yaml``, lists the options that differ from the file of its family,
``configs/FAMILY.yaml``. The file of the family lists the options that differ from fairseq's defaults. See
``configs/README.md``.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import luna_fairseq
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.regular import is_data

# Recipe groups that name a component, and the corresponding fairseq-train option.
NAMED = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
# Groups and options of a recipe that are omitted from the arguments of fairseq-train: "hydra" is a group of
# hydra's own settings, and luna-train sets the others.
OMITTED = (("hydra", None), ("common", "user_dir"), ("task", "data"))

Settings = Dict[str, Dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """Recipe whose options have been read and checked.

    Attributes:
        name: FAMILY/NAME, such as "lra/listops", or the path to a file outside the package.
        path: file of the recipe.
        base: family file, or None if the recipe has no family.
        heading: lines of the comment at the top of the file.
        settings: option values, nested by group, including the options of the family.
        gpus: number of GPUs for which the batch size is stated.
        left_out: removed options, such as "--warmup-init-lr", that a component chosen by the user lacks.
    """

    name: str
    path: Path
    base: Optional[Path]
    heading: List[str]
    settings: Settings
    gpus: int
    left_out: Sequence[str] = ()

    def words(self, *without: str) -> List[str]:
        """Return the recipe as command-line arguments of fairseq-train, without DATA and ``--user-dir``.

        Options in ``without``, named as in the YAML file (such as "update_freq"), are omitted too. Raises
        InputError if fairseq-train has no words for a value, such as False where ``--arch`` sets True.
        """
        from luna_fairseq.commands.recipe_options import option_actions

        words: List[str] = []
        for group, settings in self.settings.items():
            if (group, None) in OMITTED:
                continue
            name = settings.get("_name")
            actions = option_actions(group, name)
            for key, value in settings.items():
                if value is None or (group, key) in OMITTED or key in without:
                    continue
                if key == "_name":
                    words += [NAMED.get(group, f"--{group.replace('_', '-')}"), value]
                    continue
                try:
                    words += _format_option(actions[key], value)
                except ValueError as error:
                    raise InputError(
                        f"{self.path}: {group}.{key} cannot be {value} with {name or group}, because "
                        f"{error}. Leave the option out, or use fairseq-hydra-train"
                    ) from error
        return words


def recipe_folder() -> Path:
    """Return the path of the folder ``configs`` with all recipes.

    In an installed package, the folder is inside the package. In a checkout, it is beside the package.
    """
    package = Path(luna_fairseq.__file__).resolve().parent
    folders = [package / "configs", package.parent / "configs"]
    if (package.parent / "setup.py").is_file():
        folders.reverse()  # `pip install .` may have left a copy in the package of a checkout
    return next((path for path in folders if path.is_dir()), folders[0])


def list_recipes() -> List[str]:
    """Return the sorted names of all recipes, such as "lra/listops"."""
    paths = (path for path in recipe_folder().glob("*/*.yaml") if is_data(path.name))
    return sorted(f"{path.parent.name}/{path.stem}" for path in paths)


def read_recipe(name: str, family: Optional[str] = None, given: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a YAML file of fairseq-train options, and check that fairseq knows all options.

    Args:
        name: FAMILY/NAME, or NAME alone if only one family has a recipe with this name, or the path to a YAML
            file.
        family: family in which NAME alone is looked up first.
        given: command-line arguments that override the recipe. If they select another component, such as
            ``--lr-scheduler fixed``, the recipe's options that this component lacks are removed.

    Returns:
        The recipe with the options of its family. The options in ``given`` are not included.

    Raises:
        InputError: The recipe does not exist, is ambiguous, cannot be read, or has an unknown option.
        MissingRequirementError: fairseq is not installed.

    Example:
        >>> read_recipe("lra/listops").settings["task"]["_name"]
        'lra-text'
    """
    try:
        from luna_fairseq.commands.recipe_options import check_recipe, load_settings
    except ImportError as error:
        needed = 'reading a recipe needs fairseq: pip install "luna_fairseq[fairseq]"'
        raise MissingRequirementError(f"{needed} ({error})") from error
    path = find_recipe(name, family)
    beside = path.parent.parent / f"{path.parent.name}.yaml"
    base = beside if beside.is_file() else None
    contents = {file: load_settings(file) for file in (base, path) if file is not None}
    settings: Settings = {group: {} for group in NAMED}
    for content in contents.values():
        for group, options in content.items():
            settings.setdefault(group, {}).update(options)
    for group in NAMED:
        if not settings[group].get("_name"):
            family = "" if base else f", and there is no file {beside} with the settings of its family"
            raise InputError(f"{path} is not a recipe: {group} has no _name{family}")
    for file, content in contents.items():
        check_recipe(file, content, settings)
    heading = read_heading(path)
    inside = path.parent.parent == recipe_folder()
    shown = f"{path.parent.name}/{path.stem}" if inside else name
    family_heading = read_heading(base) if base else []
    gpus = _read_gpu_count(path, heading + family_heading)
    left_out = _leave_out_replaced(settings, given)
    return Recipe(shown, path, base, heading, settings, gpus, left_out)


def _leave_out_replaced(settings: Settings, given: Sequence[str]) -> List[str]:
    """Remove the options of replaced components from ``settings``, and return the names of these options.

    ``given`` holds the user's command-line arguments. For example, ``--lr-scheduler fixed`` removes the
    options of the recipe's scheduler that the scheduler "fixed" does not have.
    """
    from luna_fairseq.commands.recipe_options import replaced_options

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    for group, option in NAMED.items():
        parser.add_argument(*([option, "-a"] if group == "model" else [option]), dest=group)
    left_out = []
    for group, name in vars(parser.parse_known_args(list(given))[0]).items():
        if name is not None:
            for option in replaced_options(group, settings[group], name):
                del settings[group][option]
                left_out.append(f"--{option.replace('_', '-')}")
    return left_out


def find_recipe(name: str, family: Optional[str] = None) -> Path:
    """Return the YAML file of a recipe, given its path, its name FAMILY/NAME, or NAME alone.

    NAME alone is looked up in ``family`` first. Raises InputError if there is no such recipe, or several.
    """
    if name.endswith(".yaml"):
        if not Path(name).is_file():
            raise InputError(f"there is no recipe {name}: the file does not exist")
        return Path(name).resolve()
    known = list_recipes()
    exact = [recipe for recipe in (name, f"{family}/{name}") if recipe in known]
    matches = exact[:1] or [recipe for recipe in known if recipe.split("/")[1] == name]
    if len(matches) == 1:
        return recipe_folder() / f"{matches[0]}.yaml"
    if matches:
        raise InputError(f"recipe {name} could be any of {', '.join(matches)}. Use one of these names")
    near = get_close_matches(name, known, 3, 0.5)
    if not near:
        rows = get_close_matches(name, [recipe.split("/")[1] for recipe in known], 3, 0.5)
        near = [recipe for row in rows for recipe in known if recipe.endswith(f"/{row}")]
    hint = f"Did you mean {' or '.join(near)}?" if near else "luna-recipes lists all recipes"
    raise InputError(f"there is no recipe {name}. {hint}")


def read_heading(path: Path) -> List[str]:
    """Return the comment lines at the top of a recipe's file, without hydra's "# @package" directives."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return [line[1:].strip() for line in lines if not line.startswith("# @package")]


def _read_gpu_count(path: Path, heading: List[str]) -> int:
    """Return N from the line "Batch: N GPUs x ..." in a recipe's heading, or 1 without such a line."""
    for line in heading:
        if line.startswith("Batch:"):
            match = re.match(r"Batch: ([1-9]\d*) GPUs? x ", line)
            if match is None:
                raise InputError(f"{path}: expected a line such as 'Batch: 8 GPUs x ...', got {line!r}")
            return int(match[1])
    return 1


def _format_option(action: argparse.Action, value: Any) -> List[str]:
    """Return an option as command-line words, such as ["--lr", "0.1"], and [] for the default of a flag.

    Raises ValueError if the value of a flag is not its default, and the flag does not set it.
    """
    option = next(flag for flag in action.option_strings if flag.startswith("--"))
    if action.nargs == 0 or (action.nargs == "?" and isinstance(value, bool)):
        if value == (action.const if action.nargs == 0 else True):
            return [option]
        if value != bool(action.default):
            raise ValueError(f"fairseq-train only has {option}")
        return []
    if isinstance(value, list):
        separate = action.nargs not in (None, "?")
        return [option, *map(str, value)] if separate else [option, ",".join(map(str, value))]
    return [option, str(value)]
