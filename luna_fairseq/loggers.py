"""Logging: level of the root logger, and warnings that appear once."""

import logging
from functools import lru_cache


def set_up_loggers() -> None:
    """Set the level of the root logger to WARNING. Call this function before fairseq is imported.

    fairseq would set the level to DEBUG. Other packages would then log all their steps, and each start of a
    command would log that a package for speech is missing.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)


@lru_cache(maxsize=None)
def warn_once(text: str) -> None:
    """Log a warning. The same text is logged only once per process."""
    logging.getLogger("luna_fairseq").warning(text)
