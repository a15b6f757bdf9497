"""Every command that the package declares, as it is installed."""

import subprocess
import sys

import pytest

HELP = """
import importlib, sys
from importlib.metadata import distribution
wrong = []
for entry in distribution("luna_fairseq").entry_points:
    if entry.group == "console_scripts":
        module, function = entry.value.split(":")
        sys.argv = [entry.name, "--help"]
        try:
            status = getattr(importlib.import_module(module), function)()
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = repr(error)
        if status:
            wrong.append((entry.name, status))
print(wrong, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_help_without_docstrings_and_assertions(option, tmp_path):
    """Run the command in another folder, as a user does."""
    done = subprocess.run(
        [sys.executable, option, "-c", HELP], cwd=str(tmp_path), capture_output=True, text=True
    )
    assert done.stderr.strip().splitlines()[-1:] == ["[]"], done.stderr[-2000:]
