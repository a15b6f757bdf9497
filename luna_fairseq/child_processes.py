"""Functions that stop the child processes of a command if the command ends or is asked to stop."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Any, Dict, Iterator, List

# Exit status that a shell reports for a process terminated by SIGTERM: 128 + SIGTERM.
TERMINATED = 143
# Signals that ask a program to stop: SIGTERM of batch systems, and SIGHUP of a terminal that is closed.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Exit statuses of a process that was asked to stop, as Python reports them.
STOPPED = (TERMINATED, *(-number for number in STOP_SIGNALS))
# Environment variable with the process that a child must not outlive.
_PARENT = "LUNA_FAIRSEQ_PARENT"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def bind_to_this_process(environment: Dict[str, str]) -> Dict[str, str]:
    """Return a copy of ``environment`` for starting a child process that stops when this process ends.

    The copy contains the ID of this process. The child must call :func:`bind`, which reads the ID.
    """
    return {**environment, _PARENT: str(os.getpid())}


def bind() -> None:
    """Make Linux send SIGTERM to this process when its parent ends, even if the parent is killed.

    The parent must have started this process with the environment from :func:`bind_to_this_process`.
    """
    if sys.platform.startswith("linux") and os.environ.get(_PARENT) == str(os.getppid()):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.environ[_PARENT] != str(os.getppid()):  # the parent ended before the call
            os.kill(os.getpid(), signal.SIGTERM)


def handle_stop_signals(handler: Any) -> Dict[int, Any]:
    """Install a handler for SIGTERM and SIGHUP, and return the previous handlers, keyed by signal number.

    Ignored signals, such as SIGHUP under nohup, stay ignored. Outside the main thread, nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in wanted}


@contextlib.contextmanager
def forward_stop_signals(children: List[Any]) -> Iterator[List[int]]:
    """Context manager that sends SIGTERM to child processes when this process receives SIGTERM or SIGHUP.

    The caller appends each started process to ``children``. Yields the list of received signal numbers.
    """
    received: List[int] = []

    def forward(number: int, _: Any) -> None:
        received.append(number)
        for child in children:
            child.send_signal(signal.SIGTERM)

    previous = handle_stop_signals(forward)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
