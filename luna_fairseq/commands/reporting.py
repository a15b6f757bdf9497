"""What all commands have in common: one line for bad input, --quiet, options for fairseq's own commands."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import luna_fairseq
from luna_fairseq.errors import InputError, one_line_for, until_nobody_reads
from luna_fairseq.progress import quietly

# This package as fairseq's --user-dir, whatever the working directory.
USER_DIR = str(Path(luna_fairseq.__file__).resolve().parent)


def reported(program: str, work: Callable[[], Any], place: Optional[Path] = None) -> int:
    """Do the work of the command ``program``, which raises InputError for bad input; its exit status: 0, or 1
    after one line on stderr. ``place`` is what an OSError concerns that names no file, as of a full disk."""
    try:
        with until_nobody_reads():
            work()
    except OSError as error:
        where = error.filename or place
        print(f"{program}: error: {f'{where}: ' if where else ''}{error.strerror or error}", file=sys.stderr)
        return 1
    except Exception as error:
        said = one_line_for(error)
        if said is None:
            raise
        print(f"{program}: error: {said}", file=sys.stderr)
        return 1
    return 0


def offer_quiet(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet``, which every command has."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars, even on a terminal")


# Of fairseq-train: where the checkpoints are that a command reads afterwards.
OWN_FOLDER = ("--save-dir", "--no-save", "--checkpoint-suffix")


def console_script(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    work: Callable[..., Any],
    place: str = "",
    passes_on: Optional[Sequence[str]] = None,
    hides_log: bool = False,
    takes_words: bool = False,
) -> Callable[..., int]:
    """The entry point of a command.

    Args:
        program: its name.
        build_parser: makes its command line.
        work: does it, given the parsed arguments; raises InputError for bad input.
        place: argument that names what an OSError concerns, where that names no file.
        passes_on: options after ``--`` go to one of fairseq's commands; ``work`` gets them as a list, too.
            Among them may not be these, which the command gives itself and goes by (default: no ``--``).
        hides_log: what fairseq logs and warns of in its own work is not shown.
        takes_words: the words of the command line are options of fairseq-train for ``work``, which gets them
            as a list. ``build_parser`` is for ``--help`` alone.

    Returns:
        main(argv), which reads the process's arguments by default and gives the exit status: 0, or 1 after
        one line on stderr.
    """

    def main(argv: Optional[Sequence[str]] = None) -> int:
        words, extra = list(sys.argv[1:] if argv is None else argv), []
        if takes_words:
            if words[:1] in (["-h"], ["--help"]):
                build_parser().parse_args(["--help"])
            return reported(program, lambda: work(words))
        if passes_on is not None and "--" in words:
            end = words.index("--")
            words, extra = words[:end], words[end + 1 :]
        parser = build_parser()
        if "--quiet" not in parser._option_string_actions:
            offer_quiet(parser)
        args = parser.parse_args(words)
        if hides_log:
            logging.disable(logging.INFO)
            warnings.simplefilter("ignore")

        def checked_work() -> Any:
            for name in (word.split("=")[0] for word in extra):
                # fairseq takes the beginning of a name for it.
                if name.strip("-") and any(own.startswith(name) for own in passes_on or ()):
                    raise InputError(f"{name} after --: {program} says it itself, leave it out")
            return work(args) if passes_on is None else work(args, extra)

        with quietly(args.quiet):
            return reported(program, checked_work, getattr(args, place) if place else None)

    return main
