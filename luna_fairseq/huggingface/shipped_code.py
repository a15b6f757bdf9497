"""The code of an exported folder: the files of this package that the model needs, side by side.

transformers copies what a folder's model imports from files beside it, and looks into no folder below. So a
module's place goes into its file's name, and the lines that import it follow; nothing else in a file changes.
Before 5.10.2 it copies only what the model's own file imports: that file therefore imports every other one.
"""

import re
from pathlib import Path
from typing import Dict

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[1]
_HERE = __name__.rpartition(".")[0] + "."
# Docstrings show imports, too, behind ">>>".
_IMPORT = re.compile(rf"^( *)from ({_PACKAGE}(?:\.\w+)+) import(?: (\w+)$)?", flags=re.MULTILINE)


def write_code(model: str, folder: Path) -> None:
    """Write the module ``model`` of this room, and what it imports, into ``folder``."""
    files: Dict[str, str] = {}
    _collect(model, files)
    entry = f"{_flat(model)}.py"
    # In their order none imports one that is not there yet.
    every = "".join(f"from .{name[:-3]} import __name__ as _  # noqa\n" for name in files if name != entry)
    end = files[entry].index('"""\n', 3) + 4
    files[entry] = f"{files[entry][:end]}\n{every}{files[entry][end:]}"
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def _collect(module: str, files: Dict[str, str]) -> None:
    name = f"{_flat(module)}.py"
    if name in files:
        return
    files[name] = ""  # a package and its modules may import each other

    def flat(found: "re.Match[str]") -> str:
        space, wanted, part = found.groups()
        if part and _source(f"{wanted}.{part}").is_file():  # a module of a package
            _collect(f"{wanted}.{part}", files)
            return f"{space}from . import {_flat(f'{wanted}.{part}')} as {part}"
        _collect(wanted, files)
        return f"{space}from .{_flat(wanted)} import{f' {part}' if part else ''}"

    text = _IMPORT.sub(flat, _source(module).read_text(encoding="utf-8"))
    del files[name]
    files[name] = text


def _flat(module: str) -> str:
    """The module's name in the folder: modeling_luna, configuration_luna, luna_ops_luna_naive, ..."""
    if module.startswith(_HERE):
        return module[len(_HERE) :]
    return "luna_" + module[len(_PACKAGE) + 1 :].replace(".", "_")


def _source(module: str) -> Path:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
