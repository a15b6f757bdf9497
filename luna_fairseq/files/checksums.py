"""Checksums of prepared data, in a file beside it that ``sha256sum --check`` reads, too."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text

CHECKSUMS = "checksums.sha256"
PIECE = 1 << 20


def write_checksums(folder: Path, names: Iterable[str]) -> str:
    """Write those of files in ``folder`` (relative names); the name of the list."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in sorted(set(names))]
    write_text(folder / CHECKSUMS, "".join(lines))
    return CHECKSUMS


def forget_checksums(folder: Path) -> None:
    """Before the files change."""
    (folder / CHECKSUMS).unlink(missing_ok=True)


def check_files(path: Path) -> None:
    """Check ``path``, and what belongs to it, if the folder of the data says what they were when they were
    made.

    Args:
        path: a file, or what the names of a data set's files begin with (``train.en-de.en``). All files of
            the same split are looked at: those of the other side, and labels.

    Raises:
        InputError: a file is another one, or missing.
    """
    path = path.absolute()
    for folder in list(path.parents)[:2]:  # a slice of them came with Python 3.10
        known = listed(folder)
        own = path.relative_to(folder).as_posix()
        if any(name == own or name == f"{own}.bin" for name in known):
            split = path.name.split(".")[0]
            for name, expected in known.items():
                if name.rsplit("/", 1)[-1].split(".")[0] == split:
                    _check(folder, name, expected)


def listed(folder: Path) -> Dict[str, str]:
    """Relative name -> checksum, of the files that the folder's list names; nothing where it has none. Raises
    InputError where the list is damaged."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    lines = [line.split("  ", 1) for line in path.read_text("utf-8", errors="replace").splitlines()]
    if not lines or any(len(line) != 2 or len(line[0]) != 64 for line in lines):
        raise InputError(f"{path} is damaged: prepare the data again in another folder, or remove it")
    return {name: expected for expected, name in lines}


def _check(folder: Path, name: str, expected: str) -> None:
    path = folder / name
    if not path.is_file():
        raise InputError(f"{path} is missing, which {folder / CHECKSUMS} lists: prepare the data again")
    about = path.stat()
    if _sha256_at(path, (about.st_size, about.st_mtime_ns, about.st_ino)) != expected:
        raise InputError(
            f"{path} is damaged, or was changed: its checksum is not the one in {folder / CHECKSUMS}. Remove "
            "it and prepare the data again, or remove the list if the change was meant"
        )


@lru_cache(maxsize=None)
def _sha256_at(path: Path, about: Tuple[int, ...]) -> str:
    """Once for each version of a file."""
    return sha256(path)


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return checksum("sha256", file)


def checksum(algorithm: str, file: Any) -> str:
    """That of what can be read from ``file``, in hexadecimal digits."""
    state = hashlib.new(algorithm)
    for piece in iter(lambda: file.read(PIECE), b""):
        state.update(piece)
    return state.hexdigest()
