"""What a user did wrong, said in one line."""

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Iterator, Optional


class InputError(ValueError):
    """Bad input: an option value, a file or a checkpoint. The message says what is wrong and what to do."""


class MissingRequirementError(InputError, ImportError):
    """A package that the user must install first."""


def find_input_error(error: Optional[BaseException]) -> Optional[InputError]:
    """The InputError behind ``error``, which fairseq may have caught and raised again as something vaguer."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def _about_a_path(error: Exception) -> Optional[str]:
    """What an OSError says, if it is about a file or folder."""
    if not isinstance(error, OSError) or isinstance(
        error, (ConnectionError, ChildProcessError, TimeoutError)
    ):
        return None
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error) or None


@contextlib.contextmanager
def one_line_in_commands() -> Iterator[None]:
    """Have bad input end a command with one line on stderr and status 1: an InputError, or a path that cannot
    be read or written.

    In a program of one's own the traceback stays, because it leads to the call that was wrong.
    """
    try:
        yield
    except Exception as error:
        found = find_input_error(error) or _about_a_path(error)
        if found is None or not in_command():
            raise
        print(f"luna_fairseq: error: {found}", file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def until_nobody_reads() -> Iterator[None]:
    """End a command in silence, with status 1, when what reads its standard output has gone, as ``head``
    does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still to be written would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def in_command() -> bool:
    """Whether this process runs one of fairseq's commands or of ours, as opposed to a program of one's own.

    A spawned process does not: its parent reports what it ended by.
    """
    if multiprocessing.parent_process() is not None:
        return False
    code = getattr(getattr(sys.modules.get("__main__"), "cli_main", None), "__code__", None)
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    # "-m" is the name of a program while the package of the module that python -m names is being imported.
    ours = (
        program.name.startswith("luna-") or program.name == "-m" or Path(__file__).parent in program.parents
    )
    return ours or (code is not None and Path(code.co_filename).parent.name == "fairseq_cli")
