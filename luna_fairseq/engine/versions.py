"""Versions of the installed packages."""

import importlib

from luna_fairseq.requirements import version_numbers


def installed_version(package: str) -> str:
    """Return the version of an installed package, which is imported for this purpose.

    Args:
        package: name of the package.

    Returns:
        ``__version__`` of the package, or "unknown".
    """
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def is_at_least(package: str, *numbers: int) -> bool:
    """Return True if an installed package has a minimum version.

    ``is_at_least("torch", 2, 6)`` is True for torch 2.6 and newer.

    Args:
        package: name of the package.
        numbers: parts of the minimum version, most significant first.
    """
    return version_numbers(installed_version(package)) >= numbers
