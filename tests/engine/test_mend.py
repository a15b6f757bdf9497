"""The decorator that makes a change: once, in order, all or nothing, and says where there is no place."""

import logging
import sys
import types

import pytest

from luna_fairseq.engine.mend import GONE, LEFT_OUT, MENDED, NOT_NEEDED, RIGHT, Mend

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
    """A module ``engine`` as fairseq's are: functions, a class, something that is no function."""
    module = types.ModuleType("engine")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "engine", module)
    return module


def made(function, *targets, name="doubling", **options):
    mend = Mend(name, RIGHT, "", **options)
    mend.around(*targets)(function)
    mend.apply()
    return mend


def twice(original, *args, **kwargs):
    return 2 * original(*args, **kwargs)


def test_it_takes_the_place_of_functions_methods_and_classes(engine):
    mend = made(twice, "engine:shout", "engine:Path.copy", "engine:Path.whole", "fairseq_cli.score:cli_main")
    assert engine.shout("a", times=2) == "AAAA" and mend.state == MENDED
    assert (engine.shout.__name__, engine.shout.__doc__, engine.shout.best) == ("shout", "Say it louder.", 3)
    assert engine.Path.copy("a", "b") == ("a", "b", "a", "b") == engine.Path("x").copy("a", "b")
    assert engine.Path("x").whole() == "xx"
    assert "fairseq_cli.score" not in sys.modules  # a program that does not run is not imported
    made(lambda make, name: make(name.upper()), "engine:Path")
    assert engine.Path("x").name == "X"


def test_once_and_the_later_one_around_the_earlier_one(engine):
    mend = made(twice, "engine:shout")
    first = engine.shout
    mend.apply()
    made(twice, "engine:shout")  # the same entry of another copy of this package
    assert engine.shout is first
    made(lambda shout, *args: shout(*args) + "!", "engine:shout", name="marked")
    assert engine.shout("a") == "AA!" and engine.shout.mended_by == ("doubling", "marked")


def test_what_is_no_function_is_replaced_by_what_is_made_of_it_and_no_target_is_done_once(engine):
    mend = made(lambda table: types.SimpleNamespace(before=table), "engine:table")
    first = engine.table
    mend.apply()
    assert engine.table is first and not hasattr(first.before, "before")
    done = []
    made(lambda: done.append(1)).apply()
    assert done == [1]


@pytest.mark.parametrize(
    "target", ["engine:whisper", "engine:Path.move", "engine:File.copy", "engine.files:copy"]
)
def test_a_target_that_has_disappeared(engine, target, caplog):
    """One line that names it, and none of the changes of the entry."""
    with caplog.at_level(logging.WARNING):
        mend = made(twice, "engine:shout", target)
    (record,) = caplog.records
    text = record.getMessage()
    assert "doubling: " in text and "\n" not in text and target.replace(":", ".") in text
    assert engine.shout("a") == "A" and mend.state == GONE


def test_not_needed_and_left_out(engine):
    unwanted = Mend("unwanted", RIGHT, "", changes=[("engine:shout", twice)])
    unwanted.apply(left_out=True)
    assert made(twice, "engine:shout", needed=lambda: False).state == NOT_NEEDED
    assert unwanted.state == LEFT_OUT and engine.shout("a") == "A"
