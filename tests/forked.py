"""fairseq's commands as a user starts them, in processes of their own: forked from one (:mod:`forking`) that
all tests share, so that they start at once."""

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


def split(words):
    """Options as a list: a Path is one word, a text is split."""
    return [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]


def run_module(module, words, folder=None, stdin=None):
    """``python -m module`` with these words; returns what subprocess.run would."""
    with tempfile.TemporaryDirectory() as files:
        paths = {name: Path(files, name) for name in ("stdin", "log", "errors")}
        paths["stdin"].write_text(stdin or "", encoding="utf-8")
        streams = {name: str(path) for name, path in paths.items()}
        argv = split(words)
        ((status,),) = _statuses(
            [{"module": module, "argvs": [argv], "folder": folder and str(folder), **streams}]
        )
        output, errors = (paths[name].read_text(encoding="utf-8") for name in ("log", "errors"))
    return subprocess.CompletedProcess(argv, status, output, errors)


def forked(*runs):
    """Carry out trainings (dicts of "argvs" and, for one that is interrupted, "signal" and "after").

    They follow one another. The processes of one (one for each list of options) are a process group and write
    to one log. With "signal" and "after", the group is sent that signal as soon as "after" stands in the log.

    Returns a list of pairs: the exit statuses of a training's processes, -N for one that signal N ended, and
    its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = [{**run, "log": os.path.join(folder, str(number))} for number, run in enumerate(runs)]
        for run in plan:
            run["module"] = "fairseq_cli.train"
            run["argvs"] = [["--user-dir", USER_DIR, *split(words)] for words in run["argvs"]]
        statuses = _statuses(plan)
        return [(ended, Path(run["log"]).read_text(encoding="utf-8")) for ended, run in zip(statuses, plan)]


def train(*runs):
    """Train with each list of words to the end; returns the logs."""
    logs = []
    for statuses, log in forked(*({"argvs": [words]} for words in runs)):
        assert statuses == [0], log[-3000:]
        logs.append(log)
    return logs


class Popen:
    """subprocess.Popen of ``python -m MODULE ...``, forked, and over when it is there."""

    def __init__(self, command, stdout, stderr, env):
        at = command.index("-m") + 1
        self.folder = tempfile.TemporaryDirectory()
        run = {
            "module": command[at],
            "argvs": [command[at + 1 :]],
            "log": os.path.join(self.folder.name, "log"),
            "environment": {**env, **ON_A_CPU},
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


def _statuses(plan):
    server, environment = _server(), {**os.environ, **ON_A_CPU}
    server.stdin.write(json.dumps([{"environment": environment, **run} for run in plan]) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, f"{FORKING.name} has ended"
    statuses = json.loads(answer)
    assert all(isinstance(each, list) for each in statuses), statuses
    return statuses


@functools.lru_cache(maxsize=None)
def _server():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "universal_newlines": True}
    server = subprocess.Popen([sys.executable, str(FORKING)], env={**os.environ, **ON_A_CPU}, **pipes)
    atexit.register(server.communicate)  # closes its stdin, at which it ends
    return server
