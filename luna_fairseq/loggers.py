"""What commands of this package log: warnings, as one line each."""

import logging


def set_up_loggers() -> None:
    """Set the root logger, before fairseq is imported.

    Otherwise fairseq leaves it at DEBUG, so that other packages say what they do, and tells on every import
    which package for speech is missing.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
