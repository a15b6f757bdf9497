"""Run programs in processes of their own, quickly.

Each process is forked from one that has already imported fairseq (:mod:`forking`). All tests share that
process.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER_DIR = str(ROOT / "luna_fairseq")
FORKING = Path(__file__).with_name("forking.py")
ON_A_CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# Modules that are imported before the fork. torch 2 imports the last one when it creates an optimizer.
FAIRSEQ = ("fairseq.options", "fairseq.trainer", "fairseq.sequence_generator", "torch._dynamo")
TORCH = ("torch",)


def split(words):
    """Return command-line arguments as a list. A Path is one argument, a text is split at spaces."""
    return [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]


def run_module(module, words, folder=None, stdin=""):
    """Run ``python -m module`` with these arguments, and return a CompletedProcess."""
    return run_python("-m", module, *split(words), folder=folder, stdin=stdin)


def run_code(code, *words, **options):
    """Run ``python -c CODE WORDS``, check that it succeeds, and return its output."""
    done = run_python("-c", code, *map(str, words), **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_python(*words, folder=None, stdin="", imported=FAIRSEQ, **environment):
    """Run ``python`` with these arguments, and return a CompletedProcess."""
    with tempfile.TemporaryDirectory() as files:
        paths = {name: Path(files, name) for name in ("stdin", "log", "errors")}
        paths["stdin"].write_text(stdin or "", encoding="utf-8")
        run = {"argvs": [words], "folder": folder and str(folder), "environment": environment}
        ((status,),) = _statuses([{**run, **{name: str(path) for name, path in paths.items()}}], imported)
        output, errors = (paths[name].read_text(encoding="utf-8") for name in ("log", "errors"))
    return subprocess.CompletedProcess(words, status, output, errors)


def run_trainings(*runs):
    """Run trainings one after the other, and interrupt some of them.

    Each training is a dict. "argvs" holds the arguments of fairseq-train for each of its processes, which
    form a process group and share a log. With "signal" and "after", the group gets that signal as soon as the
    text "after" is in the log.

    Returns:
        List of pairs: the exit statuses of a training's processes (-N if signal N ended the process), and its
        log.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = [{**run, "log": os.path.join(folder, str(number))} for number, run in enumerate(runs)]
        for run in plan:
            run["argvs"] = [
                ["-m", "fairseq_cli.train", "--user-dir", USER_DIR, *split(words)] for words in run["argvs"]
            ]
        statuses = _statuses(plan)
        return [(ended, Path(run["log"]).read_text(encoding="utf-8")) for ended, run in zip(statuses, plan)]


def train(*runs):
    """Run a training to the end for each list of arguments, and return the logs."""
    logs = []
    for statuses, log in run_trainings(*({"argvs": [words]} for words in runs)):
        assert statuses == [0], log[-3000:]
        logs.append(log)
    return logs


class Popen:
    """Replacement of subprocess.Popen for ``python -m MODULE ...``.

    The command runs in a forked process. The constructor waits until the command has ended.
    """

    def __init__(self, command, stdout, stderr, env, pass_fds=()):
        self.folder = tempfile.TemporaryDirectory()
        run = {
            "argvs": [command[command.index("-m") :]],
            "log": os.path.join(self.folder.name, "log"),
            "environment": env,
        }
        if stderr != subprocess.STDOUT:
            run["errors"] = os.path.join(self.folder.name, "errors")
        ((self.returncode,),) = _statuses([run])
        if "errors" in run:
            stderr.write(Path(run["errors"]).read_bytes())
        self.stdout = open(run["log"], "rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdout.close()
        self.folder.cleanup()


def _statuses(plan, imported=FAIRSEQ):
    server = _server(*imported)
    plan = [{**run, "environment": {**os.environ, **run.get("environment", {}), **ON_A_CPU}} for run in plan]
    server.stdin.write(json.dumps(plan) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, f"{FORKING.name} has ended"
    statuses = json.loads(answer)
    assert all(isinstance(each, list) for each in statuses), statuses
    return statuses


@functools.lru_cache(maxsize=None)
def _server(*imported):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "universal_newlines": True}
    command = [sys.executable, str(FORKING), *imported]
    server = subprocess.Popen(command, env={**os.environ, **ON_A_CPU}, **pipes)
    atexit.register(server.communicate)  # closes its stdin, which ends the process
    return server
