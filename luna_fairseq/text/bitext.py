r"""Reading and checking of parallel text: line-aligned files ``PREFIX.LANG``, one per language.

Lines are split only at ``\n``. Other Unicode line separators occur within sentences, and splitting there
would misalign the two files. Control characters are replaced with spaces, and so is U+2581, which
sentencepiece would decode as a space. A NUL character is an error.
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

# Control characters that are not whitespace. str.split and the encodings would keep them.
_CONTROL = re.compile("[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_CONTROL_OR_SPACE = re.compile(f"{_CONTROL.pattern}|\u2581")


@dataclass(frozen=True)
class Bitext:
    """Pair of line-aligned text files that :func:`check_bitext` has checked.

    Attributes:
        lines: number of lines in each file.
        empty: number of pairs with an empty side.
        digest: SHA-256 digest of the contents of both files.
        control_lines: number of lines in which control characters or U+2581 were replaced with spaces.
    """

    source: Path
    target: Path
    lines: int
    empty: int
    digest: str
    control_lines: int = 0

    def pairs(self) -> Iterator[Tuple[str, str]]:
        """Yield (source line, target line), without pairs that have an empty side."""
        return (pair for pair in zip(read_lines(self.source), read_lines(self.target)) if all(pair))


def read_lines(
    path: Path, keep_piece_marks: bool = False, control_counts: Optional[Counter] = None
) -> Iterator[str]:
    """Yield the stripped lines of a UTF-8 file, with control characters and U+2581 replaced with spaces.

    A byte order mark is removed. With ``keep_piece_marks``, sentencepiece's word mark U+2581 is kept.
    ``control_counts``, keyed by path, counts the lines with replaced characters, and is updated in place.
    """
    pattern = _CONTROL if keep_piece_marks else _CONTROL_OR_SPACE
    for number, raw in enumerate(_read_raw_lines(path), 1):
        text = _decode(raw, path, number)
        plain = _replace_controls(text, pattern)
        if control_counts is not None and plain != text:
            control_counts[path] += 1
        yield plain


def check_bitext(
    prefix: str, source_lang: str, target_lang: str, drop_empty: bool, documents: bool = False
) -> Bitext:
    """Read both files ``PREFIX.LANG`` of a parallel text, and raise InputError if they are not aligned.

    An empty line is an error unless ``drop_empty`` is True. With ``documents``, which requires
    ``drop_empty``, empty lines separate documents and must be at the same positions in both files.
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
                advice = "" if any(plain) else ", or give --documents N if empty lines separate documents"
                raise InputError(f"{path}, line {number} is empty. Remove this line from both files{advice}.")
    _check_counts(paths, counts, empty)
    source, target = (path.absolute() for path in paths)
    return Bitext(source, target, counts[0], empty, digest.hexdigest(), controls)


def _check_counts(paths: List[Path], counts: List[int], empty: int) -> None:
    """Raise InputError if a file is empty, the line counts differ, or all pairs have an empty side.

    ``counts`` are the line counts of both files, and ``empty`` is the number of pairs with an empty side.
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
    """Decode a line as UTF-8. Strip surrounding whitespace and, in line 1, a byte order mark."""
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
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
    """Replace control characters (or other matches of ``pattern``) with spaces, and strip the line."""
    # Most lines contain no such character. These checks are faster than the regular expression.
    if text.isprintable() and "\u2581" not in text:
        return text
    return pattern.sub(" ", text).strip()
