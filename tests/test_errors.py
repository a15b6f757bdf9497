"""Bad input gives one line in commands. All other errors give a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRELUDE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from luna_fairseq import command_errors, errors
def cli_main(error=errors.InputError('width 3')):
    if command_errors.is_command():
        sys.excepthook = command_errors.make_excepthook(sys.excepthook)
    raise error
"""


def run(path, code="cli_main()", first=""):
    """Write a program that needs no fairseq to ``path``, run it, and return its status and stderr."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(first + PRELUDE + code + "\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("program", ["fairseq_cli/train.py", "luna-score", "luna-score.exe"])
def test_one_line_in_a_command(program, tmp_path):
    assert run(tmp_path / program) == (1, "luna_fairseq: error: width 3\n")


def test_the_error_behind_the_one_raised_last(tmp_path):
    code = """
sys.excepthook = command_errors.make_excepthook(sys.excepthook)
try:
    raise errors.InputError('width 3')
except Exception:
    raise Exception('cannot load')
"""
    assert run(tmp_path / "luna-score", code) == (1, "luna_fairseq: error: width 3\n")


@pytest.mark.parametrize(
    "error, line",
    [
        ("FileNotFoundError(2, 'no such', '/nowhere/at all')", "/nowhere/at all: no such"),
        ("errors.MissingRequirementError('pip install pillow')", "pip install pillow"),
        ("ImportError('Please install nltk')", "Please install nltk"),
        ("ModuleNotFoundError('No module named x', name='x.y')", "No module named x"),
        ("ModuleNotFoundError('no', name='luna_fairseq.x')", None),
        ("ImportError('cannot import name a', name='x')", None),
        ("OSError('without a path')", None),
        ("OSError(28, 'no space')", "No space left on device"),
        ("OSError('11501 requested and 9216 written')", "No space left on device"),
        ("AssertionError('Must specify batch size')", None),
        ("RuntimeError('out of memory')", None),
        ("FloatingPointError('gradients are Nan/Inf')", None),
    ],
)
def test_errors_of_the_user_and_others(error, line, tmp_path):
    status, text = run(tmp_path / "fairseq_cli" / "train.py", f"cli_main({error})")
    assert status == 1 and (text == f"luna_fairseq: error: {line}\n" if line else "Traceback" in text)


@pytest.mark.parametrize(
    "program, code", [("mine.py", "cli_main()"), ("fairseq_cli/train.py", "cli_main(TypeError('width 3'))")]
)
def test_tracebacks_stay_in_other_programs_and_for_other_errors(program, code, tmp_path):
    status, text = run(tmp_path / program, code)
    assert status == 1 and text.startswith("Traceback") and text.rstrip().endswith("Error: width 3")


def test_a_spawned_process_keeps_its_traceback(tmp_path):
    code = """
if __name__ == "__main__":
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=cli_main)
    child.start(); child.join(); sys.exit(child.exitcode)
"""
    status, text = run(tmp_path / "fairseq_cli" / "train.py", code)
    assert status == 1 and "Traceback" in text and text.rstrip().endswith("errors.InputError: width 3")


def test_importing_leaves_other_programs_alone(tmp_path):
    code = "print(sys.excepthook is sys.__excepthook__, file=sys.stderr)"
    assert run(tmp_path / "mine.py", code) == (0, "True\n")
    assert run(tmp_path / "luna-score", code) == (0, "False\n")


@pytest.mark.parametrize("command", ["luna_fairseq.engine.listing", "luna_fairseq.commands.show_recipes"])
def test_a_reader_that_goes_early_is_no_error(command):
    words = [sys.executable, "-m", command]
    with subprocess.Popen(words, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        listing.stdout.close()
        message = listing.stderr.read().decode()
        assert listing.wait() == 1
        assert "Broken pipe" not in message and "Traceback" not in message and "Exception" not in message


def test_commands_log_warnings_alone(tmp_path):
    """The import of fairseq sets the root logger to DEBUG and reports missing speech packages."""
    program = tmp_path / "luna-x"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport luna_fairseq, logging\nimport fairseq.tasks\n"
        "for level in ('debug', 'info', 'warning'):\n    getattr(logging.getLogger('PIL'), level)(level)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "WARNING: warning\n")
