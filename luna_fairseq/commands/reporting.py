"""Entry points of commands, which report user errors in one line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Optional, Sequence

import luna_fairseq
from luna_fairseq.command_errors import describe_os_error, describe_user_error, exit_if_unread
from luna_fairseq.errors import InputError
from luna_fairseq.progress import hide_progress

# Value of fairseq's --user-dir that names this package from any working directory.
USER_DIR = str(Path(luna_fairseq.__file__).resolve().parent)


def run_and_report(program: str, function: Callable[[], Any], location: Optional[Path] = None) -> int:
    """Call a function, and return the exit status: 1 after an error that the user can fix, otherwise 0.

    Such an error is printed as one line that begins with ``program``. Other exceptions propagate. If an
    OSError has no file name, as on a full disk, the message names the file or folder ``location`` instead.
    After Ctrl-C, the line says so, and the status is 130.
    """
    try:
        with exit_if_unread():
            function()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"{program}: error: {describe_os_error(error, location)}", file=sys.stderr)
        return 1
    except Exception as error:
        message = describe_user_error(error)
        if message is None:
            raise
        print(f"{program}: error: {message}", file=sys.stderr)
        return 1
    return 0


def _prepare_output() -> None:
    """Configure standard output so that ``print`` never fails.

    Characters that the terminal cannot encode become "?". If standard output is closed, nothing is printed.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    elif hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def offer_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--quiet``, which hides progress bars."""
    parser.add_argument("--quiet", action="store_true", help="hide progress bars, also on a terminal")


# Options of fairseq-train that determine the files of its checkpoints, which a command has to find.
OWN_FOLDER = ("--save-dir", "--no-save", "--checkpoint-suffix")
# Options of fairseq that have another name before --.
_OUR_NAMES = {
    "--max-epoch": "--epochs",
    "--lr": "--lrs",
    "--batch-size": "--batch-sizes",
    "--max-sentences": "--batch-sizes",
    "--classification-head-name": "--head",
    "--gen-subset": "--subset",
    "--seed": "--seeds",
}


def _describe_own_option(name: str, owned: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return what to do about an option of the command that is given after ``--``, or "" for other options.

    ``name`` may be an abbreviation of an option in ``owned``, or a short option and its value, such as -sen.
    """
    own = name if name in owned else next((own for own in owned if own.startswith(name)), "")
    own = name[:2] if name[:2] in owned else own
    if not own or not name.strip("-"):
        return ""
    for option in (own, _OUR_NAMES.get(own)):
        if option in parser._option_string_actions:
            return f"{name} after --: give {option} before --"
    return f"{name} after --: {parser.prog} sets this option. Remove it"


def console_script(
    program: str,
    build_parser: Callable[[], argparse.ArgumentParser],
    work: Callable[..., Any],
    path_argument: str = "",
    passes_on: Optional[Sequence[str]] = None,
    hides_log: bool = False,
    takes_words: bool = False,
) -> Callable[..., int]:
    """Build the entry point ``main`` of a command, which parses the command line and calls ``work``.

    Args:
        program: name of the command.
        build_parser: function that builds the command-line parser.
        work: function called with the parsed arguments. It raises InputError for invalid input.
        path_argument: name of a parsed option that holds a path, which the error message names if a disk is
            full.
        passes_on: names of options that the user must not give after ``--``. With a list, even an empty one,
            the command accepts options of a fairseq command after ``--`` and passes them to ``work`` as a
            second argument. With None, ``--`` is not accepted.
        hides_log: hide fairseq's log messages and warnings.
        takes_words: call ``work`` with the unparsed command-line arguments. The parser then serves ``--help``
            only.

    Returns:
        Function ``main(argv=None)`` that reports user errors in one line, and returns the exit status: 0, or
        1 after an error. Without ``argv``, it reads the arguments of the process.
    """

    def main(argv: Optional[Sequence[str]] = None) -> int:
        _prepare_output()
        words, extra = list(sys.argv[1:] if argv is None else argv), []
        if takes_words:
            if words[:1] in (["-h"], ["--help"]):
                build_parser().parse_args(["--help"])
            return run_and_report(program, lambda: work(words))
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
                fault = _describe_own_option(name, passes_on or (), parser)
                if fault:
                    raise InputError(fault)
            return work(args) if passes_on is None else work(args, extra)

        with hide_progress(args.quiet):
            return run_and_report(
                program, check_and_work, getattr(args, path_argument) if path_argument else None
            )

    return main
