"""The code of an exported folder.

transformers copies the files that a folder's model imports from beside it, and no subfolders. The adapters
(configuration, model, tokenizer) are therefore shipped as they are. Each other room of this package becomes
one file: ``luna_ops.py``, ``luna_modules.py`` and so on hold the modules that the model needs, one behind the
other in the order of their imports. Only import statements differ from this package.

Triton kernels are not shipped, see ``ops/causal_luna/no_triton.py``.
"""

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[1]
_ADAPTERS = __name__.rpartition(".")[0]
# module -> module that is shipped in place of it
_STAND_INS = {f"{_PACKAGE}.ops.causal_luna.triton": f"{_PACKAGE}.ops.causal_luna.no_triton"}
_LEFT_OVER = re.compile(rf"^ *(?:from|import) {_PACKAGE}\b.*", flags=re.MULTILINE)


class _Module(NamedTuple):
    """Source of a module without its imports.

    Args:
        name: full name of the module
        doc: docstring of the module
        body: source below the docstring, without top-level imports and without ``__all__``
        imports: imports at top level: (module, name in the module, name here). The name in the module is
            empty for ``import module``.
        names: names that the module defines at top level
    """

    name: str
    doc: str
    body: str
    imports: List[Tuple[str, str, str]]
    names: List[str]


def write_code(model: str, folder: Path) -> None:
    """Write a module and all modules of this package that it imports into a folder.

    Args:
        model: full name of a module of ``luna_fairseq.huggingface``
        folder: existing folder. A second call adds the code of another module, such as the tokenizer.

    Raises:
        ValueError: Two modules of a room use one name for different things, a module imports this package
            inside a function, or the folder holds another version of a file.
    """
    modules: Dict[str, _Module] = {}
    _collect(model, modules)
    files: Dict[str, List[_Module]] = {}
    for module in modules.values():
        files.setdefault(_file_of(module.name), []).append(module)
    entry = _file_of(model)
    for file, parts in files.items():
        # Before 5.10.2, transformers copies only the files that the model's own file imports. That file
        # therefore imports every other file.
        others = [name for name in files if name != entry] if file == entry else []
        text = _join(file, parts, others)
        found = _LEFT_OVER.search(text)
        if found:
            raise ValueError(f"{file}.py would need this package: {found.group().strip()!r}")
        path = folder / f"{file}.py"
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{path} is there already, with other code")
        path.write_text(text, encoding="utf-8")


def _collect(name: str, modules: Dict[str, _Module]) -> None:
    """Add a module to ``modules``, behind all modules that it imports."""
    if name in modules:
        return
    module = _read(name)
    for imported, _, _ in module.imports:
        if imported.startswith(f"{_PACKAGE}."):
            _collect(imported, modules)
    modules[name] = module


def _read(name: str) -> _Module:
    """Return the source of a module, taken apart."""
    path = _ROOT.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    imports: List[Tuple[str, str, str]] = []
    names: List[str] = []
    for number, node in enumerate(tree.body):
        is_doc = number == 0 and ast.get_docstring(tree) is not None
        if isinstance(node, ast.Import):
            imports += [(alias.name, "", alias.asname or "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _STAND_INS.get(str(node.module), str(node.module))
            imports += [(source, alias.name, alias.asname or alias.name) for alias in node.names]
        elif not is_doc:
            defined = list(_defined_names(node))
            names += [defined_name for defined_name in defined if defined_name != "__all__"]
            if defined != ["__all__"]:
                continue
        for line in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[line] = ""
    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip("\n"))
    return _Module(name, ast.get_docstring(tree) or "", body, imports, names)


def _defined_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _file_of(module: str) -> str:
    """Return the name of the file, without ".py", that holds a module in the folder."""
    if module.startswith(f"{_ADAPTERS}."):
        return module[len(_ADAPTERS) + 1 :]
    return "luna_" + module.split(".")[1]


def _join(file: str, parts: List[_Module], others: List[str]) -> str:
    """Return the text of a shipped file.

    Args:
        file: name of the file, without ".py"
        parts: modules that the file holds, each behind the modules that it imports
        others: files that are imported besides, for no name in particular
    """
    _check_names(file, parts)
    modules: Dict[str, None] = {}
    names: Dict[str, Dict[str, None]] = {}
    for module, name, here in (found for part in parts for found in part.imports):
        is_ours = module.startswith(f"{_PACKAGE}.")
        if not name:
            modules[f"import {module}" + (f" as {here}" if here else "")] = None
        elif not (is_ours and _file_of(module) == file):
            source = f".{_file_of(module)}" if is_ours else module
            names.setdefault(source, {})[name if name == here else f"{name} as {here}"] = None
    future = names.pop("__future__", None)
    lines = [f"from .{name} import __name__ as _  # noqa" for name in others] + sorted(modules)
    lines += [_import_line(source, list(found)) for source, found in sorted(names.items(), reverse=True)]
    if future:
        lines.insert(0, _import_line("__future__", list(future)))
    if len(parts) == 1:
        doc, bodies = parts[0].doc, [parts[0].body]
    else:
        doc = f"The modules of {_PACKAGE}/{file[len('luna_') :]} that an exported model needs, in one file."
        bodies = [_titled(part) for part in parts]
    prefix = "r" if "\\" in doc else ""
    head = f'{prefix}"""{doc}\n"""\n\n' + "\n".join(lines)
    return "\n\n\n".join([head, *bodies]) + "\n"


def _import_line(module: str, names: List[str]) -> str:
    """Return a statement that imports names from a module, on several lines if there are many names."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 110:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _titled(part: _Module) -> str:
    """Return the source of a module below a comment with its path and its docstring."""
    path = part.name.replace(".", "/")
    doc = "\n".join(f"# {line}".rstrip() for line in part.doc.splitlines())
    return f"# ---------- {path}\n#\n{doc}\n\n{part.body}".rstrip()


def _check_names(file: str, parts: List[_Module]) -> None:
    """Raise ValueError if a name stands for two different things in one file."""
    meanings: Dict[str, str] = {}
    for part in parts:
        found = [(name, f"{part.name}.{name}") for name in part.names]
        for module, name, here in part.imports:
            is_ours = module.startswith(f"{_PACKAGE}.")
            if is_ours and _file_of(module) == file:
                if name != here:
                    raise ValueError(f"{part.name} imports {name} as {here}, which {file}.py cannot do")
                continue  # the name of a definition above
            origin = _file_of(module) if is_ours else module
            found.append((here or module.split(".")[0], f"{origin}.{name}".rstrip(".")))
        for name, meaning in found:
            if meanings.setdefault(name, meaning) != meaning:
                raise ValueError(f"{name} means {meanings[name]} and {meaning} in {file}.py. Rename one.")
