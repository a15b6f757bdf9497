"""scripts/setup_venv.sh uses the first interpreter that runs and that the version of fairseq supports."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FITS = "exit 0"
DOES_NOT_RUN = (
    "echo 'command not found' >&2; exit 127"  # like the shim of a version manager without a version
)


def find_python(folder, pythons, **environment):
    """Run ``--find-python`` with only these interpreters, given as {name: shell script}."""
    for name, lines in pythons.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(
            next(p for p in map(Path, ("/bin", "/usr/bin")) if (p / name).exists()) / name
        )
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "setup_venv.sh"), "--find-python"],
        env={"PATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "engine, name",
    [
        ({}, "python3.12"),
        ({"ENGINE": "fairseq-fixed"}, "python3.12"),
        ({"ENGINE": "fairseq"}, "python3.9"),
    ],
)
def test_first_that_runs(tmp_path, engine, name):
    pythons = dict.fromkeys(["python3.8", "python3.11"], DOES_NOT_RUN)
    pythons.update(dict.fromkeys(["python3.9", "python3.10", "python3.12", "python3"], FITS))
    found = find_python(tmp_path, pythons, **engine)
    assert (found.returncode, found.stdout) == (0, f"{name}\n"), found.stderr


def test_none(tmp_path):
    found = find_python(tmp_path, {"python3.8": DOES_NOT_RUN}, ENGINE="fairseq")
    assert found.returncode == 1 and not found.stdout
    (line,) = found.stderr.splitlines()
    assert "no CPython 3.8, 3.9 or 3.10 found" in line


def test_named_one_must_fit(tmp_path):
    engine = "fairseq" if sys.version_info >= (3, 11) else "fairseq-fixed"
    found = find_python(
        tmp_path, {"python3.9": FITS, "python3.12": FITS}, ENGINE=engine, PYTHON=sys.executable
    )
    assert found.returncode == 1 and ". Give CPython 3." in found.stderr


def test_unknown_engine(tmp_path):
    found = find_python(tmp_path, {"python3.12": FITS}, ENGINE="0.12.2")
    assert found.returncode == 1 and "ENGINE=0.12.2 is unknown" in found.stderr
