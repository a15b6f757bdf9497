"""scripts/setup_venv.sh: choice of the interpreter, and environments that cannot be replaced."""

import shutil
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


# Tools of the script, which finds neither a compiler nor the machine's own interpreters beside them.
TOOLS = "awk bash cat cksum cut df dirname du find flock grep ls mkdir rm touch".split()
MANY_GPUS = 'for n in $(cat many); do echo "GPU $n: NVIDIA"; done'


def fails_at(code):
    """Return the lines of an interpreter that runs any program except one with this code."""
    return f'case "$2" in *"{code}"*) exit 1 ;; *realpath*) echo "$0" ;; *sysconfig*) echo /nowhere ;; esac'


@pytest.mark.parametrize(
    "pythons, in_venv, engine, message",
    [
        (DOES_NOT_RUN, DOES_NOT_RUN, "fairseq-fixed", "no CPython 3.11, 3.12 or 3.13 found"),
        (fails_at("ensurepip"), DOES_NOT_RUN, "fairseq-fixed", "python3.11 has no venv module"),
        (fails_at("(8, 12)"), DOES_NOT_RUN, "fairseq-fixed", "there is no C++ compiler"),
        (fails_at("nothing"), DOES_NOT_RUN, "fairseq-fixed", "needs about 10 GiB, and 4 GiB are free"),
        (FITS, fails_at("sys.version_info"), "fairseq", "and fairseq needs CPython 3.8, 3.9 or 3.10"),
    ],
    ids=["interpreter", "venv", "compiler", "space", "fork"],
)
def test_an_environment_stays_if_no_new_one_can_be_built(tmp_path, pythons, in_venv, engine, message):
    root, folder = tmp_path / "root", tmp_path / "bin"
    contents = dict.fromkeys(["luna_fairseq.made", "luna_fairseq.stamp", "pyvenv.cfg", "lib/x.py"], "")
    contents["bin/python"] = f"#!/bin/sh\n{in_venv}\n"
    files = {root / ".venv" / name: text for name, text in contents.items()}
    files[root / "many"] = " ".join(map(str, range(20000)))  # nvidia-smi writes more than a pipe holds
    names = ("python3.11", "python3.12", "python3.13", "python3")
    files.update((folder / name, f"#!/bin/sh\n{pythons}\n") for name in names)
    files[folder / "nvidia-smi"] = f"#!/bin/sh\n{MANY_GPUS}\n"
    files[folder / "df"] = f"#!/bin/sh\necho header\necho disk 9 9 {4 * 2**20} 9% /\n"
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    for name in ("constraints.txt", "setup.py", "scripts/setup_venv.sh"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(str(ROOT / name), str(root / name))
    for name in TOOLS:
        if not (folder / name).exists() and shutil.which(name):
            (folder / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        ["bash", str(root / "scripts" / "setup_venv.sh")],
        env={"PATH": str(folder), "ENGINE": engine},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and message in done.stderr.splitlines()[-1], done.stderr
    found = {str(path.relative_to(root / ".venv")) for path in (root / ".venv").rglob("*") if path.is_file()}
    assert found == set(contents)
