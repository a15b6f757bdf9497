"""Runs of fairseq's commands whose output goes to a file."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import List, Optional, Sequence

from luna_fairseq.errors import InputError


def fairseq(name: str, options: Sequence[str]) -> List[str]:
    """The command line of ``fairseq-NAME`` in this Python."""
    return [sys.executable, "-m", f"fairseq_cli.{name}", *options]


def run_logged(
    command: List[str],
    log: Path,
    shown: Sequence[str] = (),
    output: Optional[Path] = None,
    anew: bool = False,
) -> None:
    """Run ``command``, add what it says to ``log``, and print the lines that contain one of ``shown``.

    Args:
        command: with its arguments
        log: file for standard output and error
        shown: parts of lines to print
        output: file for standard output alone (default: that goes to the log, too)
        anew: empty the log first

    Raises:
        InputError: it failed; the message has the last line it printed, and names the log.
    """
    last = ""
    with ExitStack() as stack:
        file = stack.enter_context(log.open("w" if anew else "a", encoding="utf-8"))
        stdout = subprocess.PIPE if output is None else stack.enter_context(output.open("wb"))
        stderr = subprocess.STDOUT if output is None else subprocess.PIPE
        process = stack.enter_context(
            subprocess.Popen(command, stdout=stdout, stderr=stderr, encoding="utf-8", errors="replace")
        )
        for line in (process.stdout if output is None else process.stderr) or ():
            file.write(line)
            file.flush()
            last = line.strip() or last
            if any(part in line for part in shown):
                print(line.rstrip("\n"), flush=True)
    if process.returncode:
        program = command[command.index("-m") + 1] if "-m" in command else command[0]
        program = program.replace("fairseq_cli.", "fairseq-")
        raise InputError(f"{program} failed ({last[:300] or 'no message'}): its whole output is in {log}")
