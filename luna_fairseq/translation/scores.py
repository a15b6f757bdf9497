"""BLEU and chrF of translations: of plain text by sacreBLEU, and of Moses tokens with hyphens split.

The second is the kind of BLEU in which WMT'14 English-German is reported in the literature; it is higher by
0.6 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF

from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress
from luna_fairseq.requirements import import_package
from luna_fairseq.text.documents import Piece
from luna_fairseq.text.moses import HYPHEN, detokenize, tokenize


@dataclass(frozen=True)
class KnownTestSet:
    """
    Attributes:
        name: sacreBLEU's.
        languages: the pair, as in sacreBLEU's signature.
        lines: sentences.
        tokens: of the reference, by sacreBLEU's tokenizer 13a.
        split_tokens: least and most of the reference, by Moses with hyphens split. Ports of Moses differ by a
            few tokens (64,496 to 64,506 were seen); 63,078 are they without the splitting.
    """

    name: str
    languages: str
    lines: int
    tokens: int
    split_tokens: Tuple[int, int]


TEST_SETS = {"wmt14/full": KnownTestSet("wmt14/full", "en-de", 3003, 62688, (64400, 64600))}


@dataclass(frozen=True)
class Score:
    """
    Attributes:
        name: of the metric.
        value: 0 to 100.
        details: as sacreBLEU prints it.
        signature: sacreBLEU's.
    """

    name: str
    value: float
    details: str
    signature: str


@dataclass(frozen=True)
class Translations:
    """Hypotheses beside their references.

    Attributes:
        hypotheses: plain text.
        references: plain text, in the same order.
        tokens: the hypotheses as Moses tokens with hyphens split, if that is what the system wrote.
    """

    hypotheses: List[str]
    references: List[str]
    tokens: Optional[List[str]] = None

    @classmethod
    def read(
        cls, hypotheses: List[str], references: List[str], detokenizer: Optional[str], language: Optional[str]
    ) -> Translations:
        """Plain hypotheses, or those of Moses tokens (``detokenizer`` "moses"), in ``language``.

        Raises:
            InputError: text that should be plain is tokenised already.
        """
        _check_plain(references, "the reference is", "give the plain text")
        if detokenizer is None:
            _check_plain(hypotheses, "the hypotheses are", "give --detokenize moses")
            return cls(hypotheses, references)
        lines = progress(hypotheses, "detokenise")
        return cls([detokenize(line.split(), str(language)) for line in lines], references, hypotheses)


def _check_plain(lines: Sequence[str], what: str, remedy: str) -> None:
    number = sum(f" {HYPHEN} " in f" {line} " for line in lines)
    if number:
        raise InputError(
            f"{what} tokenised with hyphens split already ({HYPHEN} in {number} lines), and would be split "
            f"twice, which inflates BLEU: {remedy}"
        )


def plain_scores(text: Translations, tokenizer: str, test_set: Optional[KnownTestSet] = None) -> List[Score]:
    """BLEU and chrF of plain text.

    Args:
        text: what to score.
        tokenizer: sacreBLEU's name of one.
        test_set: what the references must be.

    Raises:
        InputError: the references are not the test set, or the tokenizer's model cannot be had.
    """
    if test_set is not None:
        check_reference(test_set, text.references)
    scores = []
    try:
        bleu = BLEU(tokenize=tokenizer)
    except OSError as error:  # some fetch their model
        raise InputError(f"--tokenize {tokenizer}: sacreBLEU cannot fetch its model: {error}") from error
    for metric in progress((bleu, CHRF()), "score", "metrics"):
        score = metric.corpus_score(text.hypotheses, [text.references])
        signature = metric.get_signature()
        if test_set is not None:
            signature.update("test", test_set.name)
            signature.update("lang", test_set.languages)
        scores.append(Score(score.name, score.score, str(score), str(signature)))
    return scores


def document_scores(
    text: Translations, pieces: Sequence[Piece], sentences: Score, tokenizer: str
) -> List[Score]:
    """s-BLEU, which is ``sentences`` under that name, and d-BLEU: BLEU of documents, each joined to a line.

    Args:
        text: a line for each sentence.
        pieces: which sentences each document has.
        sentences: BLEU of the sentences.
        tokenizer: sacreBLEU's name of one.

    Raises:
        InputError: the pieces are not those of the text
    """
    number = sum(piece.sentences for piece in pieces)
    if number != len(text.references):
        raise InputError(
            f"the documents have {number:,} sentences and the reference {len(text.references):,} lines: give "
            "the file of this text"
        )
    of_lines = [piece.document for piece in pieces for _ in range(piece.sentences)]
    joined: List[List[str]] = []
    for lines in (text.hypotheses, text.references):
        documents: Dict[int, List[str]] = {}
        for document, line in zip(of_lines, lines):
            documents.setdefault(document, []).append(line)
        joined.append([" ".join(parts) for parts in documents.values()])
    return [
        replace(sentences, name="s-BLEU", details=f"s-{sentences.details}"),
        _bleu(joined[0], joined[1], "d-BLEU", f"documents:{len(joined[0])}", tokenize=tokenizer),
    ]


def _bleu(hypotheses: List[str], references: List[str], name: str, signed: str, **options: Any) -> Score:
    """sacreBLEU's BLEU with ``options``, under another ``name``; its signature ends with ``signed``."""
    metric = BLEU(**options)
    score = metric.corpus_score(hypotheses, [references])
    details = str(score).replace(score.name, name, 1)
    return Score(name, score.score, details, f"{metric.get_signature()}|{signed}")


