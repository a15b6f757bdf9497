"""BLEU and chrF of plain translations by sacreBLEU, and BLEU of Moses tokens with hyphens split.

The literature reports the BLEU of Moses tokens for WMT'14 English-German. It is higher by 0.6 to 1.
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
    """Published test set with the counts that identify its reference.

    Attributes:
        name: name of the test set in sacreBLEU.
        languages: language pair, as in sacreBLEU's signature.
        lines: number of sentences.
        tokens: number of reference tokens by sacreBLEU's tokenizer 13a.
        split_tokens: smallest and largest number of reference tokens by Moses with hyphens split. Ports of
            Moses differ by a few tokens.
    """

    name: str
    languages: str
    lines: int
    tokens: int
    split_tokens: Tuple[int, int]


TEST_SETS = {"wmt14/full": KnownTestSet("wmt14/full", "en-de", 3003, 62688, (64400, 64600))}


@dataclass(frozen=True)
class Score:
    """Value of one metric.

    Attributes:
        name: name of the metric.
        value: value from 0 to 100.
        details: line that sacreBLEU prints.
        signature: signature of sacreBLEU, which names its version and settings.
    """

    name: str
    value: float
    details: str
    signature: str


@dataclass(frozen=True)
class Translations:
    """Hypotheses with their references.

    Attributes:
        hypotheses: hypotheses as plain text.
        references: references as plain text, in the same order.
        tokens: hypotheses as Moses tokens with hyphens split, or None if the system writes plain text.
    """

    hypotheses: List[str]
    references: List[str]
    tokens: Optional[List[str]] = None

    @classmethod
    def read(
        cls, hypotheses: List[str], references: List[str], detokenizer: Optional[str], language: Optional[str]
    ) -> Translations:
        """Create translations from the lines that a system wrote.

        Args:
            hypotheses: lines of the system, plain text or Moses tokens.
            references: references as plain text.
            detokenizer: "moses" if the hypotheses are Moses tokens, None if they are plain text.
            language: target language, needed for Moses tokens.

        Raises:
            InputError: Text that should be plain is tokenised.
        """
        _check_plain(references, "the reference is", "Give the plain text.")
        if detokenizer is None:
            _check_plain(hypotheses, "the hypotheses are", "Give --detokenize moses.")
            return cls(hypotheses, references)
        lines = progress(hypotheses, "detokenise")
        return cls([detokenize(line.split(), str(language)) for line in lines], references, hypotheses)


def _check_plain(lines: Sequence[str], subject: str, remedy: str) -> None:
    """Raise an InputError if lines are Moses tokens with hyphens split.

    Args:
        lines: lines that should be plain text.
        subject: subject of the message with its verb, such as "the hypotheses are".
        remedy: advice that ends the message.
    """
    number = sum(f" {HYPHEN} " in f" {line} " for line in lines)
    if number:
        raise InputError(
            f"{subject} tokenised with hyphens split already ({HYPHEN} in {number} lines), and splitting "
            f"them twice inflates BLEU. {remedy}"
        )


def plain_scores(text: Translations, tokenizer: str, test_set: Optional[KnownTestSet] = None) -> List[Score]:
    """Compute BLEU and chrF of plain text.

    Args:
        text: translations to score.
        tokenizer: name of a tokenizer in sacreBLEU.
        test_set: test set that the references must belong to, or None to accept any (default: None).

    Returns:
        BLEU and chrF.

    Raises:
        InputError: The references do not belong to the test set, or the tokenizer's model cannot be
            downloaded.

    Example:
        >>> text = Translations(["A man sits here."], ["A man sits here."])
        >>> [(score.name, round(score.value)) for score in plain_scores(text, "13a")]
        [('BLEU', 100), ('chrF2', 100)]
    """
    if test_set is not None:
        check_reference(test_set, text.references)
    scores = []
    try:
        bleu = BLEU(tokenize=tokenizer)
    except OSError as error:  # some tokenizers download a model
        raise InputError(f"--tokenize {tokenizer}: sacreBLEU cannot download its model: {error}") from error
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
    """Compute s-BLEU, the BLEU of sentences, and d-BLEU, the BLEU of whole documents.

    Args:
        text: translations, one line for each sentence.
        pieces: pieces of the documents with their numbers of sentences, in the order of the text.
        sentences: BLEU of the sentences, returned under the name s-BLEU.
        tokenizer: name of a tokenizer in sacreBLEU.

    Returns:
        s-BLEU and d-BLEU.

    Raises:
        InputError: The pieces do not belong to the text.
    """
    number = sum(piece.sentences for piece in pieces)
    if number != len(text.references):
        raise InputError(
            f"the documents have {number:,} sentences and the reference has {len(text.references):,} lines. "
            "Give the file of this text."
        )
    documents_of_lines = [piece.document for piece in pieces for _ in range(piece.sentences)]
    joined: List[List[str]] = []
    for lines in (text.hypotheses, text.references):
        documents: Dict[int, List[str]] = {}
        for document, line in zip(documents_of_lines, lines):
            documents.setdefault(document, []).append(line)
        joined.append([" ".join(parts) for parts in documents.values()])
    return [
        replace(sentences, name="s-BLEU", details=f"s-{sentences.details}"),
        _bleu(joined[0], joined[1], "d-BLEU", f"documents:{len(joined[0])}", tokenize=tokenizer),
    ]


def _bleu(hypotheses: List[str], references: List[str], name: str, signed: str, **options: Any) -> Score:
    """Compute sacreBLEU's BLEU and return it under another name.

    Args:
        hypotheses: hypotheses to score.
        references: references in the same order.
        name: name of the score.
        signed: text that is appended to the signature.
        options: arguments of :class:`sacrebleu.metrics.BLEU`.

    Returns:
        Score with the name, the value and sacreBLEU's signature.
    """
    metric = BLEU(**options)
    score = metric.corpus_score(hypotheses, [references])
    details = str(score).replace(score.name, name, 1)
    return Score(name, score.score, details, f"{metric.get_signature()}|{signed}")


def unigram_score(text: Translations, tokenizer: str) -> Score:
    """Compute BLEU-1, the precision of single words with the brevity penalty.

    Args:
        text: translations to score.
        tokenizer: name of a tokenizer in sacreBLEU.

    Returns:
        Score with the name "BLEU-1".
    """
    options = {"tokenize": tokenizer, "max_ngram_order": 1, "force": True}
    return _bleu(text.hypotheses, text.references, "BLEU-1", "order:1", **options)


def split_score(text: Translations, language: str, test_set: Optional[KnownTestSet] = None) -> Score:
    """Compute BLEU of Moses tokens with hyphens split once, on both sides.

    Args:
        text: translations to score. Moses tokens of the system are used unchanged.
        language: language of the text.
        test_set: test set that the references must belong to, or None to accept any (default: None).

    Raises:
        InputError: The references do not have the test set's number of tokens.
    """
    references = [_tokenize_moses(line, language) for line in progress(text.references, "tokenise")]
    if test_set is not None:
        number, (least, most) = sum(len(line.split()) for line in references), test_set.split_tokens
        if not least <= number <= most:
            raise InputError(
                f"the reference of {test_set.name} has {least:,} to {most:,} tokens with hyphens split, got "
                f"{number:,}. Give the reference of {test_set.name}, or --test-set none."
            )
    hypotheses = text.tokens or [
        _tokenize_moses(line, language) for line in progress(text.hypotheses, "tokenise")
    ]
    signed = f"moses:{language},sacremoses{import_package('sacremoses').__version__}"
    name = "BLEU of tokens, hyphens split"
    score = _bleu(hypotheses, references, name, signed, tokenize="none", force=True)
    return replace(score, name="BLEU of tokens")


def _tokenize_moses(line: str, language: str) -> str:
    """Tokenise a plain line with Moses, with hyphens split.

    As in the scripts of published results, typographic apostrophes are replaced, but punctuation is not
    normalised.

    Args:
        line: plain line.
        language: language code, such as "en".

    Returns:
        Tokens, joined by spaces.
    """
    return " ".join(tokenize(line.replace("\u2019", "'"), language))


def check_reference(test_set: KnownTestSet, references: Sequence[str]) -> None:
    """Check that plain references belong to a test set.

    Args:
        test_set: expected test set.
        references: plain reference lines.

    Raises:
        InputError: The number of lines or tokens differs.
    """
    remedy = "Give --test-set none to score another text."
    if len(references) != test_set.lines:
        raise InputError(
            f"the reference has {len(references):,} lines and {test_set.name} has {test_set.lines:,}. "
            f"{remedy}"
        )
    metric = BLEU(tokenize="13a", force=True)
    tokens = metric.corpus_score(list(references), [list(references)]).ref_len
    if tokens != test_set.tokens:
        raise InputError(
            f"the reference has {tokens:,} tokens (13a) and the reference of {test_set.name} has "
            f"{test_set.tokens:,}. {remedy}"
        )
