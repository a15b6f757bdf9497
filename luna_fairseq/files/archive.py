"""Functions that read .tgz archives and verify the checksum of the archive."""

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
from luna_fairseq.progress import reading

PIECE = 1 << 20
# gzip shrinks text and images by a factor of three to ten. An archive that was made to fill the disk expands
# by a factor of a thousand.
LARGEST_EXPANSION = 200


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Extract members of a gzipped tar archive and verify the checksum of the archive.

    Args:
        archive: path of the archive.
        members: path of the file to write, by the name in the archive.

    Raises:
        InputError: The archive is damaged or incomplete, or lacks a member. Some files may already be
            written.
    """
    missing = dict(members)
    with damage_reported(archive):
        for name, content in stream(archive):
            target = missing.pop(name, None)
            if target is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if missing:
        raise InputError(f"{archive} has no member {', '.join(sorted(missing))}. Download the archive again.")


def stream(archive: Path) -> Iterator[Tuple[str, IO[bytes]]]:
    """Read the files of an archive in their order, and verify the checksum at the end.

    Files that operating systems and editors create beside data are skipped, and their number is printed. Use
    this function within :func:`damage_reported`, so that damage raises InputError.

    Args:
        archive: path of the archive.

    Yields:
        Name and open file of each member. A file can be read until the next member is requested.

    Raises:
        InputError: The archive expands to far more data than a published archive.
    """
    with ExitStack() as stack:
        file = stack.enter_context(require_regular_file(archive).open("rb"))
        with_progress = stack.enter_context(reading(file, f"read {archive.name}", archive.stat().st_size))
        compressed: Any = _Bounded(
            stack.enter_context(gzip.open(with_progress, "rb")),
            archive,
            LARGEST_EXPANSION * archive.stat().st_size,
        )
        with tarfile.open(fileobj=compressed, mode="r|") as tar:
            with count_other_files(str(archive)) as is_data:
                for entry in tar:
                    content = tar.extractfile(entry)
                    if content is not None and is_data(entry.name):
                        yield PurePosixPath(entry.name).as_posix(), content  # without ./
        while compressed.read(PIECE):  # gzip verifies the checksum when it reaches the end
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
        """Read bytes of a file in an archive.

        Args:
            size: maximum number of bytes (default: -1, all bytes).

        Returns:
            The bytes that were read.

        Raises:
            InputError: The archive expands to an implausible size.
        """
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise InputError(
                f"{self.archive} expands to more than {LARGEST_EXPANSION} times its size, unlike any "
                "archive of the published data. Download the archive again."
            )
        return content


@contextmanager
def damage_reported(archive: Path) -> Iterator[None]:
    """Context manager that raises InputError if the block finds a damaged or incomplete archive.

    Args:
        archive: path of the archive that the block reads.

    Raises:
        InputError: The archive is damaged or incomplete.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise InputError(
            f"{archive} is damaged or incomplete ({error}). Remove the archive and repeat the command, which "
            "downloads the archive again."
        ) from error
