"""Runs of fairseq-train, each in processes of its own forked from one that has imported fairseq already.

    python forked.py '[{"argvs": [["option", ...], ...], "log": "file"}, ...]'

The runs follow one another. The processes of one run (one for each list of options) are a process group and
write to one log. With "signal" and "after", the group is sent that signal as soon as "after" stands in the
log. Prints the list of the runs' lists of exit statuses, -N for a process that signal N ended.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from commands import USER_DIR


def split(words):
    """Options as a list: a Path is one word, a text is split."""
    return [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]


def forked(*runs):
    """Carry out runs (dicts of "argvs" and, for one that is interrupted, "signal" and "after").

    Returns a list of pairs: the exit statuses of a run's processes, and its log.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        plan = [{**run, "log": os.path.join(folder, str(number))} for number, run in enumerate(runs)]
        plan = [{**run, "argvs": [split(words) for words in run["argvs"]]} for run in plan]
        line = [sys.executable, __file__, json.dumps(plan)]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        logs = [Path(run["log"]).read_text(encoding="utf-8") for run in plan]
    return list(zip(json.loads(done.stdout.splitlines()[-1]), logs))


def train(*runs):
    """Train with each list of words to the end; returns the logs."""
    logs = []
    for statuses, log in forked(*({"argvs": [words]} for words in runs)):
        assert statuses == [0], log[-3000:]
        logs.append(log)
    return logs


def _start(argv, log, leader):
    """Fork a process that trains; it leads a process group, or joins that of the leader."""
    process = os.fork()
    # Both set it, whoever comes first: another process may join the group at once.
    os.setpgid(process, leader or process)
    if process:
        return process
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    sys.argv = ["fairseq-train", "--user-dir", USER_DIR, *argv]
    from fairseq_cli.train import cli_main

    cli_main()
    sys.exit(0)


def _carry_out(run):
    with open(run["log"], "w", encoding="utf-8") as log:
        processes = []
        for argv in run["argvs"]:
            processes.append(_start(argv, log, processes[0] if processes else 0))
        if "signal" in run:
            _wait_for(run["after"], run["log"], processes[0])
            os.killpg(processes[0], getattr(signal, run["signal"]))
        statuses = [os.waitpid(process, 0)[1] for process in processes]
    return [-os.WTERMSIG(s) if os.WIFSIGNALED(s) else os.WEXITSTATUS(s) for s in statuses]


def _wait_for(text, log, process):
    until = time.monotonic() + 120
    while text not in Path(log).read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > until or os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise SystemExit(f"{text!r} never came: {Path(log).read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.002)


if __name__ == "__main__":
    # Imported once, for all processes to come; torch 2 imports the last one when it makes an optimizer.
    sys.path.insert(0, os.path.dirname(USER_DIR))
    for module in ("fairseq_cli.train", "luna_fairseq", "torch._dynamo"):
        if importlib.util.find_spec(module):
            importlib.import_module(module)

    print(json.dumps([_carry_out(run) for run in json.loads(sys.argv[1])]))
