"""Progress bars, which appear on a terminal unless the command has the option ``--quiet``."""

import sys
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Optional, TypeVar

try:
    from tqdm import tqdm
except ImportError:  # the benchmarks of attention run with torch alone, without bars
    tqdm = None

Item = TypeVar("Item")
_quiet = False


@contextmanager
def hide_progress(quiet: bool = True) -> Iterator[None]:
    """Context manager that hides progress bars, unless ``quiet`` is False."""
    global _quiet
    before = _quiet
    _quiet = _quiet or quiet
    try:
        yield
    finally:
        _quiet = before


def is_shown() -> bool:
    """Return True if standard error is a terminal, and :func:`hide_progress` does not hide progress bars."""
    return not _quiet and sys.stderr.isatty()


def progress(
    items: Iterable[Item], description: str, unit: str = "lines", total: Optional[int] = None
) -> Iterator[Item]:
    """Iterate over items and show a progress bar. ``total`` is the number of items, if it is known."""
    return iter(items) if tqdm is None else iter(progress_bar(description, total, unit, items))


def progress_bar(
    description: str, total: Optional[int] = None, unit: str = "lines", items: Optional[Iterable] = None
) -> Any:
    """Create a tqdm progress bar, which the caller closes or uses as a context manager.

    The caller advances the bar with ``update(n)``, or iterates over the bar if ``items`` are given.
    """
    return tqdm(
        items, description, total, unit=f" {unit}", mininterval=0.5, leave=False, disable=not is_shown()
    )


def read_with_progress(file: Any, description: str, size: Optional[int], start: int = 0) -> Any:
    """Context manager that yields a wrapper of a file whose ``read`` method advances a progress bar.

    ``size`` is the total number of bytes, if it is known, and ``start`` the number of bytes already read.
    """
    shown: Any = {"initial": start, "leave": False, "mininterval": 0.5, "disable": not is_shown()}
    return tqdm.wrapattr(file, "read", total=size, desc=description, **shown)


def say(line: str) -> None:
    """Print a line to standard output, above any progress bars."""
    if tqdm is None:
        print(line)
    else:
        tqdm.write(line)
    sys.stdout.flush()
