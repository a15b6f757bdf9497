"""Exceptions for user errors. Commands print them as one line, without a traceback."""


class InputError(ValueError):
    """Invalid input, such as an option, a file or a checkpoint.

    The message says what is wrong and what to do.
    """


class MissingRequirementError(InputError, ImportError):
    """Error for a package that is needed but not installed. The message says how to install it."""
