"""One line for bad input in fairseq's commands; a traceback for everything else."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(code):
    """Status and stderr of a program that has only ``errors.py`` to import."""
    prelude = (
        "import importlib.util, sys, types\n"
        f"spec = importlib.util.spec_from_file_location('errors', {str(ROOT / 'luna_fairseq' / 'errors.py')!r})\n"
        "errors = importlib.util.module_from_spec(spec); spec.loader.exec_module(errors)\n"
        "command = lambda: sys.modules.setdefault('fairseq_cli', types.ModuleType('fairseq_cli'))\n"
    )
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_one_line_in_a_command():
    status, text = run("errors.report_in_one_line(); command(); raise errors.InputError('width 3')")
    assert (status, text) == (1, "luna_fairseq: error: width 3\n")


def test_the_error_behind_the_one_raised_last():
    code = """
errors.report_in_one_line(); command()
try:
    raise errors.InputError('width 3')
except Exception:
    raise Exception('cannot load')
"""
    assert run(code) == (1, "luna_fairseq: error: width 3\n")


def test_called_twice():
    code = "errors.report_in_one_line(); hook = sys.excepthook; errors.report_in_one_line(); print(hook is sys.excepthook, file=sys.stderr)"
    assert run(code) == (0, "True\n")


def test_tracebacks_stay_in_other_programs_and_for_other_errors():
    for code in ("raise errors.InputError('width 3')", "command(); raise ValueError('width 3')"):
        status, text = run("errors.report_in_one_line(); " + code)
        assert status == 1 and text.startswith("Traceback") and text.rstrip().endswith("Error: width 3")
