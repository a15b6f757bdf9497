"""Commands whose output goes to a log file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from luna_fairseq.commands.logged import DivergedError, run_logged, train_logged
from luna_fairseq.errors import InputError

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
    with pytest.raises(ValueError, match="three.*log") as refused:
        run_logged(command(3), tmp_path / "log", output=tmp_path / "output")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text, error",
    [("FloatingPointError: gradients are Nan/Inf", DivergedError), ("ValueError: no", InputError)],
)
def test_a_diverged_training_is_told_from_others(text, error, tmp_path):
    """Only the output of this start counts, not that of an earlier one in the same log."""
    log = tmp_path / "log"
    for said, expected in ((text, error), ("ValueError: no", InputError)):
        code = f"import sys; print({said!r}); print('StopIteration'); sys.exit(1)"
        with pytest.raises(InputError) as raised:
            train_logged([sys.executable, "-c", code, "--max-update", "abc"], log, "run")
        assert type(raised.value) is expected and str(log) in str(raised.value)


def test_program_is_called_by_the_name_users_know(tmp_path):
    with pytest.raises(ValueError, match="fairseq-nothing .*No module named"):
        run_logged([sys.executable, "-m", "fairseq_cli.nothing"], tmp_path / "log")


# A command like luna-finetune, and its child, which saves when it is asked to stop.
PARENT = """
import sys
from pathlib import Path
from luna_fairseq.commands.logged import run_logged
run_logged([sys.executable, "-u", "-c", sys.argv[1]], Path(sys.argv[2]), shown=["ready"])
"""
CHILD = """
import os, signal, sys, time
from luna_fairseq.child_processes import bind
def save(*_):
    print("saved")
    sys.exit({status})
signal.signal(signal.SIGTERM, save)
bind()
print("ready", os.getpid())
time.sleep(60)
"""


def start(log, status):
    words = [sys.executable, "-c", PARENT, CHILD.format(status=status), str(log)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("status", [143, 0])
def test_a_signal_reaches_the_child_which_may_save(name, status, tmp_path):
    with start(tmp_path / "log", status) as process:
        assert process.stdout.readline().startswith("ready")
        process.send_signal(getattr(signal, name))
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == 143 and errors.startswith("stopped by a signal"), errors
    assert (tmp_path / "log").read_text().splitlines()[-1] == "saved"


def test_a_child_that_fails_to_save_is_an_error(tmp_path):
    with start(tmp_path / "log", 1) as process:
        assert process.stdout.readline().startswith("ready")
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == 1 and "stopped by a signal" not in errors


def test_a_stopped_child_stops_the_command(tmp_path):
    with start(tmp_path / "log", 143) as process:
        os.kill(int(process.stdout.readline().split()[1]), signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux tells children that their parent ended"
)
def test_a_child_stops_when_the_command_is_killed(tmp_path):
    with start(tmp_path / "log", 143) as process:
        child = int(process.stdout.readline().split()[1])
        process.kill()
        process.communicate(timeout=30)
    until = time.monotonic() + 30
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.05)
