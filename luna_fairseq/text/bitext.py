r"""Readers of parallel text: two files ``PREFIX.LANG`` in which equal line numbers are translations.

Lines end at ``\n`` only. Other characters that Unicode calls line separators occur inside sentences, and
splitting at them would shift one side against the other. Control characters are read as spaces. So is U+2581,
because sentencepiece uses it for a space and would decode it as one. NUL is refused.
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
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.progress import progress

# Control characters that are not white space. str.split and the encodings would keep them.
_CONTROL = re.compile("[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_CONTROL_OR_SPACE = re.compile(f"{_CONTROL.pattern}|\u2581")


@dataclass(frozen=True)
class Bitext:
    """Parallel text whose files were checked.

    Attributes:
        source: absolute path of the source file.
        target: absolute path of the target file.
        lines: number of lines in each file.
        empty: number of pairs with at least one empty side. ``pairs`` skips them.
        digest: SHA-256 of the contents of both files.
        controls: number of lines in which characters were read as spaces.
    """

    source: Path
    target: Path
    lines: int
    empty: int
    digest: str
    controls: int = 0

    def pairs(self) -> Iterator[Tuple[str, str]]:
        """Iterate over the pairs in which both sides have text, in the order of the files."""
        return (pair for pair in zip(read_lines(self.source), read_lines(self.target)) if all(pair))


def read_lines(path: Path, pieces: bool = False, controls: Optional[Counter] = None) -> Iterator[str]:
    """Read the lines of a UTF-8 file without surrounding white space.

    A byte order mark at the beginning is removed.

    Args:
        path: path of a regular file.
        pieces: keep U+2581, which begins words in text encoded by sentencepiece (default: False).
        controls: counter that is updated in place: for each path, the number of lines in which a control
            character was replaced by a space (default: None, nothing is counted).

    Yields:
        The lines, which may be empty.

    Raises:
        InputError: The file is missing, is not a regular file or cannot be read, or a line is not UTF-8 or
            contains a NUL.
    """
    pattern = _CONTROL if pieces else _CONTROL_OR_SPACE
    for number, raw in enumerate(_read_raw_lines(path), 1):
        text = _decode(raw, path, number)
        plain = _replace_controls(text, pattern)
        if controls is not None and plain != text:
            controls[path] += 1
        yield plain


def check_bitext(
    prefix: str, source_lang: str, target_lang: str, drop_empty: bool, documents: bool = False
) -> Bitext:
    """Read both files of a parallel text completely and check them.

    Args:
        prefix: path of the text without ``.LANG``.
        source_lang: extension of the source file.
        target_lang: extension of the target file.
        drop_empty: allow pairs with an empty side, which are dropped from training text.
        documents: check that empty lines, which separate documents, are at the same positions in both files
            (default: False).

    Returns:
        The checked text.

    Raises:
        InputError: A file is missing, empty or not UTF-8, the numbers of lines differ, a line is empty that
            must not be, or no pair is left.

    Example:
        >>> text = check_bitext("corpus/train", "de", "en", drop_empty=True)  # doctest: +SKIP
        >>> next(text.pairs())  # doctest: +SKIP
        ('Ein Hund läuft.', 'A dog runs.')
    """
    paths = [Path(f"{prefix}.{language}") for language in (source_lang, target_lang)]
    digest = hashlib.sha256()
    counts, empty, controls, document = [0, 0], 0, 0, 1
    sides = [_read_raw_lines(path) for path in paths]
    for number, pair in enumerate(progress(zip_longest(*sides), f"check {Path(prefix).name}"), 1):
        texts = [None if raw is None else _decode(raw, path, number) for raw, path in zip(pair, paths)]
        for raw in pair:
            digest.update(b"\0" if raw is None else raw + b"\n")
        counts = [count + (text is not None) for count, text in zip(counts, texts)]
        plain = [text and _replace_controls(text) for text in texts]
        controls += sum(before != after for before, after in zip(texts, plain))
        if documents and any(plain) and not all(plain):
            raise InputError(
                f"{paths[0 if not plain[0] else 1]}, line {number} is empty or missing, but the other side "
                f"is not: in document {document} the sides differ in their sentences. Correct one of the "
                "files."
            )
        if "" in plain:
            empty += 1
            document += 1
            if not drop_empty:
                path = paths[plain.index("")]
                raise InputError(f"{path}, line {number} is empty. Remove this line from both files.")
    _check_counts(paths, counts, empty)
    source, target = (path.absolute() for path in paths)
    return Bitext(source, target, counts[0], empty, digest.hexdigest(), controls)


def _check_counts(paths: List[Path], counts: List[int], empty: int) -> None:
    """Raise InputError if a file is empty, the numbers of lines differ, or every pair has an empty side.

    Args:
        paths: paths of the two files.
        counts: number of lines in each file.
        empty: number of pairs with at least one empty side.
    """
    for path, count in zip(paths, counts):
        if not count:
            raise InputError(f"{path} is empty. Give a file with one sentence on each line.")
    if counts[0] != counts[1]:
        raise InputError(
            f"{paths[0]} has {counts[0]:,} lines and {paths[1]} has {counts[1]:,}. Line n of one file must "
            "be the translation of line n of the other file."
        )
    if empty == counts[0]:
        raise InputError(
            f"{paths[0]} and {paths[1]} have an empty side in every pair of lines. Check that both files are "
            "aligned."
        )


def _read_raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with require_regular_file(path).open("rb") as file:
            yield from file
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _decode(raw: bytes, path: Path, number: int) -> str:
    """Decode a line and strip it, or raise InputError with the number of the line.

    Args:
        raw: content of the line.
        path: path of the file, for the error message.
        number: number of the line, counted from 1.

    Returns:
        Text of the line without surrounding white space.

    Raises:
        InputError: The line is not UTF-8 or contains a NUL.
    """
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")  # a file may begin with a byte order mark
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number} is not UTF-8 ({error.reason}). Convert the file to UTF-8."
        ) from error
    if "\0" in text:
        raise InputError(
            f"{path}, line {number} contains a NUL. Convert the file to UTF-8 if it is UTF-16, or replace "
            "the damaged file."
        )
    return text.strip()


def _replace_controls(text: str, pattern: Pattern[str] = _CONTROL_OR_SPACE) -> str:
    """Replace the characters that ``pattern`` matches by spaces, and strip the line.

    Args:
        text: text of a line.
        pattern: pattern of the characters to replace (default: control characters and U+2581).

    Returns:
        Text of the line without surrounding white space.
    """
    # Most lines have no such character, which these tests find out faster than the pattern.
    if text.isprintable() and "\u2581" not in text:
        return text
    return pattern.sub(" ", text).strip()
