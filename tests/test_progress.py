"""Progress bars are shown on a terminal, but not in a log file or with --quiet."""

import argparse
import io
import sys

import pytest

from luna_fairseq.commands.logged import run_logged, train_logged
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.progress import hide_progress, is_shown, progress, progress_bar, read_with_progress, say


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def make_terminal(monkeypatch):
    """Function that makes sys.stderr a terminal.

    Tests call it themselves, because pytest replaces sys.stderr after the fixtures.
    """

    def make():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return make


def test_a_terminal_sees_how_far_it_is_and_what_is_said(make_terminal, capsys):
    terminal = make_terminal()
    for _ in progress(range(3), "encode train", "pairs"):
        say("a line")
    assert "encode train:   0%" in terminal.getvalue() and "0/3" in terminal.getvalue()
    assert capsys.readouterr().out == "a line\n" * 3


def test_a_log_file_sees_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert list(progress(range(3), "encode")) == [0, 1, 2]
    assert sys.stderr.getvalue() == ""


def test_quiet_holds_for_what_is_within(make_terminal):
    terminal = make_terminal()
    with hide_progress():
        with hide_progress(False):
            assert not is_shown() and list(progress(range(3), "encode")) == [0, 1, 2]
        assert not is_shown()
    assert is_shown() and terminal.getvalue() == ""


@pytest.mark.parametrize("words, shown", [([], True), (["--quiet"], False)])
def test_every_command_has_quiet(words, shown, make_terminal):
    make_terminal()
    seen = []
    main = console_script("x", argparse.ArgumentParser, lambda _: seen.append(is_shown()))
    assert main(words) == 0 and seen == [shown] and is_shown()


def test_reading_a_file_is_counted_from_where_it_broke_off(make_terminal):
    terminal = make_terminal()
    with read_with_progress(io.BytesIO(b"x" * 3000), "a.tgz", 4000, start=1000) as content:
        assert content.read(2000) + content.read() == b"x" * 3000
    assert "a.tgz:  25%" in terminal.getvalue()


SAYS = """
print('train_inner | epoch 001: 1 / 9 loss=1, num_updates=3, lr=1')
print('{"epoch": 1, "train_num_updates": "6"}')
print('num_updates 8')
"""


def test_a_training_counts_its_updates(tmp_path, monkeypatch):
    bars = []

    def remembered(*args):
        bars.append(progress_bar(*args))
        return bars[-1]

    monkeypatch.setattr("luna_fairseq.commands.logged.progress_bar", remembered)
    monkeypatch.setattr(sys, "stderr", Terminal())
    train_logged(
        [sys.executable, "-c", SAYS, "--max-update", "9", "--max-update", "8"], tmp_path / "log", "a"
    )
    assert bars[0].n == bars[0].total == 8


def test_lines_of_standard_output_are_watched(tmp_path):
    seen = []
    run_logged([sys.executable, "-c", SAYS], tmp_path / "log", watch=seen.append)
    assert len(seen) == 3 and seen[2] == "num_updates 8"
