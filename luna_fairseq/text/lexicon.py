"""Read and write lexicons: text files that list the target pieces that may translate each source piece.

Each line consists of a source piece, a tab, and space-separated target pieces. The line with an empty source
piece lists target pieces that are allowed in every sentence. CTranslate2 reads the same format
(``--vocab_mapping``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.files.writing import replacing

# Source piece in the line with the candidates for every sentence.
EVERY_SENTENCE = ""
_ADVICE = "Give a file that luna-make-shortlist wrote"


def write_lexicon(path: Path, candidates: Mapping[str, Sequence[str]]) -> None:
    """Write a lexicon, given the target pieces by source piece."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for source, targets in candidates.items():
            file.write(f"{source}\t{' '.join(targets)}\n")


def read_lexicon(path: Path) -> Dict[str, List[str]]:
    """Read a lexicon, and return the target pieces by source piece."""
    try:
        lines = require_regular_file(path).read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}). {_ADVICE}.") from None
    found: Dict[str, List[str]] = {}
    for number, line in enumerate(lines[:-1], start=1):
        source, _, targets = line.partition("\t")
        if not targets.strip():
            raise InputError(f"line {number} of {path} has no candidates after a tab. {_ADVICE}.")
        if source in found:
            raise InputError(f"line {number} of {path} has {source!r} again. Remove one of the lines.")
        found[source] = targets.split(" ")
    if lines[-1] or not found:
        raise InputError(f"{path} is {'cut off' if found else 'no lexicon'}. {_ADVICE}.")
    return found
