"""Versions of the installed packages."""

import importlib

from luna_fairseq.requirements import version_numbers


def installed_version(package: str) -> str:
    """Return the ``__version__`` of a package, or "unknown". The package is imported if needed."""
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def is_at_least(package: str, *numbers: int) -> bool:
    """Return True if the installed version is not older than ``numbers``, such as 2, 6 for 2.6.

    Args:
        package: name of the package
        numbers: parts of the version to compare with
    """
    return version_numbers(installed_version(package)) >= numbers
