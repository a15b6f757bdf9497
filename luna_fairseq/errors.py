"""What a user did wrong, said in one line."""

import sys
from types import TracebackType
from typing import Optional, Type


class InputError(ValueError):
    """Bad input: an option value, a file or a checkpoint. The message says what is wrong and what to do."""


def find_input_error(error: Optional[BaseException]) -> Optional[InputError]:
    """The InputError behind ``error``, which fairseq may have caught and raised again as something vaguer."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def report_in_one_line() -> None:
    """Have the interpreter print an InputError that ends the program as one line, without a traceback."""
    previous = sys.excepthook

    def excepthook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        found = find_input_error(error)
        if found is None:
            previous(kind, error, trace)
        else:
            print(f"luna_fairseq: error: {found}", file=sys.stderr)

    sys.excepthook = excepthook
