"""Files from public addresses: resumed where they broke off, and taken for complete only when they are."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Optional
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum
from luna_fairseq.progress import reading

ATTEMPTS = 5
TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    """
    Attributes:
        url: public address; its last part is the file's name.
        size: bytes; None where none is published.
        checksum: algorithm and hexadecimal digest, as "sha256:..."; None where none is published.
    """

    url: str
    size: Optional[int]
    checksum: Optional[str] = None

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def fetch(file: RemoteFile, folder: Path, mirror: Optional[str]) -> Path:
    """The complete file, downloaded into ``folder`` unless it is there or lies in a local mirror.

    Args:
        file: what to get. Size and checksum hold for its public address; a mirror's files may be others.
        folder: where downloads go, in part as NAME.part.
        mirror: another folder, or an address (``http://...``) to which the name is appended; None: the public
            one.

    Raises:
        InputError: the file cannot be got, or is not the published one.
    """
    if mirror is not None and "://" not in mirror:
        path = Path(mirror) / file.name
        if not path.is_file():
            raise InputError(f"{path} does not exist: --mirror must be a folder that holds {file.name}")
        return path
    path = folder / file.name
    if path.is_file() and (mirror is not None or file.size in (None, path.stat().st_size)):
        return path
    url = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _download(url, part)
    if mirror is None:
        _check(file, part)
    os.replace(part, path)
    return path


def _download(url: str, part: Path) -> None:
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
    kept = f"; {part} holds what came so far: start again to go on from there" if part.exists() else ""
    raise InputError(f"cannot download {url}: {reason}{kept}")


def _transfer(url: str, part: Path) -> None:
    """Append what is missing to ``part``; raises OSError when the connection ends too early."""
    start = part.stat().st_size if part.exists() else 0
    try:
        response = urlopen(
            Request(url, headers={"Range": f"bytes={start}-"} if start else {}), timeout=TIMEOUT
        )
    except HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":
            return  # it was complete
        part.unlink()  # longer than the file: it was another one
        raise ConnectionError("the partial download did not fit the file") from error
    with response:
        if response.status != 206:  # the server starts from the beginning
            start = 0
        length = response.headers.get("Content-Length")
        size = None if length is None else start + int(length)
        with part.open("ab" if start else "wb") as file, reading(response, part.stem, size, start) as content:
            shutil.copyfileobj(content, file)
        received = part.stat().st_size
        if size is not None and received != size:
            raise ConnectionError(f"the connection broke off after {received:,} of {size:,} bytes")


def _check(remote: RemoteFile, path: Path) -> None:
    """Remove and refuse what is not the published file."""
    size = path.stat().st_size
    problem = None
    if remote.size not in (None, size):
        problem = f"has {size:,} bytes instead of {remote.size:,}"
    elif remote.checksum is not None:
        algorithm, _, expected = remote.checksum.partition(":")
        with path.open("rb") as file, reading(file, f"check {path.stem}", size) as content:
            if checksum(algorithm, content) != expected:
                problem = f"has another {algorithm} than the published one"
    if problem is not None:
        path.unlink()
        raise InputError(
            f"{remote.url} {problem}: start again, or, if the file has changed there, get it yourself and "
            "give its folder as --mirror"
        )
