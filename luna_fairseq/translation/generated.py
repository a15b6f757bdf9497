"""What fairseq-generate prints, read as translations in the order of the sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.text.bitext import read_lines

SENTENCEPIECE_SPACE = "\u2581"


def read_hypotheses(path: Path, number: int) -> List[str]:
    """The best hypothesis of every sentence, in the order of sentence ids.

    ``D-`` lines (detokenised) are taken where there are any, else ``H-`` lines.

    Args:
        path: output of fairseq-generate.
        number: how many sentences there are to be: their ids are 0 to number - 1.

    Raises:
        InputError: the file cannot be read, holds no or too few hypotheses, those of other sentences, or
            pieces of words.
    """
    found: Dict[str, Dict[int, str]] = {"H": {}, "D": {}}
    for kind, identifier, text in labelled_lines(path):
        if kind in found:
            # With --nbest several follow one another, the best first.
            found[kind].setdefault(identifier, text.partition("\t")[2])
    return _in_order(found["D"] or found["H"], number, path)


def labelled_lines(path: Path) -> Iterator[Tuple[str, int, str]]:
    """Of every line such as ``H-7``: what it holds ("H"), of which sentence (7), and what follows the first
    tab.

    Raises:
        InputError: the file cannot be read, breaks off, or is of several runs
    """
    _check_complete_last_line(path)
    sentences = set()
    for line in read_lines(path):
        label, _, text = line.partition("\t")
        kind, _, number = label.partition("-")
        if kind not in ("S", "T", "H", "D", "P", "A") or not number.isdigit():
            continue
        if kind == "S" and int(number) in sentences:
            raise InputError(f"{path} has sentence {number} twice: it holds the output of several runs")
        if kind == "S":
            sentences.add(int(number))
        yield kind, int(number), text


def _check_complete_last_line(path: Path) -> None:
    try:
        with path.open("rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if content and not content.endswith(b"\n"):
        raise InputError(f"{path} breaks off in its last line: run fairseq-generate again")


def _in_order(hypotheses: Dict[int, str], number: int, path: Path) -> List[str]:
    if not hypotheses:
        raise InputError(
            f"{path} has no H- or D- lines: give the output of fairseq-generate, run without --quiet"
        )
    beyond = max(hypotheses)
    if beyond >= number:
        raise InputError(
            f"{path} has a sentence {beyond}, but the reference has {number} lines: is it another text's?"
        )
    missing = [identifier for identifier in range(number) if identifier not in hypotheses]
    if missing:
        raise InputError(
            f"{path} lacks {len(missing)} of {number} sentences, the first being {missing[0]}: either "
            "fairseq-generate "
            "broke off, or it left out the last batch, as it does without --required-batch-size-multiple 1"
        )
    lines = [hypotheses[identifier] for identifier in range(number)]
    if any(SENTENCEPIECE_SPACE in line or "@@ " in line for line in lines):
        raise InputError(
            f"{path} holds pieces of words: run fairseq-generate with --remove-bpe sentencepiece (or "
            "subword-nmt)"
        )
    return lines
