"""Reader of fairseq-generate's output files, which returns the translations in sentence order."""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.pieces import WORD_MARK

# If a larger share of lines differs, the file contains a different text. A smaller share may be corrections.
OTHER_TEXT = 0.1
# Default of fairseq's --required-batch-size-multiple. A smaller last batch may be left out.
BATCH_MULTIPLE = 8


class GenerateOutput:
    """Sources, references and best hypotheses read from an output file of fairseq-generate.

    With ``must_be_complete``, an incomplete last line is an error. Otherwise, the line is ignored. With
    ``moses_tokens``, hypotheses are Moses tokens, which only the ``H-`` lines hold if fairseq-generate has
    detokenized the ``D-`` lines (``--tokenizer``).

    Attributes:
        sources: mapping from a sentence number to the text of its ``S-`` line.
        targets: mapping from a sentence number to the text of its ``T-`` line.
        best: mapping from a sentence number to its best hypothesis, from the ``D-`` lines if there are any,
            otherwise from the ``H-`` lines. Moses tokens are from the ``H-`` lines, with subwords joined.
        notes: messages about irregularities in the file.
    """

    def __init__(self, path: Path, must_be_complete: bool = True, moses_tokens: bool = False) -> None:
        self.path, self.notes = path, []  # type: Path, List[str]
        found = lines_by_kind(path, must_be_complete)
        self.sources, self.targets = found["S"], found["T"]
        self.best = found["D"] or found["H"]
        if _is_decoded_twice(found["H"], found["D"]):
            self.best = found["H"]
            self.notes.append(
                f"the D- lines of {path} have lost their spaces, because fairseq-generate decoded twice "
                "(--bpe and --remove-bpe): H- lines are used"
            )
        if moses_tokens and found["H"]:
            self.best = {number: _join_subwords(line) for number, line in found["H"].items()}

    def hypotheses(self, references: Sequence[str]) -> List[str]:
        """Return the best hypothesis of each sentence, in the order of the references.

        Raise InputError if there are too few or too many hypotheses, or if the hypotheses contain subword
        marks and the references do not.
        """
        number = len(references)
        if not self.best:
            raise InputError(
                f"{self.path} has no H- or D- lines. Give the output of fairseq-generate without --quiet."
            )
        if max(self.best) >= number:
            raise InputError(
                f"{self.path} has a sentence {max(self.best)}, but the reference has {number} lines. "
                "Give the reference of this text."
            )
        missing = [sentence for sentence in range(number) if sentence not in self.best]
        if missing and not any(references[missing[0] :]):
            raise InputError(
                f"the reference ends in {len(missing)} empty lines, for which {self.path} has no sentences. "
                "Remove them."
            )
        if missing:
            advice = "Give the complete output of fairseq-generate, or the reference of this text."
            if len(missing) < BATCH_MULTIPLE:
                advice = (
                    "Run fairseq-generate again with --required-batch-size-multiple 1, without which it "
                    "leaves out an incomplete last batch."
                )
            raise InputError(
                f"{self.path} lacks {len(missing)} of {number} sentences, the first being {missing[0]}. "
                f"{advice}"
            )
        lines = [self.best[sentence] for sentence in range(number)]
        if _has_pieces(lines) and not _has_pieces(references):
            raise InputError(
                f"{self.path} holds pieces of words. Run fairseq-generate with --remove-bpe sentencepiece "
                "(or subword_nmt)."
            )
        return lines

    def compare(
        self, reference: Path, references: Sequence[str], source: Optional[Path], sources: Sequence[str]
    ) -> List[str]:
        """Check that a plain reference and source contain the sentences that fairseq-generate has printed.

        Args:
            reference: path of the plain reference, shown in messages.
            references: lines of the reference.
            source: path of the plain source, shown in messages, or None.
            sources: lines of the source. If empty, the source is not checked.

        Returns:
            Messages about lines that differ or could not be compared.

        Raises:
            InputError: A file contains a different text, or the reference equals the source.
        """
        notes = _compare_lines(reference, references, self.targets, f"T- lines of {self.path}")
        notes += _compare_case(reference, references, self.targets, f"T- lines of {self.path}")
        if not self.targets and _find_differing(references, self.sources)[0] == []:
            if any(_strip_marks(line) for line in self.sources.values()):
                raise InputError(
                    f"{reference} is the source that {self.path} translates. Give the reference."
                )
        if source is not None and sources:
            notes += _compare_lines(source, sources, self.sources, f"S- lines of {self.path}")
        return notes


def lines_by_kind(path: Path, must_be_complete: bool = True) -> Dict[str, Dict[int, str]]:
    """Return the texts in an output file of fairseq-generate, keyed by type of line and sentence number.

    The types are "S" (source), "T" (target), "H" (hypothesis) and "D" (detokenized hypothesis). Only the best
    of several hypotheses is included. With ``must_be_complete``, an incomplete last line is an error.
    """
    found: Dict[str, Dict[int, str]] = {kind: {} for kind in "STHD"}
    for kind, sentence, text in labelled_lines(path, must_be_complete):
        if kind in found:
            found[kind].setdefault(sentence, text.partition("\t")[2] if kind in "HD" else text)
    return found


