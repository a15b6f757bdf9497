"""Checks for regular files, and for file names that operating systems and editors leave behind."""

from __future__ import annotations

import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List

from luna_fairseq.errors import InputError
from luna_fairseq.progress import say

# Names of files that macOS, Windows and editors create beside data.
_NO_DATA = re.compile(
    r"\._.*|__MACOSX|\.DS_Store|Thumbs\.db|desktop\.ini|.*~|#.*#|\.#.*|\..*\.sw[a-p]", re.IGNORECASE
)


def is_data(name: str) -> bool:
    """Return True unless a part of a path is a name that operating systems or editors create.

    Args:
        name: path in an archive or a folder, with "/" between its parts.

    Example:
        >>> is_data("train/1.txt"), is_data("__MACOSX/1.txt")
        (True, False)
    """
    return not any(_NO_DATA.fullmatch(part) for part in name.split("/"))


@contextmanager
def data_alone(place: str) -> Iterator[Callable[[str], bool]]:
    """Context manager with a version of :func:`is_data` that counts, and prints the count at the end.

    Args:
        place: name of the archive or folder, for the message.

    Yields:
        Function from a name to True for data and False for any other file.
    """
    skipped: List[str] = []

    def is_counted_data(name: str) -> bool:
        if not is_data(name):
            skipped.append(name)
        return is_data(name)

    yield is_counted_data
    if skipped:
        say(f"{place}: {len(skipped)} files that are no data left out, as {skipped[0]}")


def regular_file(path: Path) -> Path:
    """Return a path after checking that it is a regular file, which can be read more than once.

    Args:
        path: path of the file.

    Raises:
        InputError: The path does not exist, is not accessible, or is a folder, a pipe or a device.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISDIR(mode):
        raise InputError(f"cannot read {path}: Is a directory")
    raise InputError(f"{path} is a pipe or a device, and is read more than once: write it to a file first")
