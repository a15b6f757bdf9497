"""Functions that run fairseq's commands with a log file and a progress bar on the terminal."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

from luna_fairseq.child_processes import STOPPED, TERMINATED, bind_to_this_process, forward_stop_signals
from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.files.sole_writer import handles
from luna_fairseq.progress import progress_bar, say

# Errors of fairseq that end a training run whose gradients are NaN or infinite.
_DIVERGED = ("FloatingPointError: gradients are Nan/Inf", "FloatingPointError: Minimum loss scale reached")
_UPDATES = re.compile(r'num_updates"?[:= ]+"?(\d+)')


class DivergedError(InputError):
    """Error of a training run that ended because its gradients were NaN or infinite."""


def fairseq_command(name: str, options: Sequence[str]) -> List[str]:
    """Return the arguments that start a fairseq command, such as "train", with this Python interpreter."""
    return [sys.executable, "-m", f"fairseq_cli.{name}", *options]


def train_logged(command: List[str], log: Path, description: str, shown: Sequence[str] = ()) -> None:
    """Run fairseq-train, write its output to a log file, and show the number of updates in a progress bar.

    ``description`` is the label of the bar. Lines that contain one of the strings in ``shown`` are also
    printed. Raises DivergedError if gradients became NaN or infinite.
    """
    given = parse_options(command).get("--max-update", "")
    total = int(given) if given.isdigit() else None
    start = log.stat().st_size if log.is_file() else 0
    with progress_bar(description, total, "updates") as bar:

        def count(line: str) -> None:
            match = _UPDATES.search(line)
            if match:
                bar.update(int(match[1]) - bar.n)

        try:
            run_logged(command, log, shown, watch=count)
        except InputError:
            text = log.read_bytes()[start:].decode("utf-8", errors="replace")
            if not any(error in text for error in _DIVERGED):
                raise
            message = f"{description} diverged: its gradients are NaN or infinite. Its output is in {log}"
            raise DivergedError(message) from None


def run_logged(
    command: List[str],
    log: Path,
    shown: Sequence[str] = (),
    output: Optional[Path] = None,
    empty_log: bool = False,
    watch: Callable[[str], Any] = str,
) -> None:
    """Run a command, and write its output to a log file.

    If this process receives a stop signal, it forwards the signal and waits, so that the command can save its
    work. If this process is killed on Linux, the command is stopped as well.

    Args:
        command: program and its arguments.
        log: file for standard output and standard error.
        shown: strings that mark the lines of standard output to print as well.
        output: file for standard output (default: the log file).
        empty_log: True to overwrite the log file, False to append to the log file.
        watch: function that is called with each line of standard output.

    Raises:
        InputError: The command failed. The message contains the last line of the log.
        SystemExit: The command or this process was asked to stop. The status is 143.
    """
    children: List[Any] = []
    with ExitStack() as stack:
        file = stack.enter_context(log.open("wb" if empty_log else "ab"))
        target = file if output is None else stack.enter_context(output.open("wb"))
        stderr = subprocess.STDOUT if output is None else file
        # The output is decoded as UTF-8 below, whatever the encoding of the terminal.
        environment = bind_to_this_process({**os.environ, "PYTHONIOENCODING": "utf-8"})
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": stderr, "env": environment, "pass_fds": handles()}
        received = stack.enter_context(forward_stop_signals(children))
        process = stack.enter_context(subprocess.Popen(command, **pipes))
        children.append(process)
        if received:  # while the command was being started
            process.terminate()
        for raw in process.stdout or ():
            target.write(raw)
            target.flush()
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            watch(line)
            if any(part in line for part in shown):
                say(line)
    if process.returncode in STOPPED or (received and process.returncode == 0):
        print("stopped by a signal. Repeat the command to continue", file=sys.stderr)
        sys.exit(TERMINATED)
    if process.returncode:
        program = command[command.index("-m") + 1] if "-m" in command else command[0]
        program = program.replace("fairseq_cli.", "fairseq-")
        raise InputError(f"{program} failed ({_last_line(log)}). Its output is in {log}")


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log file, truncated to 300 characters, for an error message."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no message")
