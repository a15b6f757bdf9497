"""Write the code of a model into its exported folder.

transformers loads code from single files beside the model, but not from subfolders. The files of this folder
(configuration, model, tokenizer) are therefore copied one by one. Each other subpackage of ``luna_fairseq``
becomes one file: ``luna_ops.py``, for example, contains all modules of ``luna_fairseq.ops`` that the model
needs, in the order of their imports. Only import statements are changed.

Triton kernels are not shipped; see ``ops/causal_luna/no_triton.py``.
"""

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[1]
_ADAPTERS = __name__.rpartition(".")[0]
# Module -> module that is shipped in place of it.
_REPLACED_MODULES = {f"{_PACKAGE}.ops.causal_luna.triton": f"{_PACKAGE}.ops.causal_luna.no_triton"}
_REMAINING_IMPORT = re.compile(rf"^ *(?:from|import) {_PACKAGE}\b.*", flags=re.MULTILINE)


class _Module(NamedTuple):
    """Source code of a module, split into docstring, imports and body.

    Attributes:
        name: full name of the module.
        doc: docstring of the module.
        body: source below the docstring, without top-level imports and without ``__all__``.
        imports: top-level imports as tuples of the module, the imported name and its local name. The imported
            name is empty for ``import module``.
        names: names that the module defines at top level.
    """

    name: str
    doc: str
    body: str
    imports: List[Tuple[str, str, str]]
    names: List[str]


def write_code(model: str, folder: Path) -> None:
    """Write a module, and all modules of this package that it imports, into a folder.

    Args:
        model: full name of a module of ``luna_fairseq.huggingface``.
        folder: existing folder. A second call adds the code of another module, such as the tokenizer.

    Raises:
        ValueError: Two modules of a subpackage use one name for different things, a module imports this
            package inside a function, or the folder contains another version of a file.
    """
    modules: Dict[str, _Module] = {}
    _collect_modules(model, modules)
    files: Dict[str, List[_Module]] = {}
    for module in modules.values():
        files.setdefault(_file_name(module.name), []).append(module)
    entry = _file_name(model)
    for file, parts in files.items():
        # Before 5.10.2, transformers copies only the files that the model's own file imports. That file
        # therefore imports every other file.
        extra_imports = [name for name in files if name != entry] if file == entry else []
        text = _render_file(file, parts, extra_imports)
        remaining = _REMAINING_IMPORT.search(text)
        if remaining:
            raise ValueError(
                f"{file}.py must not import this package, but contains {remaining.group().strip()!r}"
            )
        path = folder / f"{file}.py"
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{path} exists already with other contents")
        path.write_text(text, encoding="utf-8")


def _collect_modules(name: str, modules: Dict[str, _Module]) -> None:
    """Parse a module and all modules of this package that it imports.

    Args:
        name: full name of the module.
        modules: parsed modules by name, updated in place. A module stands after the modules that it imports.
    """
    if name in modules:
        return
    module = _parse_module(name)
    for imported, _, _ in module.imports:
        if imported.startswith(f"{_PACKAGE}."):
            _collect_modules(imported, modules)
    modules[name] = module


def _parse_module(name: str) -> _Module:
    """Read the source code of a module and split it into docstring, imports and body.

    Args:
        name: name of the module, such as "luna_fairseq.errors".

    Returns:
        Docstring, imports and body of the module.
    """
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
            source = _REPLACED_MODULES.get(str(node.module), str(node.module))
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
    """Yield the names that a top-level statement defines.

    Args:
        node: top-level statement of a module.

    Yields:
        Name of a function, class or variable.
    """
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _file_name(module: str) -> str:
    """Return the name of the shipped file that contains a module, without ".py"."""
    if module.startswith(f"{_ADAPTERS}."):
        return module[len(_ADAPTERS) + 1 :]
    return "luna_" + module.split(".")[1]


def _render_file(file: str, parts: List[_Module], extra_imports: List[str]) -> str:
    """Return the source code of a shipped file.

    Args:
        file: name of the file, without ".py".
        parts: modules that the file contains, each after the modules that it imports.
        extra_imports: further files to import, without a name from them.
    """
    _check_names(file, parts)
    # Dictionaries without values serve as ordered sets.
    modules: Dict[str, None] = {}
    names: Dict[str, Dict[str, None]] = {}
    for module, name, local_name in (imported for part in parts for imported in part.imports):
        is_ours = module.startswith(f"{_PACKAGE}.")
        if not name:
            modules[f"import {module}" + (f" as {local_name}" if local_name else "")] = None
        elif not (is_ours and _file_name(module) == file):
            source = f".{_file_name(module)}" if is_ours else module
            names.setdefault(source, {})[name if name == local_name else f"{name} as {local_name}"] = None
    future = names.pop("__future__", None)
    lines = [f"from .{name} import __name__ as _  # noqa" for name in extra_imports] + sorted(modules)
    lines += [
        _import_line(source, list(imported)) for source, imported in sorted(names.items(), reverse=True)
    ]
    if future:
        lines.insert(0, _import_line("__future__", list(future)))
    if len(parts) == 1:
        doc, bodies = parts[0].doc, [parts[0].body]
    else:
        doc = f"Modules of {_PACKAGE}/{file[len('luna_') :]} that the exported model needs."
        bodies = [_render_part(part) for part in parts]
    prefix = "r" if "\\" in doc else ""
    head = f'{prefix}"""{doc}\n"""\n\n' + "\n".join(lines)
    return "\n\n\n".join([head, *bodies]) + "\n"


def _import_line(module: str, names: List[str]) -> str:
    """Return a statement that imports names from a module, on several lines if one line is too short.

    Args:
        module: name of the module.
        names: names to import.
    """
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 110:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _render_part(part: _Module) -> str:
    """Return the source code of a module below a comment with the module's path and docstring."""
    path = part.name.replace(".", "/")
    doc = "\n".join(f"# {line}".rstrip() for line in part.doc.splitlines())
    return f"# ---------- {path}\n#\n{doc}\n\n{part.body}".rstrip()


def _check_names(file: str, parts: List[_Module]) -> None:
    """Check that each name stands for one thing in a shipped file.

    Args:
        file: name of the file, without ".py".
        parts: modules that the file contains.

    Raises:
        VAlueError: A name stands for two things, or a module renames an object of another module of the file.
    """
    meanings: Dict[str, str] = {}
    for part in parts:
        used = [(name, f"{part.name}.{name}") for name in part.names]
        for module, name, local_name in part.imports:
            is_ours = module.startswith(f"{_PACKAGE}.")
            if is_ours and _file_name(module) == file:
                if name != local_name:
                    raise ValueError(f"{part.name} imports {name} as {local_name}, which {file}.py cannot do")
                continue  # The file itself defines the name.
            origin = _file_name(module) if is_ours else module
            used.append((local_name or module.split(".")[0], f"{origin}.{name}".rstrip(".")))
        for name, meaning in used:
            if meanings.setdefault(name, meaning) != meaning:
                raise ValueError(f"{name} means {meanings[name]} and {meaning} in {file}.py. Rename one.")
