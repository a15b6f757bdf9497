"""Checks for regular files, and for files that operating systems and editors create beside data."""

from __future__ import annotations

import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List

from luna_fairseq.errors import InputError
from luna_fairseq.progress import say

# Names of files that macOS, Windows and editors create beside data.
_OTHER_FILES = re.compile(
    r"\._.*|__MACOSX|\.DS_Store|Thumbs\.db|desktop\.ini|.*~|#.*#|\.#.*|\..*\.sw[a-p]", re.IGNORECASE
)


def is_data(name: str) -> bool:
    """Return True unless a file, such as ``.DS_Store``, was created by an operating system or an editor.

    Example:
        >>> is_data("train/1.txt"), is_data("__MACOSX/1.txt")
        (True, False)
    """
    return not any(_OTHER_FILES.fullmatch(part) for part in name.split("/"))


@contextmanager
def count_other_files(location: str) -> Iterator[Callable[[str], bool]]:
    """Context manager that yields :func:`is_data`, and at exit prints the number of files it rejected."""
    skipped: List[str] = []

    def is_data_counted(name: str) -> bool:
        if not is_data(name):
            skipped.append(name)
        return is_data(name)

    yield is_data_counted
    if skipped:
        say(f"{location}: skipped {len(skipped)} files that are not data, such as {skipped[0]}")


def require_regular_file(path: Path) -> Path:
    """Return ``path`` if it is a regular file. Raise InputError if it is missing, a folder or a pipe."""
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
    raise InputError(
        f"{path} is a pipe or a device, which can be read only once. Write its content to a file."
    )
