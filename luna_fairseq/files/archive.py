"""Functions that read ``.tgz`` archives and verify their checksum."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Iterator, Mapping, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import count_other_files, require_regular_file
from luna_fairseq.progress import read_with_progress

PIECE = 1 << 20
# gzip shrinks text and images by a factor of three to ten. An archive that was made to fill the disk expands
# by a factor of a thousand.
LARGEST_EXPANSION = 200


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Extract selected files of a ``.tgz`` archive, and verify the checksum of the archive.

    ``members`` maps paths within the archive to target paths. Raises InputError if a member is missing.
    """
    missing = dict(members)
    with reporting_damage(archive):
        for name, content in read_members(archive):
            target = missing.pop(name, None)
            if target is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if missing:
        raise InputError(f"{archive} has no member {', '.join(sorted(missing))}. Download the archive again.")


def read_members(archive: Path) -> Iterator[Tuple[str, IO[bytes]]]:
    """Yield (path, open file) for each file in an archive, and verify the archive's checksum at the end.

    Files of the system or an editor, such as ``.DS_Store``, are skipped, and their number is printed. Call
    this function within :func:`reporting_damage`, which converts errors of a damaged archive to InputError.
    """
    with ExitStack() as stack:
        file = stack.enter_context(require_regular_file(archive).open("rb"))
        size = archive.stat().st_size
        shown = stack.enter_context(read_with_progress(file, f"read {archive.name}", size))
        expanded = stack.enter_context(gzip.open(shown, "rb"))
        limited: Any = _LimitedReader(expanded, archive, LARGEST_EXPANSION * size)
        with tarfile.open(fileobj=limited, mode="r|") as tar:
            with count_other_files(str(archive)) as is_data:
                for entry in tar:
                    content = tar.extractfile(entry)
                    if content is not None and is_data(entry.name):
                        yield PurePosixPath(entry.name).as_posix(), content  # without ./
        while limited.read(PIECE):  # gzip verifies the checksum when it reaches the end
            pass


class _LimitedReader:
    """File wrapper that raises InputError after reading a maximum number of bytes.

    The limit guards against archives made to expand until the disk is full.

    Args:
        file: file to read.
        archive: path to the archive, for the error message.
        most: maximum number of bytes.
    """

    def __init__(self, file: IO[bytes], archive: Path, most: int) -> None:
        self.file, self.archive, self.left = file, archive, most + PIECE

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, or all for -1. Raise InputError if the reader's limit is exceeded."""
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise InputError(
                f"{self.archive} expands to more than {LARGEST_EXPANSION} times its size, unlike any "
                "archive of the published data. Download the archive again."
            )
        return content


@contextmanager
def reporting_damage(archive: Path) -> Iterator[None]:
    """Context manager that converts errors caused by a damaged or incomplete archive to InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise InputError(
            f"{archive} is damaged or incomplete ({error}). Remove the archive and repeat the command, which "
            "downloads the archive again."
        ) from error
