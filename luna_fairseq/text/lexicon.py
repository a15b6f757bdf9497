"""Lexicons: text files that list the possible translations of each source subword piece.

Each line consists of a source piece, a tab, and space-separated target pieces. The line with an empty source
piece lists target pieces that are allowed in every sentence. The first line names the languages and the
dictionaries. This line is formatted as an entry, so that CTranslate2 can read the file (``--vocab_mapping``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.files.writing import replacing

# Source piece in the line with the candidates for every sentence.
EVERY_SENTENCE = ""
_ADVICE = "Give a file that luna-make-shortlist wrote"
_MADE_FOR = "#made-for"


class Lexicon(NamedTuple):
    """Target subword pieces that may translate each source piece.

    Attributes:
        candidates: target pieces, keyed by source piece.
        languages: source and target language, such as "de-en", or "" if unknown.
        source: number of entries and hash of the source dictionary, such as "8000-5140f07260ee51d5", or "" if
            unknown.
        target: number of entries and hash of the target dictionary, or "" if unknown.
    """

    candidates: Mapping[str, Sequence[str]]
    languages: str = ""
    source: str = ""
    target: str = ""


def write_lexicon(path: Path, lexicon: Lexicon) -> None:
    """Write a lexicon to a file. The first line names the languages and dictionaries, if known."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        if lexicon.languages:
            # CTranslate2 needs a candidate in each line.
            file.write(f"{':'.join([_MADE_FOR, *lexicon[1:]])}\t<unk>\n")
        for source, targets in lexicon.candidates.items():
            file.write(f"{source}\t{' '.join(targets)}\n")


def read_lexicon(path: Path) -> Lexicon:
    """Read a lexicon from a text file. Raise InputError if the file is invalid.

    Each line has a source piece, a tab and, separated by spaces, the target pieces that may translate it. If
    the first line does not name the languages and dictionaries, these fields of the result are "".
    """
    try:
        lines = require_regular_file(path).read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}). {_ADVICE}.") from None
    found: Dict[str, List[str]] = {}
    made_for: List[str] = []
    for number, line in enumerate(lines[:-1], start=1):
        source, _, targets = line.partition("\t")
        if not targets.strip():
            raise InputError(f"line {number} of {path} has no candidates after a tab. {_ADVICE}.")
        if number == 1 and source.startswith(_MADE_FOR):
            _, *made_for = source.split(":")
            continue
        if source in found:
            raise InputError(f"line {number} of {path} has {source!r} again. Remove one of the lines.")
        found[source] = targets.split(" ")
    if len(made_for) not in (0, 3):
        raise InputError(f"line 1 of {path} is damaged. {_ADVICE}.")
    if lines[-1] or not found:
        raise InputError(f"{path} is {'cut off' if found else 'no lexicon'}. {_ADVICE}.")
    return Lexicon(found, *made_for)
