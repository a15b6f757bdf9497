"""Functions that write files and folders atomically: the result appears complete or not at all.

An existing file keeps its old content until the new file is complete.
"""

import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Iterable, Iterator, List, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.sole_writer import lock_folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, and renames it to ``path`` on success.

    Missing parent folders are created. After an exception, ``path`` is unchanged. A symbolic link stays, and
    its target is replaced. Raises InputError if ``path`` is a pipe or a device.

    Example:
        >>> with replacing(Path("report.txt")) as temporary:  # doctest: +SKIP
        ...     temporary.write_text("done")
    """
    _refuse_device(path)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Context manager that creates an empty folder, and removes it with its content at the end.

    An existing folder is emptied first, because a killed process may have left it. The parent folder must
    already exist.
    """
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(str(path))
        else:
            path.unlink()
    try:
        yield folder
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Context manager that yields an empty temporary folder to fill, and renames it to ``folder`` on success.

    ``folder`` must be empty or absent. A symbolic link stays, and its target is replaced. After an exception,
    the temporary folder is removed. Raises InputError if ``folder`` cannot be replaced, or if another process
    is writing the same folder.
    """
    check_replaceable(folder)
    folder = Path(os.path.realpath(folder))
    temporary = folder.with_name(folder.name + ".tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    lock_folder(temporary)
    with scratch_folder(temporary):
        yield temporary
        if folder.is_dir():
            folder.rmdir()
        os.replace(str(temporary), str(folder))


def write_text(path: Path, text: str) -> None:
    """Write text to a file in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file atomically, without its permissions and timestamps."""
    with replacing(target) as temporary:
        shutil.copyfile(str(source), str(temporary))


@contextmanager
def replacing_lines(paths: Sequence[Path]) -> Iterator[List[IO[str]]]:
    """Context manager that yields open temporary text files, and renames them to ``paths`` on success."""
    with ExitStack() as stack:
        temporary = [stack.enter_context(replacing(path)) for path in paths]
        yield [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in temporary]


def check_separate(path: Path, option: str, others: Iterable[Path]) -> None:
    """Raise InputError if a file to write is a pipe, a device, or one of the command's ``others``.

    These are files that the command reads, or writes for another option. The error message names ``option``,
    the command-line option that sets ``path``, such as "--output".
    """
    _refuse_device(path)
    if path.resolve() in [one.resolve() for one in others]:
        raise InputError(
            f"{option} {path} is a file that the command reads or writes for another option. "
            "Use another name."
        )


def check_writable(path: Path, option: str) -> None:
    """Raise InputError if a file cannot be written. Call this function before a long computation.

    The error message names ``option``, the command-line option that sets ``path``, such as "--out".
    """
    _refuse_device(path)
    folder = path.resolve().parent
    for is_wrong, reason in (
        (path.is_dir(), f"{path} is a folder"),
        (not folder.is_dir(), f"{folder} does not exist"),
        (not os.access(folder, os.W_OK), f"{folder} is not writable"),
    ):
        if is_wrong:
            advice = f"Use {option} with a file in a folder that exists and is writable."
            raise InputError(f"cannot write {path}: {reason}. {advice}")


def check_replaceable(folder: Path) -> None:
    """Raise InputError if :func:`replacing_folder` cannot create or replace a folder.

    Call this function before a long computation.
    """
    path = Path(os.path.realpath(folder))
    parent = next((parent for parent in path.parents if parent.exists()), path)
    for is_wrong, reason in (
        (os.path.ismount(path), "it is a mount point"),
        (path.is_dir() and path.samefile("."), "it is the working directory"),
        (not os.access(parent, os.W_OK), f"{parent} is not writable"),
    ):
        if is_wrong:
            raise InputError(
                f"cannot replace the folder {folder}: {reason}. Give a new folder in a writable place."
            )


def _refuse_device(path: Path) -> None:
    """Raise InputError if a file to write is a pipe or a device, which a regular file would replace."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"cannot write {path}: it is a pipe or a device. Give the name of a file.")
