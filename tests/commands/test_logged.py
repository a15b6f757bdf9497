"""Commands whose output goes to a log file."""

import sys

import pytest

from luna_fairseq.commands.logged import run_logged

SPEAKS = "import sys; print('one'); print('two'); print('three', file=sys.stderr); sys.exit(int(sys.argv[1]))"


def command(status):
    return [sys.executable, "-u", "-c", SPEAKS, str(status)]


def test_output_is_added_to_the_log_and_some_of_it_shown(tmp_path, capsys):
    log = tmp_path / "log"
    for _ in range(2):
        run_logged(command(0), log, shown=["two"])
    assert sorted(log.read_text().split()) == ["one", "one", "three", "three", "two", "two"]
    assert capsys.readouterr().out == "two\ntwo\n"


def test_standard_output_goes_to_a_file_of_its_own(tmp_path):
    for _ in range(2):
        run_logged(command(0), tmp_path / "log", output=tmp_path / "output", empty_log=True)
    assert (tmp_path / "output").read_text() == "one\ntwo\n"
    assert (tmp_path / "log").read_text() == "three\n"


def test_failure_is_one_line_that_names_the_log(tmp_path):
    with pytest.raises(ValueError, match="failed .three.. Its output is in .*log") as refused:
        run_logged(command(3), tmp_path / "log", output=tmp_path / "output")
    assert "\n" not in str(refused.value)


def test_program_is_called_by_the_name_users_know(tmp_path):
    with pytest.raises(ValueError, match="^fairseq-nothing failed .*No module named"):
        run_logged([sys.executable, "-m", "fairseq_cli.nothing"], tmp_path / "log")
