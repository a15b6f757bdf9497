"""Versions of the installed packages."""

import importlib

from luna_fairseq.requirements import version_numbers


def installed_version(package: str) -> str:
    """Import an installed package, and return its version."""
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def is_at_least(package: str, *numbers: int) -> bool:
    """Return True if an installed package has at least the given version.

    ``is_at_least("torch", 2, 6)`` is True for torch 2.6 and newer.
    """
    return version_numbers(installed_version(package)) >= numbers
