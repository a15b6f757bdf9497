"""The examples in docstrings run and print what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def name_of(path):
    """Return the name under which a test imports a module of the package or of the examples."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] == "examples" : -1 if parts[-1] == "__init__" else None])


FILES = [*(ROOT / "luna_fairseq").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
MODULES = sorted(name_of(path) for path in FILES if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if ".huggingface." in name:
        pytest.importorskip("transformers")
    failed, tried = doctest.testmod(import_module(name))
    assert not failed
