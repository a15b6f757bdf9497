"""Logging: level of the root logger, and warnings that appear once."""

import logging
from functools import lru_cache


def set_up_loggers() -> None:
    """Set the level of the root logger to WARNING, before fairseq sets it to DEBUG."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)


@lru_cache(maxsize=None)
def warn_once(text: str) -> None:
    """Log a warning. Repeated calls with the same text have no effect."""
    logging.getLogger("luna_fairseq").warning(text)
