"""What fairseq-generate prints, read as translations in the order of the sentences."""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.text.bitext import read_lines

SENTENCEPIECE_SPACE = "\u2581"
# More lines than this share that differ are another text; fewer, a text that was corrected.
OTHER_TEXT = 0.1


class Generated:
    """Output of fairseq-generate.

    Args:
        path: the file.
        whole: refuse a file that breaks off; otherwise its last line is left out (default: True).

    Attributes:
        sources, targets: sentence -> its ``S-`` and ``T-`` line, where there are such.
        best: sentence -> its best hypothesis, of ``D-`` lines (detokenised) where there are any, else of
            ``H-`` lines.
        notes: what is odd about the file, in lines.

    Raises:
        InputError: the file cannot be read, breaks off, or is of several runs.
    """

    def __init__(self, path: Path, whole: bool = True) -> None:
        self.path, self.notes = path, []  # type: Path, List[str]
        found = lines_by_kind(path, whole)
        self.sources, self.targets = found["S"], found["T"]
        self.best = found["D"] or found["H"]
        if _decoded_twice(found["H"], found["D"]):
            self.best = found["H"]
            self.notes.append(
                f"the D- lines of {path} have lost their spaces, for fairseq-generate decoded twice (--bpe "
                "and --remove-bpe): H- lines are taken"
            )

    def hypotheses(self, references: Sequence[str]) -> List[str]:
        """The best hypothesis of every sentence, in the order of sentence ids.

        Args:
            references: one line for each sentence: their ids are 0 to the number of these - 1.

        Raises:
            InputError: there are no or too few hypotheses, those of other sentences, or pieces of words.
        """
        number = len(references)
        if not self.best:
            raise InputError(
                f"{self.path} has no H- or D- lines: give the output of fairseq-generate, run without --quiet"
            )
        if max(self.best) >= number:
            raise InputError(
                f"{self.path} has a sentence {max(self.best)}, but the reference has {number} lines: is it "
                "another text's?"
            )
        missing = [sentence for sentence in range(number) if sentence not in self.best]
        if missing and not any(references[missing[0] :]):
            raise InputError(
                f"the reference ends in {len(missing)} empty lines, which {self.path} has no sentences "
                "for: remove them"
            )
        if missing:
            raise InputError(
                f"{self.path} lacks {len(missing)} of {number} sentences, the first being {missing[0]}: "
                "either fairseq-generate broke off, or it left out the last batch, as it does without "
                "--required-batch-size-multiple 1"
            )
        lines = [self.best[sentence] for sentence in range(number)]
        if _has_pieces(lines) and not _has_pieces(references):
            raise InputError(
                f"{self.path} holds pieces of words: run fairseq-generate with --remove-bpe sentencepiece "
                "(or subword-nmt)"
            )
        return lines

    def compare(
        self, reference: Path, references: Sequence[str], source: Path, sources: Sequence[str]
    ) -> List[str]:
        """Look whether reference and source are of the text that was translated.

        Args:
            reference, references: the plain reference, its file and its lines.
            source, sources: likewise the source; no lines where none is given.

        Returns:
            lines that say what differs here and there, and what could not be compared.

        Raises:
            InputError: one of them is another text, or the one is the other.
        """
        notes = _compared(reference, references, self.targets, f"T- lines of {self.path}")
        if not self.targets and _differing(references, self.sources)[0] == []:
            if any(_bare(line) for line in self.sources.values()):
                raise InputError(f"{reference} is the source that {self.path} translates: give the reference")
        if sources:
            notes += _compared(source, sources, self.sources, f"S- lines of {self.path}")
        return notes


def lines_by_kind(path: Path, whole: bool = True) -> Dict[str, Dict[int, str]]:
    """Sentence -> text, of each of the kinds S, T, H and D; with --nbest, where several hypotheses follow one
    another, of the best. Arguments and errors as of :func:`labelled_lines`."""
    found: Dict[str, Dict[int, str]] = {kind: {} for kind in "STHD"}
    for kind, sentence, text in labelled_lines(path, whole):
        if kind in found:
            found[kind].setdefault(sentence, text.partition("\t")[2] if kind in "HD" else text)
    return found


def labelled_lines(path: Path, whole: bool = True) -> Iterator[Tuple[str, int, str]]:
    """Of every line such as ``H-7``: what it holds ("H"), of which sentence (7), and what follows the first
    tab.

    Args:
        path: the file
        whole: refuse a file that breaks off; otherwise its last line is left out

    Raises:
        InputError: the file cannot be read, breaks off, or is of several runs
    """
    lines = list(read_lines(path, pieces=True))
    if lines and not path.read_bytes().endswith(b"\n"):
        if whole:
            raise InputError(f"{path} breaks off in its last line: run fairseq-generate again")
        lines = lines[:-1]
    seen, latest = set(), {}  # type: set, Dict[str, int]
    for line in lines:
        label, _, text = line.partition("\t")
        kind, _, number = label.partition("-")
        if kind not in ("S", "T", "H", "D", "P", "A") or not number.isdigit():
            continue
        # Lines of a kind may follow one another with --nbest, but those of the source and the reference.
        if (kind, int(number)) in seen and (kind in "ST" or latest[kind] != int(number)):
            raise InputError(f"{path} has sentence {number} twice: it holds the output of several runs")
        seen.add((kind, int(number)))
        latest[kind] = int(number)
        yield kind, int(number), text


def _has_pieces(lines: Sequence[str]) -> bool:
    return any(SENTENCEPIECE_SPACE in line or "@@ " in line for line in lines)


def _decoded_twice(plain: Mapping[int, str], decoded: Mapping[int, str]) -> bool:
    """Whether decoded lines are the plain ones without their spaces, in a language that writes spaces."""
    return (
        bool(decoded)
        and any(" " in line for line in plain.values())
        and all(plain.get(number, "").replace(" ", "") == line for number, line in decoded.items())
        and not any(SENTENCEPIECE_SPACE in line for line in plain.values())
        and not any(unicodedata.east_asian_width(c) in "WF" for line in plain.values() for c in line)
    )


def _compared(path: Path, lines: Sequence[str], printed: Mapping[int, str], what: str) -> List[str]:
    if not printed:
        return [f"there are no {what}: that {path} is of the same text was not compared"]
    differing, compared = _differing(lines, printed)
    if differing and len(differing) > OTHER_TEXT * compared:
        first = differing[0]
        raise InputError(
            f"{path} is another text: {len(differing)} of {compared} lines differ from the {what}, the "
            f"first being line {first + 1}: {lines[first][:40]!r}, there {printed[first][:40]!r}"
        )
    notes = []
    if differing:
        notes.append(f"{path}: {len(differing)} of {compared} lines differ from the {what}")
    if compared < len(lines):
        notes.append(
            f"{path}: {len(lines) - compared} of {len(lines)} lines were not compared with the {what}"
        )
    return notes


def _differing(lines: Sequence[str], printed: Mapping[int, str]) -> Tuple[List[int], int]:
    """Lines whose letters and digits are others than those printed, and of how many that could be compared:
    those that hold no unknown words."""
    known = [number for number in sorted(printed) if number < len(lines) and "<unk>" not in printed[number]]
    differing = [number for number in known if _bare(printed[number]) != _bare(lines[number])]
    return differing, len(known)


def _bare(text: str) -> str:
    """Letters and digits alone, as they are in plain text, in pieces and in Moses' tokens, of either case."""
    text = unicodedata.normalize("NFKC", html.unescape(re.sub("@@ |@-@", "", text))).casefold()
    return "".join(filter(str.isalnum, text))
