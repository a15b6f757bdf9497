"""Resumable download of published files, with verification of size and checksum."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Iterator, Optional
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum
from luna_fairseq.progress import read_with_progress

ATTEMPTS = 5
TIMEOUT = 60  # seconds without receiving a byte


@dataclass(frozen=True)
class RemoteFile:
    """File that is published on the web.

    Attributes:
        url: public address, whose last part is the name of the file.
        size: number of bytes. None if the size is not published.
        checksum: algorithm and hexadecimal digits, such as "sha256:9f86d0...". None if unpublished.
    """

    url: str
    size: Optional[int]
    checksum: Optional[str] = None

    @property
    def name(self) -> str:
        """Name of the file: the last part of its address."""
        return self.url.rsplit("/", 1)[1]


def fetch(file: RemoteFile, folder: Path, mirror: Optional[str]) -> Path:
    """Return the path of a published file in ``folder``, after downloading it if it is missing there.

    ``mirror`` replaces the public address by another one, to which the file's name is appended. If it is a
    local folder, the file must be there, and nothing is downloaded. Size and checksum are verified only for
    downloads from the public address, because a mirror may have another version.
    """
    if mirror is not None and "://" not in mirror:
        path = Path(mirror) / file.name
        if not path.is_file():
            raise InputError(f"{path} does not exist. Use --mirror with a folder that contains {file.name}.")
        return path
    path = folder / file.name
    if path.is_file() and (mirror is not None or file.size in (None, path.stat().st_size)):
        return path
    url = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with _lock(part):
        _download(url, part)
        if mirror is None:
            _check(file, part)
        os.replace(part, path)
    return path


@contextmanager
def _lock(part: Path) -> Iterator[None]:
    """Lock a partial download. Raise InputError if another process has locked it.

    The lock has no effect on file systems without locks.
    """
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise InputError(
                    f"another process is downloading {part}. Repeat the command when it has ended."
                ) from error
        try:
            yield
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


def _download(url: str, part: Path) -> None:
    """Download a URL to ``part`` in up to five attempts. Raise InputError if all attempts fail.

    Each attempt resumes where the previous attempt stopped.
    """
    for attempt in range(ATTEMPTS):
        try:
            _transfer(url, part)
            return
        except HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        if attempt < ATTEMPTS - 1:
            time.sleep(2**attempt)
    has_begun = part.exists() and part.stat().st_size  # another process may have renamed the file
    advice = " Repeat the command to resume the download." if has_begun else ""
    raise InputError(f"cannot download {url}: {reason}.{advice}")


def _transfer(url: str, part: Path) -> None:
    """Resume a download: request the missing bytes of the file at ``url``, and append them to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    try:
        response = urlopen(
            Request(url, headers={"Range": f"bytes={start}-"} if start else {}), timeout=TIMEOUT
        )
    except HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return  # the download is already complete
        os.truncate(part, 0)  # a partial download that is longer belongs to another version of the file
        raise ConnectionError("the partial download belongs to another file") from error
    with response:
        if response.status != 206:  # the server sends the whole file
            start = 0
        length = response.headers.get("Content-Length")
        size = None if length is None else start + int(length)
        with part.open("ab" if start else "wb") as file:
            with read_with_progress(response, part.stem, size, start) as content:
                shutil.copyfileobj(content, file)
        received = part.stat().st_size
        if size is not None and received != size:
            raise ConnectionError(f"the connection ended after {received:,} of {size:,} bytes")


def _check(remote: RemoteFile, path: Path) -> None:
    """Delete a downloaded file and raise InputError if its size or checksum is not the published one."""
    size = path.stat().st_size
    problem = None
    if remote.size not in (None, size):
        problem = f"has {size:,} bytes instead of {remote.size:,}"
    elif remote.checksum is not None:
        algorithm, _, expected = remote.checksum.partition(":")
        with path.open("rb") as file, read_with_progress(file, f"check {path.stem}", size) as content:
            if checksum(algorithm, content) != expected:
                problem = f"has another {algorithm} checksum than the published file"
    if problem is not None:
        path.unlink()
        raise InputError(
            f"{remote.url} {problem}. Repeat the command, or download the file yourself and use its folder "
            "as --mirror."
        )
