"""Copying of an exported model's code into the exported folder.

transformers loads code from files next to the model, but not from subfolders. The files of this package
(configuration, model, tokenizer) are therefore copied one by one. Every other subpackage of ``luna_fairseq``
becomes one file. For example, ``luna_ops.py`` contains the functions of ``luna_fairseq.ops`` that the model
uses, in import order. Only import statements are changed.

Triton kernels are not copied, because transformers would require every user to install Triton.
"""

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[1]
_ADAPTERS = __name__.rpartition(".")[0]
# Module -> module that is shipped in its place.
_REPLACED_MODULES = {f"{_PACKAGE}.ops.causal_luna.triton": f"{_PACKAGE}.ops.causal_luna.no_triton"}
# Files that contain only what the model uses. The others are shared by model and tokenizer, or are small.
_REDUCED = ("luna_anchored", "luna_modules", "luna_ops")
# (module, imported name, local name).
Import = Tuple[str, str, str]
_REMAINING_IMPORT = re.compile(rf"^ *(?:from|import) {_PACKAGE}\b.*", flags=re.MULTILINE)


class _Statement(NamedTuple):
    """Top-level statement of a module, with the comments above it.

    Attributes:
        names: names that the statement defines.
        used: names and strings in the statement. A string may be an annotation.
        text: source code.
    """

    names: List[str]
    used: Set[str]
    text: str


class _Module(NamedTuple):
    """Source code of a Python module, split into its docstring, imports and other statements.

    Attributes:
        name: full name of the module, such as "luna_fairseq.errors".
        doc: docstring of the module.
        statements: top-level statements other than imports and ``__all__``.
        imports: top-level imports as tuples (module, imported name, local name). The imported name is empty
            for ``import module``.
    """

    name: str
    doc: str
    statements: List[_Statement]
    imports: List[Import]


def write_code(model: str, folder: Path) -> None:
    """Copy a module of ``luna_fairseq.huggingface``, and the code that it imports, into a folder.

    The exported folder then works without ``luna_fairseq``. The modules of a subpackage are merged into one
    file. You can copy several modules to the same folder, one after the other.

    Raises:
        ValueError: Two merged modules define the same name differently, a function imports ``luna_fairseq``,
            or the folder contains a different version of a file.
    """
    modules: Dict[str, _Module] = {}
    _collect_modules(model, modules)
    files: Dict[str, List[_Module]] = {}
    for module in _remove_unused(modules):
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
            raise ValueError(f"{path} exists already with other contents.")
        path.write_text(text, encoding="utf-8")


def _collect_modules(name: str, modules: Dict[str, _Module]) -> None:
    """Parse a module and the package modules that it imports, and add them to ``modules``, imports first."""
    if name in modules:
        return
    module = _parse_module(name)
    for imported, _, _ in module.imports:
        if _is_ours(imported):
            _collect_modules(imported, modules)
    modules[name] = module


def _is_ours(module: str) -> bool:
    return module.startswith(f"{_PACKAGE}.")


