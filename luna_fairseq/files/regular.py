"""Files that can be read more than once, and names that are no data."""

from __future__ import annotations

import re
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List

from luna_fairseq.errors import InputError
from luna_fairseq.progress import say

# What macOS, Windows and editors leave beside files.
_NO_DATA = re.compile(
    r"\._.*|__MACOSX|\.DS_Store|Thumbs\.db|desktop\.ini|.*~|#.*#|\.#.*|\..*\.sw[a-p]", re.IGNORECASE
)


def is_data(name: str) -> bool:
    """Whether a path in an archive or a folder may be data: no part of it is what systems and editors
    leave."""
    return not any(_NO_DATA.fullmatch(part) for part in name.split("/"))


@contextmanager
def data_alone(place: str) -> Iterator[Callable[[str], bool]]:
    """Gives :func:`is_data`, and says at the end how many of the names in ``place``, an archive or a folder,
    that it was asked for are no data."""
    left_out: List[str] = []

    def kept(name: str) -> bool:
        if not is_data(name):
            left_out.append(name)
        return is_data(name)

    yield kept
    if left_out:
        say(f"{place}: {len(left_out)} files that are no data left out, as {left_out[0]}")


def regular_file(path: Path) -> Path:
    """``path``, which is a file that can be read again, as no pipe can. Raises InputError where it does not
    exist, cannot be looked at, or is a folder, a pipe or a device."""
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
