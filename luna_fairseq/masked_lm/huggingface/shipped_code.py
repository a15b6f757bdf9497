"""The code of an exported folder: the files of this package that the model needs, side by side.

transformers copies what a folder's model imports from files beside it, and looks into no folder below. So a
module's place goes into its file's name, and the lines that import it follow; nothing else in a file changes.
"""

import re
from pathlib import Path
from typing import Dict

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[2]
_HERE = __name__.rpartition(".")[0] + "."
_MODEL = _HERE + "modeling_luna"
# Docstrings show imports, too, behind ">>>".
_IMPORT = re.compile(rf"^(\s*)from ({_PACKAGE}(?:\.\w+)+) import", flags=re.MULTILINE)


def shipped_code() -> Dict[str, str]:
    """Text of each file by its name, ``modeling_luna.py`` and what it imports."""
    files: Dict[str, str] = {}
    wanted = [_MODEL]
    while wanted:
        module = wanted.pop()
        name = f"{_flat(module)}.py"
        if name not in files:
            text = _source(module).read_text(encoding="utf-8")
            wanted += [found[1] for found in _IMPORT.findall(text)]
            files[name] = _IMPORT.sub(lambda found: f"{found[1]}from .{_flat(found[2])} import", text)
    return files


def _flat(module: str) -> str:
    """The module's name in the folder: modeling_luna, configuration_luna, luna_ops_luna_naive, ..."""
    if module.startswith(_HERE):
        return module[len(_HERE) :]
    return "luna_" + module[len(_PACKAGE) + 1 :].replace(".", "_")


def _source(module: str) -> Path:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