def _parse_module(name: str) -> _Module:
    """Parse the source code of a module into its docstring, imports and other statements."""
    path = _ROOT.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    imports: List[Import] = []
    statements: List[_Statement] = []
    end = 0
    for number, node in enumerate(tree.body):
        start, end = end, node.end_lineno or node.lineno
        is_doc = number == 0 and ast.get_docstring(tree) is not None
        if isinstance(node, ast.Import):
            imports += [(alias.name, "", alias.asname or "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _REPLACED_MODULES.get(str(node.module), str(node.module))
            imports += [(source, alias.name, alias.asname or alias.name) for alias in node.names]
        elif not is_doc:
            names = list(_defined_names(node))
            if names != ["__all__"]:
                statements.append(_Statement(names, set(_used_names(node)), "\n".join(lines[start:end])))
    return _Module(name, ast.get_docstring(tree) or "", statements, imports)


def _remove_unused(modules: Dict[str, _Module]) -> List[_Module]:
    """Return the modules. Unused statements and imports are removed from the files in ``_REDUCED``."""
    needed: Set[Tuple[str, str]] = set()
    kept: Set[int] = set()

    def need(module: str, name: str) -> None:
        if (module, name) in needed or module not in modules:
            return
        needed.add((module, name))
        for source, imported, local_name in modules[module].imports:
            if name == (local_name or source.split(".")[0]):
                need(source, imported)
        for statement in modules[module].statements:
            if name in statement.names:
                keep(module, statement)

    def keep(module: str, statement: _Statement) -> None:
        if id(statement) not in kept:
            kept.add(id(statement))
            for name in statement.used:
                need(module, name)

    for module in modules.values():
        for statement in module.statements:
            if _file_name(module.name) not in _REDUCED or not statement.names:
                keep(module.name, statement)
    found = []
    for module in modules.values():
        if _file_name(module.name) in _REDUCED:
            statements = [statement for statement in module.statements if id(statement) in kept]
            imports = [
                (source, name, local_name)
                for source, name, local_name in module.imports
                if source == "__future__" or (module.name, local_name or source.split(".")[0]) in needed
            ]
            module = module._replace(statements=statements, imports=imports)
        if module.statements or _file_name(module.name) not in _REDUCED:
            found.append(module)
    return found


def _used_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names and strings in a statement. A string may be an annotation."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _defined_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement defines: ``a = b = 1`` yields "a" and "b"."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _file_name(module: str) -> str:
    """Return the name of the file to which a module is copied, without ".py", such as "luna_ops"."""
    if module.startswith(f"{_ADAPTERS}."):
        return module[len(_ADAPTERS) + 1 :]
    return "luna_" + module.split(".")[1]


def _render_file(file: str, parts: List[_Module], extra_imports: List[str]) -> str:
    """Build the source code of an exported file from its modules ``parts``, imported modules first.

    ``extra_imports`` are other exported files, which are imported only so that transformers copies them.
    """
    _check_unique_names(file, parts)
    # Dictionaries without values serve as ordered sets.
    modules: Dict[str, None] = {}
    names: Dict[str, Dict[str, None]] = {}
    for module, name, local_name in (imported for part in parts for imported in part.imports):
        is_ours = _is_ours(module)
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
        doc, bodies = parts[0].doc, [_join_statements(parts[0])]
    else:
        doc = f"Modules of {_PACKAGE}/{file[len('luna_') :]} that the exported model needs."
        bodies = [_render_module(part) for part in parts]
    prefix = "r" if "\\" in doc else ""
    head = f'{prefix}"""{doc}\n"""\n\n' + "\n".join(lines)
    return "\n\n\n".join([head, *bodies]) + "\n"


def _import_line(module: str, names: List[str]) -> str:
    """Build an import statement, split over several lines if one line would be too long."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= 110:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _render_module(part: _Module) -> str:
    """Build a module's section of an exported file: path and docstring as comments, then the code."""
    path = part.name.replace(".", "/")
    doc = "\n".join(f"# {line}".rstrip() for line in part.doc.splitlines())
    return f"# ---------- {path}\n#\n{doc}\n\n{_join_statements(part)}".rstrip()


def _join_statements(part: _Module) -> str:
    text = "\n".join(statement.text for statement in part.statements).strip("\n")
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _check_unique_names(file: str, parts: List[_Module]) -> None:
    """Raise ValueError if modules that are merged into one file use the same name for different objects."""
    meanings: Dict[str, str] = {}
    for part in parts:
        names = (name for statement in part.statements for name in statement.names)
        used = [(name, f"{part.name}.{name}") for name in names]
        for module, name, local_name in part.imports:
            is_ours = _is_ours(module)
            if is_ours and _file_name(module) == file:
                if name != local_name:
                    raise ValueError(
                        f"{part.name} imports {name} as {local_name}, which {file}.py cannot do."
                    )
                continue  # The file itself defines the name.
            origin = _file_name(module) if is_ours else module
            used.append((local_name or module.split(".")[0], f"{origin}.{name}".rstrip(".")))
        for name, meaning in used:
            if meanings.setdefault(name, meaning) != meaning:
                raise ValueError(f"{name} means {meanings[name]} and {meaning} in {file}.py. Rename one.")
