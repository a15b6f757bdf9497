"""The process that has imported already what takes long, and forks every program from itself.

Imported is what its command line names, never this package nor a command: what is forked does what ``python``
does. Reads the runs of :mod:`forked`, a list of them in each line of JSON, and answers each line with the
list of what :func:`carry_out` returns.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import logging
import os
import runpy
import signal
import sys
import time
from pathlib import Path

LIMIT = 600  # seconds that a run may take


def start(words, run, leader, answers):
    """Fork a process that becomes ``python WORDS``; it leads a process group, or joins that of the leader."""
    process = os.fork()
    # Both set it, whoever comes first: another process may join the group at once.
    os.setpgid(process, leader or process)
    if process:
        return process
    answers.close()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(os.open(run.get("stdin", os.devnull), os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, closefd=False)
    for stream, name in ((1, "log"), (2, "errors")):
        os.dup2(os.open(run.get(name, run["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.clear()
    os.environ.update(run["environment"])
    os.chdir(run.get("folder") or os.getcwd())
    sys.path[0] = os.getcwd()
    os._exit(become(lambda: interpret(*words)))


def interpret(option, program, *arguments):
    """``python -m MODULE ...`` or ``python -c CODE ...``."""
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def become(program):
    """Call what runs a program; its exit status. Left out is the interpreter's tidying, which would copy
    all of the memory that the process shares with the one it was forked from."""
    status = 0
    try:
        program()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def carry_out(run, answers):
    """The exit statuses of the run's processes, -N for one that signal N ended; or, of one that ended before
    it was to be interrupted, so in words."""
    processes = []
    for words in run["argvs"]:
        processes.append(start(words, run, processes[0] if processes else 0, answers))
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(processes[0], signal.SIGKILL))
    signal.alarm(LIMIT)
    came = True
    if "signal" in run:
        came = comes(run["after"], run["log"], processes[0])
        os.killpg(processes[0], getattr(signal, run["signal"]))
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    signal.alarm(0)
    if not came:
        return f"{run['after']!r} never came: {Path(run['log']).read_text(encoding='utf-8')[-2000:]}"
    return [-os.WTERMSIG(s) if os.WIFSIGNALED(s) else os.WEXITSTATUS(s) for s in statuses]


def comes(text, log, process):
    """Wait until ``text`` stands in the log; False when the process ends without it."""
    path, ended = Path(log), None
    while not path.exists() or text not in path.read_text(encoding="utf-8", errors="replace"):
        if ended:
            return False
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        time.sleep(0.002)
    return True


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise each process copies all of this memory as it collects its garbage
    logging.root.handlers.clear()  # one of fairseq's modules makes one; commands make their own
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps([carry_out(run, answers) for run in json.loads(line)]), file=answers, flush=True)
