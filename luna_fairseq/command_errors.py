"""Handling of errors in commands: one line for an error of the user, a traceback for every other error."""

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.requirements import install_advice

_OURS = ("luna_fairseq", "fairseq", "fairseq_cli")


def one_line_for(error: BaseException) -> Optional[str]:
    """Return the line that reports an error of the user; None for any other error.

    Errors of the user are an InputError, an exception that was caused by one, an OSError with a path, and a
    missing package. Every other exception keeps its traceback.

    Args:
        error: exception that ends the command.
    """
    cause: Optional[BaseException] = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}"
    # An ImportError without a name was raised by hand. The others are failed imports, which are defects
    # unless a foreign package is missing.
    is_absent = isinstance(error, ModuleNotFoundError) and str(error.name).split(".")[0] not in _OURS
    if isinstance(error, ImportError) and (is_absent or error.name is None):
        advice = install_advice(error.name)
        return f"this needs {advice}" if advice else " ".join(str(error).split())
    return None


def in_one_line(before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``sys.excepthook`` that prints one line for an error of the user.

    Python exits with status 1 after the hook.

    Args:
        before: previous hook, which is called for any other exception.
    """

    def report(kind: Any, error: Any, trace: Any) -> None:
        line = one_line_for(error) if isinstance(error, Exception) else None
        if line is None:
            return before(kind, error, trace)
        print(f"luna_fairseq: error: {line}", file=sys.stderr)

    return report


@contextlib.contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Context manager that exits silently with status 1 if the reader of standard output has gone.

    ``head``, for example, ends early. Without this context, Python would print a traceback for the
    BrokenPipeError.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again when it exits, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def in_command(spawned: bool = False) -> bool:
    """Return True if this process runs a command of fairseq or of this package, not a program of the user.

    A program of the user keeps its tracebacks, because they lead to the wrong call.

    Args:
        spawned: also return True for a process that a command has spawned (default: False).
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
