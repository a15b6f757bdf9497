"""The code blocks of README.md and docs/ work as they are written."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys

import pytest
from checked_commands import check
from documented_examples import ROOT, examples, pages, stories
from forked import run_python
from small_worlds import MODULES, SHRUNK, fill, write_command

RECORDED = [*MODULES, "python", "make", "sbatch", "sacrebleu", "pip"]
STORIES = stories()
LAYER_IN_README = [x for x in examples() if x.page == "README.md" and "LunaCausalAttention" in x.text]
SHELL = [example for example in examples() if example.language == "bash"]


def quick_or_slow(story):
    page, fixture = story
    slow = any(example.slow for example in STORIES[story])
    return pytest.param(page, fixture, marks=[pytest.mark.slow] if slow else [], id=f"{page}-{fixture}")


@pytest.mark.parametrize("page, fixture", [quick_or_slow(story) for story in STORIES])
def test_examples_run_as_written(page, fixture, tmp_path):
    assert fixture in SHRUNK, f"{page}: there is no fixture {fixture!r}"
    environment = fill(fixture, tmp_path)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    for example in STORIES[page, fixture]:
        if sys.version_info < (3, 10) and "from transformers" in example.text:
            continue  # old versions of transformers copy only direct imports
        if example.language == "python":
            result = run_python("-c", example.text, folder=tmp_path, **environment)
        else:
            shell = ["bash", "-euo", "pipefail", "-c", example.text]
            result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True)
        said = result.stdout + result.stderr
        assert result.returncode == 0, f"{example.name}\n{said[-3000:]}"
        assert "Perplexity: 1.00" not in said, example.name


def test_the_readme_asks_for_the_state_that_it_shows():
    (example,) = LAYER_IN_README
    names = {}
    exec(example.text, names)
    assert names["state"] is not None


@pytest.mark.parametrize("example", SHELL, ids=lambda example: example.name)
def test_every_option_of_a_shell_example_exists(example, tmp_path):
    """The shell runs the block with stand-ins of the commands, which record their arguments for the check."""
    commands, log = tmp_path / ".commands", tmp_path / ".log"
    commands.mkdir()
    for name in RECORDED:  # the scripts ask python for the number of GPUs
        write_command(commands / name, f'printf "%s\\0" {name} "$@" >>"$LOG"; echo >>"$LOG"; echo 8')
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    environment = {**os.environ, "PATH": f"{commands}:/usr/bin:/bin", "LOG": str(log)}
    syntax = subprocess.run(["bash", "-n"], input=example.text, stderr=subprocess.PIPE, text=True)
    assert syntax.returncode == 0, syntax.stderr
    result = subprocess.run(
        ["bash", "-c", example.text], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    wrong = [line for line in result.stderr.splitlines() if "error: " in line or "not found" in line]
    assert not wrong, wrong
    calls = [call.split("\0")[:-1] for call in log.read_text(encoding="utf-8").split("\n") if call]
    assert calls, "the block calls none of our commands"
    for words in calls:
        if words[:2] != ["python", "-c"]:
            check(words)


RECORDS = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", re.findall(r"(?m)^\| [^|`]+ \| `([a-z][^`]+)` \|$", RECORDS))
def test_options_of_the_recorded_measurements_exist(options):
    check(["python", "-m", "luna_fairseq.benchmark", *shlex.split(options)])


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_the_pages_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        # The issue tracker is not a file of the repository.
        on_the_web = "://" in link or link == "../../issues"
        assert on_the_web or (path.parent / link).exists(), f"{path}: {link}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_text_names_exists(path):
    text = path.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (luna_fairseq[\w.]*)", text):
        assert importlib.util.find_spec(module), f"{path}: {module}"
    for command in re.findall(r"`(luna-[a-z0-9-]+)", text):
        assert command in MODULES or command == "luna-demo-corpus", f"{path}: {command}"
    for place in re.findall(r"`((?:scripts|configs|examples|luna_fairseq)/[\w./]+)`", text):
        assert (ROOT / place).exists(), f"{path}: {place}"
