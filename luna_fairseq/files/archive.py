"""Readers of .tgz archives that verify the checksum of the whole archive."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Iterator, Mapping, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import data_alone, regular_file
from luna_fairseq.progress import reading

PIECE = 1 << 20
# gzip compresses text and images to a third or a tenth of their size. An archive made to fill the disk
# expands a thousand times.
LARGEST_EXPANSION = 200


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Extract members of a gzipped tar archive and verify the checksum of the archive.

    Args:
        archive: path of the archive.
        members: name in the archive -> path of the file to write.

    Raises:
        InputError: The archive is damaged or incomplete, or lacks a member. Some files may have been written.
    """
    missing = dict(members)
    with whole(archive):
        for name, content in stream(archive):
            target = missing.pop(name, None)
            if target is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if missing:
        raise InputError(f"{archive} has no member {', '.join(sorted(missing))}")


def stream(archive: Path) -> Iterator[Tuple[str, IO[bytes]]]:
    """Read the files of an archive in their order, and verify the checksum at the end.

    Files that operating systems and editors leave beside data are skipped, and their number is printed. Use
    this function within :func:`whole`, which reports a damaged archive.

    Args:
        archive: path of the archive.

    Yields:
        Name and open content of each file. A content can be read until the next one is requested.

    Raises:
        InputError: The archive expands to much more data than published archives do.
    """
    with ExitStack() as stack:
        file = stack.enter_context(regular_file(archive).open("rb"))
        watched = stack.enter_context(reading(file, f"read {archive.name}", archive.stat().st_size))
        compressed: Any = _Bounded(
            stack.enter_context(gzip.open(watched, "rb")), archive, LARGEST_EXPANSION * archive.stat().st_size
        )
        with tarfile.open(fileobj=compressed, mode="r|") as tar:
            with data_alone(str(archive)) as is_data:
                for entry in tar:
                    content = tar.extractfile(entry)
                    if content is not None and is_data(entry.name):
                        yield PurePosixPath(entry.name).as_posix(), content  # without ./
        while compressed.read(PIECE):  # reads the end of the archive, so that gzip verifies the checksum
            pass


class _Bounded:
    """Reader that raises InputError after a maximum number of bytes.

    Args:
        file: file to read.
        archive: path of the archive, for the message.
        most: maximum number of bytes.
    """

    def __init__(self, file: IO[bytes], archive: Path, most: int) -> None:
        self.file, self.archive, self.left = file, archive, most + PIECE

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes, or all bytes if ``size`` is negative."""
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise InputError(
                f"{self.archive} expands to more than {LARGEST_EXPANSION} times its size, unlike any "
                "archive of the published data. Download the archive again."
            )
        return content


@contextmanager
def whole(archive: Path) -> Iterator[None]:
    """Context manager that turns the errors of a damaged or incomplete archive into InputError.

    Args:
        archive: path of the archive that the block reads.

    Raises:
        InputError: The archive is damaged or incomplete.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise InputError(
            f"{archive} is damaged or incomplete ({error}): remove it, and start again to download it again"
        ) from error
