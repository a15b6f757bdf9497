"""Which fairseq, torch and numpy are underneath."""

import importlib

from luna_fairseq.requirements import version_numbers


def version(package: str) -> str:
    """Return the version that ``package`` states, importing it if needed."""
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def at_least(package: str, *wanted: int) -> bool:
    """Return True if ``package`` has at least the version of these numbers."""
    return version_numbers(version(package)) >= wanted
