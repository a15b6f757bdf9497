"""What this package logs, and its commands show: warnings, as one line each."""

import logging
from functools import lru_cache


def set_up_loggers() -> None:
    """Set the root logger, before fairseq is imported.

    Otherwise fairseq leaves it at DEBUG, so that other packages say what they do, and tells on every import
    which package for speech is missing.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)


@lru_cache(maxsize=None)
def warn_once(text: str) -> None:
    """Log a warning, the first time that it is given."""
    logging.getLogger("luna_fairseq").warning(text)
