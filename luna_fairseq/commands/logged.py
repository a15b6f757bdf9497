"""Runs of fairseq's commands whose output goes to a file."""

import subprocess
from pathlib import Path
from typing import List, Sequence

from luna_fairseq.errors import InputError


def run_logged(command: List[str], log: Path, shown: Sequence[str]) -> None:
    """Run ``command`` (python -m fairseq_cli...), add what it says to ``log``, print lines with one of ``shown``.

    Raises:
        InputError: it failed; the message has the last line it printed, and names the log.
    """
    last = ""
    with log.open("a", encoding="utf-8") as file, _started(command) as process:
        for line in process.stdout or ():
            file.write(line)
            file.flush()
            last = line.strip() or last
            if any(part in line for part in shown):
                print(line.rstrip("\n"), flush=True)
    if process.returncode:
        program = command[command.index("-m") + 1].replace("fairseq_cli.", "fairseq-")
        raise InputError(f"{program} failed ({last}): its whole output is in {log}")


def _started(command: List[str]) -> "subprocess.Popen[str]":
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdout=pipe, stderr=merged, encoding="utf-8", errors="replace")
