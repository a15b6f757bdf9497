"""What all commands have in common: one line for bad input, options for fairseq's own commands, a progress
bar."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple

from tqdm import tqdm

import luna_fairseq
from luna_fairseq.errors import InputError

# This package as fairseq's --user-dir, whatever the working directory.
USER_DIR = str(Path(luna_fairseq.__file__).resolve().parent)


def reported(program: str, work: Callable[[], Any], place: Optional[Path] = None) -> int:
    """Do the work of a command.

    Args:
        program: its name.
        work: what raises InputError for bad input.
        place: what an OSError concerns that names no file, such as a full disk.

    Returns:
        Exit status: 0, or 1 after one line on stderr.
    """
    try:
        work()
    except InputError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = error.filename or place
        print(f"{program}: error: {f'{where}: ' if where else ''}{error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def console_script(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    work: Callable[..., Any],
    place: str = "",
    passes_on: bool = False,
    quiet: bool = False,
) -> Callable[..., int]:
    """The entry point of a command.

    Args:
        program: its name.
        build_parser: makes its command line.
        work: does it, given the parsed arguments; raises InputError for bad input.
        place: argument that names what an OSError concerns, where that names no file.
        passes_on: options after ``--`` go to one of fairseq's commands; ``work`` gets them as a list, too.
        quiet: what fairseq logs of its own work is not shown.

    Returns:
        main(argv), which reads the process's arguments by default and gives the exit status: 0, or 1 after
        one line on stderr.
    """

    def main(argv: Optional[Sequence[str]] = None) -> int:
        words, extra = split_at_dashes(argv) if passes_on else (argv, [])
        args = build_parser().parse_args(words)
        if quiet:
            logging.disable(logging.INFO)
        given = (args, extra) if passes_on else (args,)
        return reported(program, lambda: work(*given), getattr(args, place) if place else None)

    return main


def split_at_dashes(argv: Optional[Sequence[str]]) -> Tuple[List[str], List[str]]:
    """The words of the command line (default: the process's) before and after ``--``; the latter go to
    fairseq."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def progress(items: Iterable, description: str, unit: str = "lines") -> Iterator:
    """Show progress on a terminal; a log file would fill with it."""
    return iter(tqdm(items, desc=description, unit=f" {unit}", mininterval=1.0, leave=False, disable=None))
