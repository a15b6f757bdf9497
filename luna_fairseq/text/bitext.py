"""Reading parallel text: two files ``PREFIX.LANG`` whose lines translate one another.

Lines end at ``\\n`` alone: other characters that Unicode calls line separators occur inside sentences, and
splitting at them would shift one side against the other. Control characters, which no text means, are read as
spaces, and so is U+2581, which sentencepiece writes for a space and gives back as one; NUL is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Iterator, List, Optional, Pattern, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import regular_file
from luna_fairseq.progress import progress

# Those that are no white space: str.split and the encodings would keep them.
_CONTROL = re.compile("[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_CONTROL_OR_SPACE = re.compile(f"{_CONTROL.pattern}|\u2581")


@dataclass(frozen=True)
class Bitext:
    """A checked pair of files.

    Attributes:
        source, target: the files, as absolute paths.
        lines: lines in each file.
        empty: pairs of which one side, or both, are empty; ``pairs`` leaves them out.
        digest: SHA-256 of the contents of both files.
        controls: lines with control characters or U+2581, which are read as spaces.
    """

    source: Path
    target: Path
    lines: int
    empty: int
    digest: str
    controls: int = 0

    def pairs(self) -> Iterator[Tuple[str, str]]:
        """The pairs in which no side is empty, in the order of the files."""
        return (pair for pair in zip(read_lines(self.source), read_lines(self.target)) if all(pair))


def read_lines(path: Path, pieces: bool = False, controls: Optional[Counter] = None) -> Iterator[str]:
    """The lines of a UTF-8 file without surrounding white space (and without a byte order mark).

    Args:
        path: the file; no pipe.
        pieces: keep U+2581, sentencepiece's space, which is none of plain text's characters.
        controls: counts, for the path, the lines in which something was read as a space.

    Raises:
        InputError: the file is missing, a pipe, or cannot be read, or a line is not UTF-8 or holds a NUL.
    """
    read_as_spaces = _CONTROL if pieces else _CONTROL_OR_SPACE
    for number, raw in enumerate(_raw_lines(path), 1):
        text = _decode(raw, path, number)
        plain = _spaced(text, read_as_spaces)
        if controls is not None and plain != text:
            controls[path] += 1
        yield plain


def check_bitext(
    prefix: str, source_lang: str, target_lang: str, drop_empty: bool, documents: bool = False
) -> Bitext:
    """Read both files of a parallel text from beginning to end and check them.

    Args:
        prefix: path without ``.LANG``.
        source_lang, target_lang: suffixes of the files.
        drop_empty: whether pairs with an empty side may be there (training text, which loses them).
        documents: empty lines divide documents, and both sides have the same.

    Raises:
        InputError: a file is missing, empty or no text in UTF-8, the numbers of lines differ, a line is empty
            that must not be, or no pair is left.
    """
    paths = [Path(f"{prefix}.{language}") for language in (source_lang, target_lang)]
    digest = hashlib.sha256()
    counts, empty, controls, document = [0, 0], 0, 0, 1
    sides = [_raw_lines(path) for path in paths]
    for number, pair in enumerate(progress(zip_longest(*sides), f"check {Path(prefix).name}"), 1):
        texts = [None if raw is None else _decode(raw, path, number) for raw, path in zip(pair, paths)]
        for raw in pair:
            digest.update(b"\0" if raw is None else raw + b"\n")
        counts = [count + (text is not None) for count, text in zip(counts, texts)]
        plain = [text and _spaced(text) for text in texts]
        controls += sum(before != after for before, after in zip(texts, plain))
        if documents and any(plain) and not all(plain):
            raise InputError(
                f"{paths[0 if not plain[0] else 1]}, line {number} is empty or missing, and the other side's "
                f"is not: in document {document} the sides differ in their sentences"
            )
        if "" in plain:
            empty += 1
            document += 1
            if not drop_empty:
                path = paths[plain.index("")]
                raise InputError(f"{path}, line {number} is empty: remove this line from both files")
    _check_counts(paths, counts, empty)
    source, target = (path.absolute() for path in paths)
    return Bitext(source, target, counts[0], empty, digest.hexdigest(), controls)


def _check_counts(paths: List[Path], counts: List[int], empty: int) -> None:
    for path, count in zip(paths, counts):
        if not count:
            raise InputError(f"{path} is empty")
    if counts[0] != counts[1]:
        raise InputError(
            f"{paths[0]} has {counts[0]:,} lines and {paths[1]} has {counts[1]:,}: line n of one file must "
            "be the translation of line n of the other"
        )
    if empty == counts[0]:
        raise InputError(f"{paths[0]} and {paths[1]} have no pair of lines of which neither is empty")


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with regular_file(path).open("rb") as file:
            yield from file
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")  # a file may begin with a byte order mark
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number} is not UTF-8 ({error.reason}): convert the file") from error
    if "\0" in text:
        raise InputError(
            f"{path}, line {number} holds a NUL, as no text does: is the file UTF-16 (convert it to UTF-8) "
            "or damaged?"
        )
    return text.strip()


def _spaced(text: str, read_as_spaces: Pattern[str] = _CONTROL_OR_SPACE) -> str:
    """The line with spaces for what is read as such; most have nothing of the kind, which is quickly seen."""
    if text.isprintable() and "\u2581" not in text:
        return text
    return read_as_spaces.sub(" ", text).strip()
