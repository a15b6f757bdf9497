"""Errors of the user, which end a command with one line in place of a traceback."""


class InputError(ValueError):
    """Bad input, such as an option, a file or a checkpoint. The message says what is wrong and what to do."""


class MissingRequirementError(InputError, ImportError):
    """An optional package is needed but not installed."""
