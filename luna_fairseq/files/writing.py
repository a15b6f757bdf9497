"""Files that appear whole or not at all."""

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Iterator, List, Sequence

from luna_fairseq.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``; what is written there is renamed when all went well, or removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """An empty ``folder``, of which nothing is left at the end, nor of a process that was killed. The folder
    around it has to be there: one that vanished is not to be made anew without what was in it."""
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """As :func:`replacing`, of a folder that is empty, or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.with_name(folder.name + ".tmp")) as temporary:
        yield temporary
        if folder.is_dir():
            folder.rmdir()
        os.replace(str(temporary), str(folder))


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
    for wrong, why in (
        (path.is_dir(), f"{path} is a folder"),
        (not folder.is_dir(), f"{folder} does not exist"),
        (not os.access(folder, os.W_OK), f"{folder} is not writable"),
    ):
        if wrong:
            good = f"give {option} a file name in a folder that exists and is writable"
            raise InputError(f"cannot write {path}: {good} ({why})")
