"""Versions of the installed packages."""

import importlib

from luna_fairseq.requirements import version_numbers


def installed_version(package: str) -> str:
    """Import a package, and return its ``__version__`` or "unknown".

    Args:
        package: name of the package.

    Returns:
        Version of the package.
    """
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def is_at_least(package: str, *numbers: int) -> bool:
    """Return True if the installed version of a package is at least a given version.

    Args:
        package: name of the package.
        numbers: parts of the given version, such as 2, 6 for version 2.6.
    """
    return version_numbers(installed_version(package)) >= numbers
