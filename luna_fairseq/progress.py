"""Progress of long work: a bar on a terminal, nothing in a log file, and nothing with --quiet."""

import sys
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Optional, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
_quiet = False


@contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """No bars within the context. ``quiet`` False changes nothing: what is around may be quiet already."""
    global _quiet
    before = _quiet
    _quiet = _quiet or quiet
    try:
        yield
    finally:
        _quiet = before


def is_shown() -> bool:
    """Whether somebody looks."""
    return not _quiet and sys.stderr.isatty()


def progress(
    items: Iterable[Item], description: str, unit: str = "lines", total: Optional[int] = None
) -> Iterator[Item]:
    """The items, counted as they are drawn.

    Args:
        items: anything.
        description: what is done.
        unit: what the items are.
        total: how many there are (default: their length, if they have one).
    """
    return iter(counter(description, total, unit, items))


def counter(
    description: str, total: Optional[int] = None, unit: str = "lines", items: Optional[Iterable] = None
) -> Any:
    """A bar of tqdm that is told how far the work is, by ``update``; to be closed, or used as a context."""
    return tqdm(
        items, description, total, unit=f" {unit}", mininterval=0.5, leave=False, disable=not is_shown()
    )


def reading(file: Any, description: str, size: Optional[int], start: int = 0) -> Any:
    """A context with ``file``, whose reading is counted.

    Args:
        file: what has a method ``read``.
        description: what is read.
        size: bytes in all, None where that is not known.
        start: bytes that were read before.
    """
    shown: Any = {"initial": start, "leave": False, "mininterval": 0.5, "disable": not is_shown()}
    return tqdm.wrapattr(file, "read", total=size, desc=description, **shown)


def say(line: str) -> None:
    """Print a line, above the bars if there are some."""
    tqdm.write(line)
    sys.stdout.flush()
