"""Only ``engine/`` assigns to attributes of fairseq, torch, numpy, Hydra or the interpreter."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "luna_fairseq"
FOREIGN = {"fairseq", "fairseq_cli", "torch", "numpy", "omegaconf", "hydra", "sys", "logging", "warnings"}
OFFERED = {"argv", "stdout", "stdin", "stderr", "excepthook"}  # attributes of sys that any program may assign


def foreign_names(tree):
    """Return the names of foreign modules, and the names imported from them, in a syntax tree."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [(a.asname or a.name).split(".")[0] for a in node.names]
            names |= {name for name, a in zip(imported, node.names) if a.name.split(".")[0] in FOREIGN}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOREIGN:
            names |= {a.asname or a.name for a in node.names}
    return names


def owner(node):
    """Return the first name of an expression such as ``a.b[c].d`` or ``vars(a)``, here "a"."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "vars" and node.args:
        return owner(node.args[0])
    return getattr(node, "id", None)


def assignments(source):
    """Return the line numbers of statements in ``source`` that change foreign modules or objects."""
    tree = ast.parse(source)
    names, found = foreign_names(tree), set()
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [part for target in node.targets for part in ast.walk(target)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
            found |= {node.lineno} if owner(node.args[0]) in names else set()
        for target in targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)) and owner(target) in names:
                offered = owner(target) == "sys" and getattr(target, "attr", "") in OFFERED
                found |= set() if offered else {node.lineno}
    return sorted(found)


def test_only_the_engine_changes_foreign_modules():
    files = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "engine" not in path.parents]
    assert len(files) > 50
    found = {str(path.relative_to(PACKAGE)): assignments(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}
