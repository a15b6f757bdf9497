"""Error handling of commands: one line for a user error, a traceback for any other error."""

import contextlib
import errno
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.requirements import install_advice

_OURS = ("luna_fairseq", "fairseq", "fairseq_cli")


def describe_user_error(error: BaseException) -> Optional[str]:
    """Return the message of an error that the user can fix, or None for other errors.

    Errors that the user can fix are an InputError, an exception raised from an InputError or while one was
    handled, an OSError with a file name, a full disk, and a missing package.
    """
    cause: Optional[BaseException] = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and (error.filename is not None or is_full_disk(error)):
        return describe_os_error(error)
    # An ImportError without a name was raised by hand. The others are failed imports, which are defects
    # unless a foreign package is missing.
    is_absent = isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] not in _OURS
    if isinstance(error, ImportError) and (is_absent or error.name is None):
        advice = install_advice(error.name)
        return f"this needs {advice}" if advice else " ".join(str(error).split())
    return None


def is_full_disk(error: OSError) -> bool:
    """Return True if a disk or a quota is full. numpy's error has no errno, and is recognized by its text."""
    is_short = re.search(r"\d+ requested and \d+ written", str(error)) is not None
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno is None and is_short)


def describe_os_error(error: OSError, location: Optional[Path] = None) -> str:
    """Format an OSError as "FILE: REASON". ``location`` is used if the error names no file."""
    where = error.filename or location
    reason = os.strerror(errno.ENOSPC) if is_full_disk(error) else error.strerror or str(error)
    return f"{where}: {reason}" if where else reason


def make_excepthook(before: Callable[..., Any]) -> Callable[..., Any]:
    """Create a ``sys.excepthook`` that prints user errors as one line and passes others to ``before``."""

    def report(kind: Any, error: Any, trace: Any) -> None:
        line = describe_user_error(error) if isinstance(error, Exception) else None
        if line is None:
            return before(kind, error, trace)
        print(f"luna_fairseq: error: {line}", file=sys.stderr)

    return report


@contextlib.contextmanager
def exit_if_unread() -> Iterator[None]:
    """Context manager that exits silently with status 1 if standard output is closed by its reader.

    This happens, for example, when the output of a command is piped into ``head``.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again when it exits, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def is_command(spawned: bool = False) -> bool:
    """Return True if this process runs a command of fairseq or of this package, not a user's own program.

    Processes that a command has spawned count only with ``spawned``.
    """
    if multiprocessing.parent_process() is not None and not spawned:
        return False
    code = getattr(getattr(sys.modules.get("__main__"), "cli_main", None), "__code__", None)
    program = Path(sys.argv[0] if sys.argv else "").absolute()
    # sys.argv[0] is "-m" while "python -m" imports the package of the module.
    ours = (
        program.name.startswith("luna-") or program.name == "-m" or Path(__file__).parent in program.parents
    )
    return ours or (code is not None and Path(code.co_filename).parent.name == "fairseq_cli")
