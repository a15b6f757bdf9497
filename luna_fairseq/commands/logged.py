"""Runs of fairseq's commands whose output goes to a file, with a bar that tells how far they are."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import options_of
from luna_fairseq.progress import counter, say

_UPDATES = re.compile(r'num_updates"?[:= ]+"?(\d+)')


def fairseq(name: str, options: Sequence[str]) -> List[str]:
    """The command line of ``fairseq-NAME`` in this Python."""
    return [sys.executable, "-m", f"fairseq_cli.{name}", *options]


def train_logged(command: List[str], log: Path, description: str, shown: Sequence[str] = ()) -> None:
    """Run fairseq-train as :func:`run_logged` does, with a bar of its updates."""
    total = int(options_of(command).get("--max-update", 0)) or None
    with counter(description, total, "updates") as bar:

        def count(line: str) -> None:
            found = _UPDATES.search(line)
            if found:
                bar.update(int(found[1]) - bar.n)

        run_logged(command, log, shown, watch=count)


def run_logged(
    command: List[str],
    log: Path,
    shown: Sequence[str] = (),
    output: Optional[Path] = None,
    anew: bool = False,
    watch: Callable[[str], Any] = str,
) -> None:
    """Run ``command``, add what it says to ``log``, and print the lines that contain one of ``shown``.

    Args:
        command: its words
        log: file for standard output and error
        shown: parts of lines to print
        output: file for standard output alone (default: that goes to the log, too)
        anew: empty the log first
        watch: is given each line of standard output

    Raises:
        InputError: it failed; the message has the last line it printed, and names the log.
    """
    with ExitStack() as stack:
        file = stack.enter_context(log.open("wb" if anew else "ab"))
        target = file if output is None else stack.enter_context(output.open("wb"))
        stderr = subprocess.STDOUT if output is None else file
        # Read as UTF-8, whatever the terminal's is.
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": stderr, "env": environment}
        process = stack.enter_context(subprocess.Popen(command, **pipes))
        for raw in process.stdout or ():
            target.write(raw)
            target.flush()
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n")
            watch(line)
            if any(part in line for part in shown):
                say(line)
    if process.returncode:
        program = command[command.index("-m") + 1] if "-m" in command else command[0]
        program = program.replace("fairseq_cli.", "fairseq-")
        raise InputError(f"{program} failed ({_last_line(log)}): its whole output is in {log}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no message")
