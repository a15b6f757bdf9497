"""The recipes (configs/FAMILY/ROW.yaml): where they are, what they say, their words of a command line.

A row lists what differs from its family's file (configs/FAMILY.yaml), and both what differs from fairseq's
defaults, as configs/README.md explains. Every command that trains with published settings reads them here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import luna_fairseq
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.regular import is_data

# Groups of a recipe that name what they configure, and the option that takes the name.
NAMED = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
# hydra: not fairseq's. user_dir, data: given by the command line.
LEFT_OUT = (("hydra", None), ("common", "user_dir"), ("task", "data"))

Settings = Dict[str, Dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """One row.

    Attributes:
        name: family/row, or the path of a file of one's own.
        path: its file.
        base: the family's file, if there is one.
        heading: lines of the comment that it begins with.
        settings: group -> option -> value, the family's included.
        gpus: how many train in the run that the batch is stated for.
    """

    name: str
    path: Path
    base: Optional[Path]
    heading: List[str]
    settings: Settings
    gpus: int

    def words(self, *without: str) -> List[str]:
        """As words of fairseq-train's command line, without data, --user-dir, and the options named."""
        words: List[str] = []
        for group, settings in self.settings.items():
            for key, value in settings.items():
                if (group, None) not in LEFT_OUT and (group, key) not in LEFT_OUT and key not in without:
                    words += _words(NAMED[group] if key == "_name" else f"--{key.replace('_', '-')}", value)
        return words


def folder() -> Path:
    """Where the families are: within an installed package, beside it in a checkout."""
    package = Path(luna_fairseq.__file__).resolve().parent
    places = (package / "configs", package.parent / "configs")
    return next((place for place in places if place.is_dir()), places[0])


def names() -> List[str]:
    """All recipes, as family/row."""
    found = (path for path in folder().glob("*/*.yaml") if is_data(path.name))
    return sorted(f"{path.parent.name}/{path.stem}" for path in found)


def read_recipe(name: str, family: Optional[str] = None) -> Recipe:
    """Read a recipe, and check that fairseq knows what it sets.

    Args:
        name: family/row, or the row alone where that is clear, or the path of a file.
        family: where a row alone is looked for first.

    Raises:
        InputError: there is no such recipe, it cannot be read, or has an option that nothing takes.
        MissingRequirementError: there is no fairseq.
    """
    try:
        from luna_fairseq.commands.recipe_options import check_recipe, load
    except ImportError as error:
        needed = 'reading a recipe needs fairseq: pip install "luna_fairseq[fairseq]"'
        raise MissingRequirementError(f"{needed} ({error})") from error
    path = find(name, family)
    beside = path.parent.with_name(path.parent.name + ".yaml")
    base = beside if beside.is_file() else None
    contents = {file: load(file) for file in (base, path) if file is not None}
    settings: Settings = {group: {} for group in NAMED}
    for content in contents.values():
        for group, options in content.items():
            settings.setdefault(group, {}).update(options)
    for group in NAMED:
        if not settings[group].get("_name"):
            raise InputError(f"{path} is no recipe: {group} has no _name")
    for file, content in contents.items():
        check_recipe(file, content, settings)
    heading = read_heading(path)
    inside = path.parent.parent == folder()
    shown = f"{path.parent.name}/{path.stem}" if inside else name
    return Recipe(
        shown, path, base, heading, settings, _gpus(path, heading + (read_heading(base) if base else []))
    )


def find(name: str, family: Optional[str] = None) -> Path:
    """The file of a recipe; see ``read_recipe``."""
    if name.endswith(".yaml") and Path(name).is_file():
        return Path(name).resolve()
    known = names()
    whole = [one for one in (name, f"{family}/{name}") if one in known]
    found = whole[:1] or [one for one in known if one.split("/")[1] == name]
    if len(found) == 1:
        return folder() / f"{found[0]}.yaml"
    if found:
        raise InputError(f"recipe {name} could be any of {', '.join(found)}: say which")
    near = get_close_matches(name, known, 3, 0.5) or [
        one for row in get_close_matches(name, [one.split("/")[1] for one in known], 3, 0.5)
        for one in known if one.endswith(f"/{row}")
    ]  # fmt: skip
    hint = f"nearest: {', '.join(near)}" if near else "luna-recipes lists them"
    raise InputError(f"there is no recipe {name}; {hint}")


def read_heading(path: Path) -> List[str]:
    """Lines of the comment at a file's top, without hydra's."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return [line[1:].strip() for line in lines if not line.startswith("# @package")]


def _gpus(path: Path, heading: List[str]) -> int:
    for line in heading:
        if line.startswith("Batch:"):
            found = re.match(r"Batch: ([1-9]\d*) GPUs? x ", line)
            if found is None:
                raise InputError(
                    f"{path}: the heading's batch must begin as 'Batch: 8 GPUs x ', not {line!r}"
                )
            return int(found[1])
    return 1


def _words(option: str, value: Any) -> Iterator[str]:
    if value is None or value is False:  # fairseq's default of every flag
        return
    yield option
    if isinstance(value, list):
        yield from map(str, value)
    elif value is not True:
        yield str(value)
