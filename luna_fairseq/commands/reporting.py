"""Entry points of commands, with one-line errors, ``--quiet``, and options for fairseq's commands."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import luna_fairseq
from luna_fairseq.command_errors import one_line_for, until_nobody_reads
from luna_fairseq.errors import InputError
from luna_fairseq.progress import quietly

# Value of fairseq's --user-dir that names this package from any working directory.
USER_DIR = str(Path(luna_fairseq.__file__).resolve().parent)


def reported(program: str, function: Callable[[], Any], location: Optional[Path] = None) -> int:
    """Call a function, and report errors of the user in one line on standard error.

    Args:
        program: name of the command, at the start of the line.
        function: function without arguments, which raises InputError for bad input.
        location: file or folder for the message of an OSError without a file, such as a full disk (default:
            None).

    Returns:
        The exit status: 0, or 1 after an error.
    """
    try:
        with until_nobody_reads():
            function()
    except OSError as error:
        where = error.filename or location
        print(f"{program}: error: {f'{where}: ' if where else ''}{error.strerror or error}", file=sys.stderr)
        return 1
    except Exception as error:
        message = one_line_for(error)
        if message is None:
            raise
        print(f"{program}: error: {message}", file=sys.stderr)
        return 1
    return 0


def offer_quiet(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet``, which every command has."""
    parser.add_argument("--quiet", action="store_true", help="no progress bars, even on a terminal")


# Options of fairseq-train that determine the files of its checkpoints, which a command has to find.
OWN_FOLDER = ("--save-dir", "--no-save", "--checkpoint-suffix")


def console_script(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    work: Callable[..., Any],
    path_argument: str = "",
    passes_on: Optional[Sequence[str]] = None,
    hides_log: bool = False,
    takes_words: bool = False,
) -> Callable[..., int]:
    """Build the entry point of a command.

    Args:
        program: name of the command.
        build_parser: function that builds the parser of the command line.
        work: function that does the work, called with the parsed arguments. It raises InputError for bad
            input.
        path_argument: name of the argument with the file or folder for :func:`reported` (default: none).
        passes_on: options after ``--`` that the user must not give, because the command sets them. All other
            options after ``--`` are passed to ``work`` as a second argument, for one of fairseq's commands
            (default: None, the command does not accept ``--``).
        hides_log: hide fairseq's log messages and warnings (default: False).
        takes_words: call ``work`` with the unparsed words of the command line, which include options of
            fairseq-train. The parser is then used for ``--help`` only (default: False).

    Returns:
        Function ``main(argv)``, which returns the exit status: 0, or 1 after a one-line error. The default of
        ``argv`` is None, the arguments of the process.
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

        def check_and_work() -> Any:
            for name in (word.split("=")[0] for word in extra):
                # fairseq accepts abbreviated options.
                if name.strip("-") and any(own.startswith(name) for own in passes_on or ()):
                    raise InputError(f"{name} after --: {program} sets this option. Remove it")
            return work(args) if passes_on is None else work(args, extra)

        with quietly(args.quiet):
            return reported(program, check_and_work, getattr(args, path_argument) if path_argument else None)

    return main
