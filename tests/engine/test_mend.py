"""The decorator that makes a change: once, in order, all or nothing, and says where there is no place."""

import logging
import sys
import types

import pytest

from luna_fairseq.engine.mend import GONE, KIND, LEFT_OUT, MENDED, NOT_NEEDED, Mend


@pytest.fixture
def engine(monkeypatch):
    """A module ``engine`` as fairseq's are: functions, a class, something that is no function."""
    module = types.ModuleType("engine")
    source = """
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
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "engine", module)
    return module


def doubling(name="doubling", *targets, **options):
    mend = Mend(name, KIND, what="says everything twice", why="once is missed", **options)

    @mend.around(*(targets or ("engine:shout",)))
    def twice(shout, *args, **kwargs):
        return 2 * shout(*args, **kwargs)

    return mend


def test_the_function_takes_the_place_of_its_target(engine):
    mend = doubling()
    mend.apply()
    assert engine.shout("a", times=2) == "AAAA" and mend.state == MENDED
    assert engine.shout.__name__ == "shout" and engine.shout.__doc__ == "Say it louder."
    assert engine.shout.best == 3


def test_applied_twice_it_is_there_once(engine):
    mend = doubling()
    mend.apply()
    first = engine.shout
    mend.apply()
    doubling().apply()  # the same entry of another copy of this package
    assert engine.shout is first and mend.state == MENDED


def test_the_later_one_is_around_the_earlier_one(engine):
    doubling().apply()
    marked = Mend("marked", KIND, what="", why="")
    marked.around("engine:shout")(lambda shout, *args: shout(*args) + "!")
    marked.apply()
    assert engine.shout("a") == "AA!" and engine.shout.mended_by == ("doubling", "marked")


def test_methods_and_static_methods(engine):
    doubling("both", "engine:Path.copy", "engine:Path.whole").apply()
    assert engine.Path.copy("a", "b") == ("a", "b", "a", "b") == engine.Path("x").copy("a", "b")
    assert engine.Path("x").whole() == "xx"


def test_a_class_is_replaced_by_what_makes_its_objects(engine):
    mend = Mend("upper", KIND, what="", why="")
    mend.around("engine:Path")(lambda make, name: make(name.upper()))
    mend.apply()
    assert engine.Path("x").name == "X"


def test_what_is_no_function_is_replaced_by_what_is_made_of_it(engine):
    mend = Mend("other", KIND, what="", why="")
    mend.around("engine:table")(lambda table: types.SimpleNamespace(before=table))
    mend.apply()
    first = engine.table
    mend.apply()
    assert engine.table is first and not hasattr(first.before, "before")


def test_without_a_target_it_is_done_once(engine):
    done = []
    mend = Mend("told", KIND, what="", why="")
    mend.around()(lambda: done.append(1))
    mend.apply()
    assert done == [1]


@pytest.mark.parametrize(
    "target", ["engine:whisper", "engine:Path.move", "engine:File.copy", "engine.files:copy"]
)
def test_a_target_that_has_disappeared(engine, target, caplog):
    """One line that names it, and none of the changes of the entry."""
    mend = doubling("doubling", "engine:shout", target)
    with caplog.at_level(logging.WARNING):
        mend.apply()
    (record,) = caplog.records
    text = record.getMessage()
    assert "doubling: " in text and "\n" not in text and target.replace(":", ".") in text
    assert engine.shout("a") == "A" and mend.state == GONE


def test_not_needed_and_left_out(engine):
    unneeded, unwanted = doubling(needed=lambda: False), doubling()
    unneeded.apply()
    unwanted.apply(left_out=True)
    assert (unneeded.state, unwanted.state) == (NOT_NEEDED, LEFT_OUT) and engine.shout("a") == "A"


def test_a_program_that_does_not_run_is_not_imported(engine):
    mend = doubling("doubling", "engine:shout", "fairseq_cli.score:cli_main")
    mend.apply()
    assert mend.state == MENDED and engine.shout("a") == "AA" and "fairseq_cli.score" not in sys.modules
