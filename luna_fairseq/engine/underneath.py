"""Which Python, fairseq, torch and numpy are underneath."""

import importlib
import importlib.util
import re
import sys
from typing import Tuple

from luna_fairseq.errors import InputError, MissingRequirementError


def require_fairseq() -> None:
    """Raise an error that names the engine for this Python when there is no fairseq, or one that is too old.

    Raises:
        MissingRequirementError: there is none.
        InputError: it is older than 0.12.
    """
    engine = "fairseq-fixed==0.12.3.1" if sys.version_info >= (3, 11) else "fairseq==0.12.2"
    if importlib.util.find_spec("fairseq") is None:
        raise MissingRequirementError(
            f"luna_fairseq works inside fairseq, which this Python does not have: pip install {engine}"
        )
    # A fork may call itself anything.
    if () < _numbers(version("fairseq")) < (0, 12):
        found = version("fairseq")
        raise InputError(
            f"luna_fairseq works with fairseq 0.12 or later, this is {found}: pip install {engine}"
        )


def version(package: str) -> str:
    """What ``package`` says of itself, imported if need be."""
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def at_least(package: str, *wanted: int) -> bool:
    """Whether ``package`` has at least the version of these numbers."""
    return _numbers(version(package)) >= wanted


def _numbers(text: str) -> Tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
