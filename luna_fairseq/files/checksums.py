"""Checksums: of files, of prepared data, and of the input of a step.

Prepared data has a list of checksums beside it, which ``sha256sum --check`` reads, too.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text

CHECKSUMS = "checksums.sha256"
PIECE = 1 << 20
CONTENT = "sha256:"  # beginning of checksums that stand in place of content
_DATA = (".bin", ".idx", ".npy", ".src", ".label", ".txt")


def write_checksums(folder: Path, names: Iterable[str]) -> str:
    """Write the list of checksums of files in ``folder``, and return its name.

    names: names of the files, relative to the folder.
    """
    lines = [f"{sha256(folder / name)}  {name}\n" for name in sorted(set(names))]
    write_text(folder / CHECKSUMS, "".join(lines))
    return CHECKSUMS


def forget_checksums(folder: Path) -> None:
    """Remove the list of checksums of ``folder``, before its files change."""
    (folder / CHECKSUMS).unlink(missing_ok=True)


def check_files(path: Path) -> None:
    """Compare the checksums of a data set with the list in its folder, if the folder has one.

    Args:
        path: a file of the data set, or the beginning of its files' names (``train.en-de.en``). All files of
            the same split are checked, those of the other side and labels too, and the dictionaries.

    Raises:
        InputError: a file has changed or is missing.
    """
    path = path.absolute()
    for folder in list(path.parents)[:2]:  # a slice of them came with Python 3.10
        known = listed(folder)
        own = path.relative_to(folder).as_posix()
        if any(name == own or name == f"{own}.bin" for name in known):
            beginnings = (path.name.split(".")[0], "dict")
            for name, expected in known.items():
                if name.rsplit("/", 1)[-1].split(".")[0] in beginnings:
                    _check(folder, name, expected)


def listed(folder: Path) -> Dict[str, str]:
    """Return relative name -> checksum of the folder's list, or {} if it has none.

    Raises:
        InputError: the list is damaged.
    """
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
    """Compute the checksum once for each version of a file, which size, time and inode tell."""
    return sha256(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    with path.open("rb") as file:
        return checksum("sha256", file)


def checksum(algorithm: str, file: Any) -> str:
    """Return the checksum of an open file's content in hexadecimal digits."""
    state = hashlib.new(algorithm)
    for piece in iter(lambda: file.read(PIECE), b""):
        state.update(piece)
    return state.hexdigest()


def digest(*values: Any) -> str:
    """Return the SHA-256 of values that JSON can hold: the key of a step (``finished_steps``)."""
    return hashlib.sha256(json.dumps(values).encode("utf-8")).hexdigest()


def stamps(paths: Iterable[Path]) -> List[List[Any]]:
    """Return name, size and time of change of files, which stand for their content in a key."""
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def content_of(folders: Sequence[Path], splits: Sequence[str] = ("train",)) -> str:
    """Return one checksum of prepared data: the text, labels and dictionaries in the folders.

    Subfolders count. A file that the folder's list of checksums names is not read again.

    Args:
        folders: folders of prepared data.
        splits: names of the splits (default: the training data).
    """
    beginnings = tuple(f"{split}." for split in (*splits, "dict"))
    state = hashlib.sha256()
    for folder in folders:
        known = listed(folder)
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
            if path.name.startswith(beginnings) and path.suffix in _DATA:
                name = path.relative_to(folder).as_posix()
                state.update(f"{known.get(name) or sha256(path)}  {name}\n".encode())
    return CONTENT + state.hexdigest()
