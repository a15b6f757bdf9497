"""The installed package: files, version, console scripts, and registration with fairseq."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_code

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    f"luna-{name}"
    for name in """
    average-checkpoints demo-corpus engine evaluate evaluate-task export-huggingface export-onnx finetune
    import-huggingface lra-seeds make-shortlist prepare-bitext prepare-iwslt15-en-vi prepare-lra prepare-task
    prepare-text prepare-wmt14-en-de recipes report score show train train-bitext""".split()
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder into which pip installed the package."""
    folder = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source")
    # A copy is installed, because setuptools writes build/ and *.egg-info beside setup.py.
    for name in ("luna_fairseq", "configs", "examples"):
        shutil.copytree(str(ROOT / name), str(source / name))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"):
        shutil.copy(str(ROOT / name), str(source))
    (source / "build" / "lib" / "luna_fairseq").mkdir(parents=True)
    (source / "build" / "lib" / "luna_fairseq" / "deleted.py").touch()  # of an earlier build
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*pip, str(folder), str(source)], cwd=str(source), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder


def metadata(folder, name):
    return next(folder.glob("luna_fairseq-*.dist-info")).joinpath(name).read_text(encoding="utf-8")


def test_versions_agree(installed):
    import luna_fairseq

    assert f"\nVersion: {luna_fairseq.__version__}\n" in metadata(installed, "METADATA")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {luna_fairseq.__version__}\n" in citation
    assert f"[{luna_fairseq.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_module_and_note_is_installed(installed):
    package = ROOT / "luna_fairseq"
    expected = {path.relative_to(ROOT) for kind in ("*.py", "*.md") for path in package.rglob(kind)}
    expected |= {path.relative_to(ROOT) for path in (package / "report" / "assets").iterdir()}
    missing = {str(path) for path in expected if not (installed / path).is_file()}
    assert not missing and not (installed / "luna_fairseq" / "deleted.py").exists()
    assert not (installed / "tests").exists() and not (installed / "configs").exists()


def test_recipes_are_installed(installed, tmp_path):
    """Recipes are found in a folder without a checkout."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from luna_fairseq.commands import recipes;"
        "print(recipes.recipe_folder(), *recipes.list_recipes(), len(recipes.read_recipe('demo').words()))"
    )
    folder, *names, words = run_code(code, installed, folder=tmp_path).splitlines()[-1].split()
    assert os.path.realpath(folder) == os.path.realpath(str(installed / "luna_fairseq" / "configs"))
    mine = {f"{path.parent.name}/{path.stem}" for path in (ROOT / "configs").glob("*/*.yaml")}
    assert set(names) == {name for name in mine if not name.startswith("model/")} and int(words) > 20


def test_torch_is_the_only_requirement(installed):
    required = re.findall(r"(?m)^Requires-Dist: ([\w-]+)(.*)$", metadata(installed, "METADATA"))
    names = [name for name, rest in required if "extra ==" not in rest]
    assert names == ["torch"]


def test_console_scripts_name_existing_functions(installed, tmp_path):
    parser = configparser.ConfigParser()
    parser.read_string(metadata(installed, "entry_points.txt"))
    scripts = dict(parser["console_scripts"])
    assert sorted(scripts) == SCRIPTS
    code = (
        "import importlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "for target in sys.argv[2:]:\n"
        "    module, function = target.split(':')\n"
        "    assert callable(getattr(importlib.import_module(module), function)), target"
    )
    run_code(code, installed, *scripts.values(), folder=tmp_path)
    assert (installed / "bin" / "luna-average-checkpoints").is_file()


@pytest.mark.parametrize("by_name", [False, True])
def test_user_dir_of_an_installed_copy(installed, tmp_path, by_name):
    """--user-dir takes the path of the package, or its name if it is installed beside fairseq."""
    code = (
        "import sys, fairseq.utils; fairseq.utils.__file__ = fairseq.__file__ = sys.argv[2];"
        "from argparse import Namespace; name = Namespace(user_dir=sys.argv[1]);"
        "fairseq.utils.import_user_module(name); fairseq.utils.import_user_module(name);"  # as in fairseq
        "from fairseq.models import ARCH_MODEL_REGISTRY;"
        "import luna_fairseq; print(luna_fairseq.__file__, 'luna' in ARCH_MODEL_REGISTRY)"
    )
    beside = installed / "fairseq"  # stands for a fairseq installed into the same folder
    beside.mkdir(exist_ok=True)
    user_dir = "luna_fairseq" if by_name else installed / "luna_fairseq"
    found = run_code(code, user_dir, beside / "utils.py", folder=tmp_path)
    file, registered = found.splitlines()[-1].rsplit(" ", 1)
    assert registered == "True"
    assert os.path.realpath(file) == os.path.realpath(str(installed / "luna_fairseq" / "__init__.py"))


def test_pins_are_in_one_file():
    """Only constraints.txt pins versions. The two engine versions in setup.py equal the pins."""
    pins = dict(re.findall(r"(?m)^([\w-]+)(==[\w.]+;.*)$", (ROOT / "constraints.txt").read_text()))
    found = re.findall(r"'([\w-]+)(==[^']+)'", (ROOT / "setup.py").read_text())
    assert found and all(pins[name] == pin for name, pin in found)
    assert "==" not in (ROOT / "Makefile").read_text()
    assert not re.findall(r"\w==\d", (ROOT / "scripts" / "setup_venv.sh").read_text())
