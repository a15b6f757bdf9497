"""The rooms of the package import downward only, and the commands' rooms stand beside each other."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "luna_fairseq"
# What each room may import besides itself. errors and the package's own __init__ (its version) are open to
# all.
GROUND = {"ops"}
MODELS = {"ops", "modules", "anchored", "models"}
BELOW_COMMANDS = {*MODELS, "checks", "engine", "optim", "files", "text"}
BELOW_WINGS = {*BELOW_COMMANDS, "commands"}
BELOW_ALL = {*BELOW_WINGS, "peers", "translation", "masked_lm", "lra", "huggingface"}
MAY_IMPORT = {
    "ops": set(),
    "optim": set(),
    "checks": set(),
    "engine": {"checks", "optim", "files", "text"},
    "modules": GROUND,
    "anchored": {"ops", "modules"},
    "models": {"ops", "modules", "anchored", "checks", "engine", "files", "text"},
    "peers": {*MODELS, "checks"},
    "files": set(),
    "text": {"files"},
    "commands": BELOW_COMMANDS,
    "translation": BELOW_WINGS,
    "masked_lm": BELOW_WINGS,
    "lra": BELOW_WINGS,
    "streaming": BELOW_WINGS,
    "huggingface": BELOW_WINGS,
    "report": BELOW_ALL,
    "benchmark": BELOW_ALL,
}


def imports(source):
    """(line, room) of everything that ``source`` imports from the package, at whatever depth of the code."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module else []
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "luna_fairseq" and len(parts) > 1:
                yield node.lineno, parts[1]


def upward(room, source):
    return [
        (line, other)
        for line, other in imports(source)
        if other in MAY_IMPORT and other not in {room, *MAY_IMPORT[room]}
    ]


def test_every_room_is_in_the_plan():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_is_below_it(room):
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {other}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for line, other in upward(room, path.read_text(encoding="utf-8"))
    ]
    assert not found
