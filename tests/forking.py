"""Process that has imported slow modules, and forks a process for each program that tests run.

The command line names the modules to import. This package and its commands are not among them, so that a
forked program imports them as ``python`` would. The process reads a line of JSON with a list of the runs of
:mod:`forked`, and answers with the list of the results of :func:`carry_out`.
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
    """Fork a process that runs ``python WORDS``, and return its id.

    The process leads a new process group, or joins the group of ``leader`` if that is not 0.
    """
    process = os.fork()
    # Parent and child both set the group, because another process may join it at once.
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
    os._exit(run_program(lambda: interpret(*words)))


def interpret(option, program, *arguments):
    """Run ``python -m MODULE ...`` or ``python -c CODE ...`` in this process."""
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def run_program(program):
    """Call the function that runs a program, and return its exit status.

    The interpreter is not shut down completely, because this would copy the memory that is shared with the
    parent.
    """
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
    """Run the processes of a run to the end, and return their exit statuses.

    The status is -N if signal N ended the process. If the run ended before it was to be interrupted, a
    message is returned instead of the list.
    """
    processes = []
    for words in run["argvs"]:
        processes.append(start(words, run, processes[0] if processes else 0, answers))
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(processes[0], signal.SIGKILL))
    signal.alarm(LIMIT)
    came = True
    if "signal" in run:
        came = wait_for_text(run["after"], run["log"], processes[0])
        os.killpg(processes[0], getattr(signal, run["signal"]))
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    signal.alarm(0)
    if not came:
        return f"{run['after']!r} never came: {Path(run['log']).read_text(encoding='utf-8')[-2000:]}"
    return [-os.WTERMSIG(s) if os.WIFSIGNALED(s) else os.WEXITSTATUS(s) for s in statuses]


def wait_for_text(text, log, process):
    """Wait until ``text`` is in the log. Return False if the process ends first."""
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
    gc.freeze()  # otherwise garbage collection in each process would copy this memory
    logging.root.handlers.clear()  # a module of fairseq adds one, and commands add their own
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps([carry_out(run, answers) for run in json.loads(line)]), file=answers, flush=True)
