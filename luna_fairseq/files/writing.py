"""Files that appear whole or not at all."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from luna_fairseq.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``, and rename what was written there when all went well, or remove
    it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.exists():
            temporary.unlink()


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Have ``write`` write under the temporary name of :func:`replacing`.

    Raises:
        InputError: the file cannot be written
    """
    try:
        with replacing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def check_writable(path: Path, option: str) -> None:
    """Raise InputError unless a file can be written there: before anything is measured, not after."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(
            f"cannot write {path}: give {option} a file name in a folder that exists and is writable"
        )
