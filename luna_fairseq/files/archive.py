"""Members of a .tgz archive, taken for complete only if the whole archive is."""

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
# Text and images shrink to a third, perhaps to a tenth; a bomb, to a thousandth.
LARGEST_EXPANSION = 200


def extract(archive: Path, members: Mapping[str, Path]) -> None:
    """Write members (name in the archive -> file) of a gzipped tar file, reading it to its end, so that its
    checksum is verified. Raises InputError where it is damaged or incomplete, or has no such member; files
    may have been written."""
    left = dict(members)
    with whole(archive):
        for name, content in stream(archive):
            target = left.pop(name, None)
            if target is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
    if left:
        raise InputError(f"{archive} has no member {', '.join(sorted(left))}")


def stream(archive: Path) -> Iterator[Tuple[str, IO[bytes]]]:
    """Names and contents of the files in an archive, in its order; read to its end, so that its checksum is
    verified. What systems and editors leave beside data is left out, and counted.

    A content can be read until the next one is asked for. To be used within :func:`whole`.
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
        while compressed.read(PIECE):  # what follows the last member, and the checksum of it all
            pass


class _Bounded:
    """A file of which no more than a number of bytes can be read."""

    def __init__(self, file: IO[bytes], archive: Path, most: int) -> None:
        self.file, self.archive, self.left = file, archive, most + PIECE

    def read(self, size: int = -1) -> bytes:
        content = self.file.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise InputError(
                f"{self.archive} expands to more than {LARGEST_EXPANSION} times its size: it is no archive "
                "of the published data"
            )
        return content


@contextmanager
def whole(archive: Path) -> Iterator[None]:
    """Raises InputError where reading ``archive`` shows that it is damaged or incomplete."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise InputError(
            f"{archive} is damaged or incomplete ({error}): remove it, and start again to get it anew"
        ) from error
