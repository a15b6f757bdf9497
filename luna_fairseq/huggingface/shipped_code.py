"""Copy the code of an exported model into the exported folder.

transformers loads code from files next to the model, but not from subfolders. The files of this package
(configuration, model, tokenizer) are therefore copied one by one. Every other subpackage of ``luna_fairseq``
becomes one file. For example, ``luna_ops.py`` contains all modules of ``luna_fairseq.ops`` that the model
needs, in import order. Only import statements are changed.

Triton kernels are not copied; see ``ops/causal_luna/no_triton.py``.
"""

import ast
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

_PACKAGE = __name__.split(".")[0]
_ROOT = Path(__file__).parents[1]
_ADAPTERS = __name__.rpartition(".")[0]
# Module -> module that is shipped in its place.
_REPLACED_MODULES = {f"{_PACKAGE}.ops.causal_luna.triton": f"{_PACKAGE}.ops.causal_luna.no_triton"}
_REMAINING_IMPORT = re.compile(rf"^ *(?:from|import) {_PACKAGE}\b.*", flags=re.MULTILINE)


class _Module(NamedTuple):
    """Source code of a Python module, split into docstring, imports and body.

    Attributes:
        name: full name of the module, such as "luna_fairseq.errors".
        doc: docstring of the module.
        body: source code below the docstring, without top-level imports or ``__all__``.
        imports: top-level imports as tuples (module, imported name, local name). The imported name is empty
            for ``import module``.
        names: names defined at the top level of the module.
    """

    name: str
    doc: str
    body: str
    imports: List[Tuple[str, str, str]]
    names: List[str]


def write_code(model: str, folder: Path) -> None:
    """Copy a module of ``luna_fairseq.huggingface``, and all modules that it imports, into a folder.

    The folder may hold the code of another module. Raises ValueError if the code cannot be shipped: two
    modules of a subpackage use one name for different objects, a function imports ``luna_fairseq``, or the
    folder contains a different version of a file.
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
            raise ValueError(f"{path} exists already with other contents.")
        path.write_text(text, encoding="utf-8")


def _collect_modules(name: str, modules: Dict[str, _Module]) -> None:
    """Parse a module and what it imports of ``luna_fairseq`` into ``modules``, imported modules first."""
    if name in modules:
        return
    module = _parse_module(name)
    for imported, _, _ in module.imports:
        if imported.startswith(f"{_PACKAGE}."):
            _collect_modules(imported, modules)
    modules[name] = module


def _parse_module(name: str) -> _Module:
    """Parse the source code of a module."""
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
    """Yield the names that a top-level statement defines: ``a = b = 1`` yields "a" and "b"."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def _file_name(module: str) -> str:
    """Return the name of the file to which a module is copied, without ".py".

    Example:
        >>> _file_name("luna_fairseq.ops.softmax"), _file_name("luna_fairseq.huggingface.decoder")
        ('luna_ops', 'decoder')
    """
    if module.startswith(f"{_ADAPTERS}."):
        return module[len(_ADAPTERS) + 1 :]
    return "luna_" + module.split(".")[1]


def _render_file(file: str, parts: List[_Module], extra_imports: List[str]) -> str:
    """Build the source code of a shipped file from the modules that it contains, imported modules first.

    ``extra_imports`` are shipped files that the file imports only to make transformers copy them.
    """
    _check_unique_names(file, parts)
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
    """Build one module's section of a shipped file: path and docstring as comments, followed by the code."""
    path = part.name.replace(".", "/")
    doc = "\n".join(f"# {line}".rstrip() for line in part.doc.splitlines())
    return f"# ---------- {path}\n#\n{doc}\n\n{part.body}".rstrip()


def _check_unique_names(file: str, parts: List[_Module]) -> None:
    """Raise ValueError if the modules in a shipped file use one name for different objects."""
    meanings: Dict[str, str] = {}
    for part in parts:
        used = [(name, f"{part.name}.{name}") for name in part.names]
        for module, name, local_name in part.imports:
            is_ours = module.startswith(f"{_PACKAGE}.")
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
