"""Files that appear whole or not at all."""

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Callable, Iterator, List, Sequence

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


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """The same for a folder that is empty, or not there: an empty one beside it, renamed or removed."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(str(temporary), ignore_errors=True)  # of a process that was killed
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.is_dir():
            folder.rmdir()
        os.replace(str(temporary), str(folder))
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


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


def write_text(path: Path, text: str) -> None:
    """Write ``text``, as UTF-8 with its line ends as they are."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's content."""
    with replacing(target) as temporary:
        shutil.copyfile(str(source), str(temporary))


@contextmanager
def replacing_lines(paths: Sequence[Path]) -> Iterator[List[IO[str]]]:
    """Text files to write lines to, which replace ``paths`` when all went well."""
    with ExitStack() as stack:
        temporary = [stack.enter_context(replacing(path)) for path in paths]
        yield [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in temporary]


def check_writable(path: Path, option: str) -> None:
    """Raise InputError unless a file can be written there: before anything is measured, not after."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(
            f"cannot write {path}: give {option} a file name in a folder that exists and is writable"
        )
