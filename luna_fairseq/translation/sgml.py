"""The SGML of WMT's test sets up to 2020, which no XML parser reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, Tuple
from xml.sax.saxutils import unescape

from luna_fairseq.errors import InputError

SEGMENT = re.compile(
    r"<doc\b[^>]*\bdocid\s*=\s*\"(?P<doc>[^\"]*)\"|<seg\b[^>]*\bid\s*=\s*\"?(?P<id>\w+)\"?[^>]*>(?P<text>.*?)</seg>",
    re.IGNORECASE | re.DOTALL,
)
ENTITIES = {"&quot;": '"', "&apos;": "'"}


def read_sgml(path: Path) -> List[Tuple[str, str, str]]:
    """The segments in the order of the file: (document, number in the document, text). Raises InputError
    where the file is not UTF-8, or an opening <seg> has no end."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 ({error.reason})") from error
    document, segments = "", []
    for match in SEGMENT.finditer(content):
        if match["doc"] is not None:
            document = match["doc"]
        else:
            segments.append((document, match["id"], " ".join(unescape(match["text"], ENTITIES).split())))
    opened = len(re.findall(r"<seg\b", content, re.IGNORECASE))
    if opened != len(segments) or not segments:
        raise InputError(f"{path.name} has {opened} segments, of which {len(segments)} are complete")
    return segments


def read_parallel_sgml(source: Path, reference: Path) -> List[Tuple[str, str]]:
    """Pairs of source and reference text. Raises InputError where the files do not hold the same segments of
    the same documents."""
    ours, theirs = read_sgml(source), read_sgml(reference)
    for one, other in zip(ours, theirs):
        if one[:2] != other[:2]:
            raise InputError(
                f"{source.name} and {reference.name} are not aligned: segment {one[1]} of {one[0]!r} stands "
                f"beside segment {other[1]} of {other[0]!r}"
            )
    if len(ours) != len(theirs):
        raise InputError(f"{source.name} has {len(ours):,} segments and {reference.name} has {len(theirs):,}")
    return [(one[2], other[2]) for one, other in zip(ours, theirs)]
