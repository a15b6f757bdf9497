"""What a user did wrong, said in one line."""

import sys
from types import TracebackType
from typing import Optional, Type


class InputError(ValueError):
    """Bad input: an option value, a file or a checkpoint. The message says what is wrong and what to do."""


class MissingRequirementError(InputError, ImportError):
    """A package that the user must install first."""


def find_input_error(error: Optional[BaseException]) -> Optional[InputError]:
    """The InputError behind ``error``, which fairseq may have caught and raised again as something vaguer."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def report_in_one_line() -> None:
    """Have the interpreter print an InputError that ends one of fairseq's commands as one line, without a traceback.

    In a program of one's own the traceback stays, because it leads to the call that was wrong; a missing requirement
    is one line everywhere. Calling this again changes nothing.
    """
    previous = sys.excepthook
    if hasattr(previous, "reports_in_one_line"):
        return

    def excepthook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        found = find_input_error(error)
        in_command = "fairseq_cli" in sys.modules
        if found is not None and (in_command or isinstance(found, MissingRequirementError)):
            print(f"luna_fairseq: error: {found}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    excepthook.reports_in_one_line = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook
