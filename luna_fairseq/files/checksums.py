"""Checksums of files and of prepared data.

A folder of prepared data has a file ``checksums.sha256`` with the checksums of the other files, in the format
of the command ``sha256sum --check``.
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
CONTENT = "sha256:"  # prefix of checksums that represent content in records
_DATA = (".bin", ".idx", ".npy", ".src", ".label", ".txt")


def write_checksums(folder: Path, names: Iterable[str]) -> str:
    """Write the checksums of files in a folder to ``checksums.sha256``, and return this file name."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in sorted(set(names))]
    write_text(folder / CHECKSUMS, "".join(lines))
    return CHECKSUMS


def remove_checksums(folder: Path) -> None:
    """Delete ``checksums.sha256`` from a folder of prepared data, before its files are rewritten."""
    (folder / CHECKSUMS).unlink(missing_ok=True)


def check_files(path: Path) -> None:
    """Raise InputError if the files of a split, such as train, are missing or have changed.

    ``path`` is the path of the split without file extension. The split's files in all languages, the labels
    and the dictionaries are compared with ``checksums.sha256`` in the folder or its parent, if present.
    """
    path = path.absolute()
    for folder in list(path.parents)[:2]:  # Python 3.8 cannot slice parents
        known = read_checksums(folder)
        own = path.relative_to(folder).as_posix()
        if any(name == own or name == f"{own}.bin" for name in known):
            beginnings = (path.name.split(".")[0], "dict")
            for name, expected in known.items():
                if name.rsplit("/", 1)[-1].split(".")[0] in beginnings:
                    _check(folder, name, expected)


def read_checksums(folder: Path) -> Dict[str, str]:
    """Return the SHA-256 of each file in a folder's ``checksums.sha256``, or {} if there is no such list."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    lines = [line.split("  ", 1) for line in path.read_text("utf-8", errors="replace").splitlines()]
    if not lines or any(len(line) != 2 or len(line[0]) != 64 for line in lines):
        raise InputError(f"{path} is damaged. Prepare the data again, or remove this list of checksums.")
    return {name: expected for expected, name in lines}


def _check(folder: Path, name: str, expected: str) -> None:
    """Raise InputError if a file is missing or its SHA-256 differs from ``expected``."""
    path = folder / name
    if not path.is_file():
        raise InputError(f"{path} is missing, but {folder / CHECKSUMS} lists it. Prepare the data again.")
    about = path.stat()
    if _cached_sha256(path, (about.st_size, about.st_mtime_ns, about.st_ino)) != expected:
        raise InputError(
            f"{path} is damaged or has changed, because its checksum differs from {folder / CHECKSUMS}. "
            "Remove the file and prepare the data again, or remove the list if the change is intended."
        )


@lru_cache(maxsize=None)
def _cached_sha256(path: Path, about: Tuple[int, ...]) -> str:
    """Return the SHA-256 of a file, cached for ``path`` and ``about`` (size, modification time, inode)."""
    return sha256(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 hex digest of a file's content."""
    with path.open("rb") as file:
        return checksum("sha256", file)


def checksum(algorithm: str, file: Any) -> str:
    """Return the hex digest of an open file. ``algorithm`` is a name in hashlib, such as "md5"."""
    state = hashlib.new(algorithm)
    for piece in iter(lambda: file.read(PIECE), b""):
        state.update(piece)
    return state.hexdigest()


def digest(*values: Any) -> str:
    """Return the SHA-256 hex digest of JSON-serializable values.

    Example:
        >>> digest("train", 1)[:8]
        '43f29ec2'
    """
    return hashlib.sha256(json.dumps(values).encode("utf-8")).hexdigest()


def file_stamps(paths: Iterable[Path]) -> List[List[Any]]:
    """Return [path, size, modification time] for each file, to detect changes without reading the files."""
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


def checksum_of_data(folders: Sequence[Path], splits: Sequence[str] = ("train",)) -> str:
    """Compute one checksum of the given splits, their labels and the dictionaries in folders of data.

    Files in subfolders are included. Checksums listed in ``checksums.sha256`` are not computed again.
    """
    beginnings = tuple(f"{split}." for split in (*splits, "dict"))
    state = hashlib.sha256()
    for folder in folders:
        known = read_checksums(folder)
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
            if path.name.startswith(beginnings) and path.suffix in _DATA:
                name = path.relative_to(folder).as_posix()
                state.update(f"{known.get(name) or sha256(path)}  {name}\n".encode())
    return CONTENT + state.hexdigest()