def labelled_lines(path: Path, must_be_complete: bool = True) -> Iterator[Tuple[str, int, str]]:
    """Yield tuples (type, sentence number, text) for the lines of an output file of fairseq-generate.

    For ``T-7<tab>A man.``, the values are "T", 7 and "A man.". Raise InputError if the file cannot be read,
    contains the output of several runs or, with ``must_be_complete``, ends in an incomplete line.
    """
    lines = list(read_lines(path, keep_piece_marks=True))
    if lines and not path.read_bytes().endswith(b"\n"):
        if must_be_complete:
            raise InputError(f"{path} breaks off in its last line. Run fairseq-generate again.")
        lines = lines[:-1]
    seen, latest = set(), {}  # type: set, Dict[str, int]
    for line in lines:
        label, _, text = line.partition("\t")
        kind, _, number = label.partition("-")
        if kind not in ("S", "T", "H", "D", "P", "A") or not number.isdigit():
            continue
        # With --nbest, a sentence may have several successive lines of a kind, except for S and T.
        if (kind, int(number)) in seen and (kind in "ST" or latest[kind] != int(number)):
            raise InputError(
                f"{path} has sentence {number} twice, so it holds the output of several runs. "
                "Give the output of one run."
            )
        seen.add((kind, int(number)))
        latest[kind] = int(number)
        yield kind, int(number), text


def _has_pieces(lines: Sequence[str]) -> bool:
    """Return True if any line contains the subword marks of sentencepiece or subword-nmt."""
    return any(WORD_MARK in line or "@@ " in line for line in lines)


def _join_subwords(line: str) -> str:
    """Join the subwords of subword-nmt: ``walk@@ ing`` becomes ``walking``."""
    return f"{line} ".replace("@@ ", "").rstrip()


def _is_decoded_twice(plain: Mapping[int, str], decoded: Mapping[int, str]) -> bool:
    """Return True if fairseq-generate decoded subwords twice, which deletes all spaces from the ``D-`` lines.

    This happens if both ``--bpe`` and ``--remove-bpe`` are given. ``plain`` and ``decoded`` are the ``H-``
    and ``D-`` lines, keyed by sentence number. The result is False for languages written without spaces.
    """
    return (
        bool(decoded)
        and any(" " in line for line in plain.values())
        and all(plain.get(number, "").replace(" ", "") == line for number, line in decoded.items())
        and not any(WORD_MARK in line for line in plain.values())
        and not any(unicodedata.east_asian_width(c) in "WF" for line in plain.values() for c in line)
    )


def _compare_lines(path: Path, lines: Sequence[str], printed: Mapping[int, str], label: str) -> List[str]:
    """Compare the lines of a plain text file with the sentences in an output of fairseq-generate.

    ``printed`` maps a sentence number to the printed sentence. ``label`` names the printed lines in messages.
    Return messages about lines that differ or could not be compared. Raise InputError if more than 10 % of
    the lines differ.
    """
    if not printed:
        return [f"{path} was not compared with the translated text, because there are no {label}"]
    differing, compared = _find_differing(lines, printed)
    if differing and len(differing) > OTHER_TEXT * compared:
        first = differing[0]
        raise InputError(
            f"{path} is another text: {len(differing)} of {compared} lines differ from the {label}. The "
            f"first is line {first + 1}: expected {printed[first][:40]!r}, got {lines[first][:40]!r}."
        )
    notes = []
    if differing:
        notes.append(f"{path}: {len(differing)} of {compared} lines differ from the {label}")
    if compared < len(lines):
        notes.append(
            f"{path}: {len(lines) - compared} of {len(lines)} lines were not compared with the {label}"
        )
    return notes


def _compare_case(path: Path, lines: Sequence[str], printed: Mapping[int, str], label: str) -> List[str]:
    """Return a message if a reference or the printed sentences are in lower case, and the others are not.

    The arguments are those of :func:`_compare_lines`. Few lines with capitals on one side are accepted.
    """
    known = [number for number in printed if number < len(lines)]
    few = OTHER_TEXT * len(known)
    capitals, printed_capitals = (
        sum(side[number] != side[number].lower() for number in known) for side in (lines, printed)
    )
    effect = "BLEU counts words with capitals as wrong"
    if not printed_capitals and capitals > few:
        return [f"the {label} are in lower case and {path} is not: {effect}. Give a reference in lower case."]
    if not capitals and printed_capitals > few:
        return [f"{path} is in lower case and the {label} are not: {effect}. Give a reference with capitals."]
    return []


def _find_differing(lines: Sequence[str], printed: Mapping[int, str]) -> Tuple[List[int], int]:
    """Compare lines with printed sentences. Return the differing sentence numbers, and the number compared.

    Only letters and digits are compared. Printed sentences with unknown words are skipped.
    """
    known = [number for number in sorted(printed) if number < len(lines) and "<unk>" not in printed[number]]
    differing = [number for number in known if _strip_marks(printed[number]) != _strip_marks(lines[number])]
    return differing, len(known)


def _strip_marks(text: str) -> str:
    """Return the letters and digits of a text in lower case, for comparisons that ignore tokenization.

    Subword marks are removed and XML entities are decoded first: ``walk@@ ing`` becomes ``walking``.
    """
    text = unicodedata.normalize("NFKC", html.unescape(re.sub("@@ |@-@", "", text))).casefold()
    return "".join(filter(str.isalnum, text))
