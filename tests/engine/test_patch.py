"""A patch replaces functions once and in order, replaces all or none, and names a missing target."""

import logging
import runpy
import sys
import types
from importlib.util import find_spec

import pytest

from luna_fairseq.engine.patch import APPLIED, IMPOSSIBLE, LEFT_OUT, NOT_NEEDED, RESULTS, Patch

SOURCE = """
def shout(word, times=1):
    "Say it louder."
    return word.upper() * times
class Path:
    def __init__(self, name): self.name = name
    @staticmethod
    def copy(source, target): return (source, target)
    def whole(self): return self.name
shout.best = 3
table = type("Table", (), {})()
"""


@pytest.fixture
def engine(monkeypatch):
    """Return a module ``engine`` with functions, a class and a value that is not a function."""
    module = types.ModuleType("engine")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "engine", module)
    return module


def apply_patch(function, *targets, name="doubling", **options):
    change = Patch(name, RESULTS, "", **options)
    change.replaces(*targets)(function)
    change.apply()
    return change


def twice(original, *args, **kwargs):
    return 2 * original(*args, **kwargs)


def test_functions_methods_and_classes_are_replaced(engine):
    change = apply_patch(
        twice, "engine:shout", "engine:Path.copy", "engine:Path.whole", "fairseq_cli.score:cli_main"
    )
    assert engine.shout("a", times=2) == "AAAA" and change.state == APPLIED
    assert (engine.shout.__name__, engine.shout.__doc__, engine.shout.best) == ("shout", "Say it louder.", 3)
    assert engine.Path.copy("a", "b") == ("a", "b", "a", "b") == engine.Path("x").copy("a", "b")
    assert engine.Path("x").whole() == "xx"
    assert "fairseq_cli.score" not in sys.modules  # a program that does not run is not imported
    apply_patch(lambda make, name: make(name.upper()), "engine:Path")
    assert engine.Path("x").name == "X"


def test_a_patch_acts_once_and_a_later_one_wraps_it(engine):
    change = apply_patch(twice, "engine:shout")
    first = engine.shout
    change.apply()
    apply_patch(twice, "engine:shout")  # the same entry of another copy of this package
    assert engine.shout is first
    apply_patch(lambda shout, *args: shout(*args) + "!", "engine:shout", name="marked")
    assert engine.shout("a") == "AA!" and engine.shout.patched_by == ("doubling", "marked")


def test_a_value_is_replaced_once(engine):
    change = apply_patch(lambda table: types.SimpleNamespace(before=table), "engine:table")
    first = engine.table
    change.apply()
    assert engine.table is first and not hasattr(first.before, "before")


def test_a_function_at_import_is_called_once():
    calls = []
    change = Patch("once", RESULTS, "")
    change.at_import(lambda: calls.append(1))
    change.apply()
    change.apply()
    assert calls == [1]


@pytest.mark.parametrize(
    "target", ["engine:whisper", "engine:Path.move", "engine:File.copy", "engine.files:copy"]
)
def test_a_missing_target_is_named(engine, target, caplog):
    """A warning of one line names the target, and nothing is replaced."""
    with caplog.at_level(logging.WARNING):
        change = apply_patch(twice, "engine:shout", target)
    (record,) = caplog.records
    text = record.getMessage()
    assert " doubling " in text and "\n" not in text and target.replace(":", ".") in text
    assert engine.shout("a") == "A" and change.state == IMPOSSIBLE


def test_states_of_a_patch_that_is_not_applied(engine):
    unwanted = Patch("unwanted", RESULTS, "", replacements=[("engine:shout", twice)])
    unwanted.apply(leave_out=True)
    assert apply_patch(twice, "engine:shout", is_needed=lambda: False).state == NOT_NEEDED
    assert unwanted.state == LEFT_OUT and engine.shout("a") == "A"


@pytest.mark.parametrize("by_path", [False, True])
def test_a_spawned_process_of_a_command_calls_the_replacement(by_path, monkeypatch):
    """multiprocessing copies the main module, so its functions have other globals than its attributes."""
    if by_path:
        content = runpy.run_path(find_spec("fairseq_cli.score").origin, run_name="__mp_main__")
    else:
        content = runpy.run_module("fairseq_cli.score", run_name="__mp_main__", alter_sys=True)
    copy = types.ModuleType("__mp_main__")
    copy.__dict__.update(content)
    monkeypatch.setitem(sys.modules, "__main__", copy)
    apply_patch(twice, "fairseq_cli.score:get_parser")
    assert copy.get_parser.patched_by == ("doubling",)
    assert copy.cli_main.__globals__["get_parser"] is copy.get_parser