def unigram_score(text: Translations, tokenizer: str) -> Score:
    """BLEU-1: BLEU whose only n-grams are words, with the brevity penalty.

    Args:
        text: what to score.
        tokenizer: sacreBLEU's name of one.
    """
    options = {"tokenize": tokenizer, "max_ngram_order": 1, "force": True}
    return _bleu(text.hypotheses, text.references, "BLEU-1", "order:1", **options)


def split_score(text: Translations, language: str, test_set: Optional[KnownTestSet] = None) -> Score:
    """BLEU of Moses tokens, hyphens split on both sides, exactly once.

    Args:
        text: what to score; tokens that the system wrote are taken as they are.
        language: of the text.
        test_set: what the references must be.

    Raises:
        InputError: the references have not the test set's number of tokens.
    """
    references = [_split(line, language) for line in progress(text.references, "tokenise")]
    if test_set is not None:
        number, (least, most) = sum(len(line.split()) for line in references), test_set.split_tokens
        if not least <= number <= most:
            raise InputError(
                f"the reference has {number:,} tokens with hyphens split instead of {least:,} to {most:,}: "
                f"it is not that of {test_set.name}, or another Moses tokenised it"
            )
    hypotheses = text.tokens or [_split(line, language) for line in progress(text.hypotheses, "tokenise")]
    signed = f"moses:{language},sacremoses{import_package('sacremoses').__version__}"
    name = "BLEU of tokens, hyphens split"
    found = _bleu(hypotheses, references, name, signed, tokenize="none", force=True)
    return replace(found, name="BLEU of tokens")


def _split(line: str, language: str) -> str:
    # The literature's scripts replace this apostrophe in the test set, and do not normalise punctuation
    # there.
    return " ".join(tokenize(line.replace("\u2019", "'"), language))


def check_reference(test_set: KnownTestSet, references: Sequence[str]) -> None:
    """Raise InputError when ``references``, plain lines, are not those of ``test_set``."""
    remedy = "to score other text, give --test-set none"
    if len(references) != test_set.lines:
        raise InputError(
            f"the reference has {len(references):,} lines and {test_set.name} has {test_set.lines:,}: "
            f"{remedy}"
        )
    metric = BLEU(tokenize="13a", force=True)
    tokens = metric.corpus_score(list(references), [list(references)]).ref_len
    if tokens != test_set.tokens:
        raise InputError(
            f"the reference has {tokens:,} tokens (13a) and that of {test_set.name} has {test_set.tokens:,}: "
            f"{remedy}"
        )
