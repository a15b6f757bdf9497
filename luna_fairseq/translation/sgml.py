"""Reader of the SGML files in which WMT's test sets up to 2020 are published.

The files are not valid XML, so XML parsers reject them.
"""

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
    """Return (document id, segment id, text) for each ``<seg>`` element of an SGML file."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 ({error.reason}). Use the published file.") from error
    document, segments = "", []
    for match in SEGMENT.finditer(content):
        if match["doc"] is not None:
            document = match["doc"]
        else:
            segments.append((document, match["id"], " ".join(unescape(match["text"], ENTITIES).split())))
    opened = len(re.findall(r"<seg\b", content, re.IGNORECASE))
    if opened != len(segments) or not segments:
        raise InputError(
            f"{path.name} has {opened} segments, of which {len(segments)} are complete. "
            "Use the published file."
        )
    return segments


def read_parallel_sgml(source: Path, reference: Path) -> List[Tuple[str, str]]:
    """Return the (source, reference) pairs of two SGML files. Raise InputError if their segments differ."""
    sources, references = read_sgml(source), read_sgml(reference)
    for (document, number, _), (other_document, other_number, _) in zip(sources, references):
        if (document, number) != (other_document, other_number):
            raise InputError(
                f"{source.name} and {reference.name} are not aligned: segment {number} of {document!r} is "
                f"paired with segment {other_number} of {other_document!r}. Use the published files."
            )
    if len(sources) != len(references):
        raise InputError(
            f"{source.name} has {len(sources):,} segments and {reference.name} has {len(references):,}. "
            "Use the published files."
        )
    return [(text, translation) for (_, _, text), (_, _, translation) in zip(sources, references)]
