"""BLEU and chrF of plain text, computed with sacreBLEU, and BLEU of Moses tokens with split hyphens.

The literature on WMT'14 English-German reports the BLEU of Moses tokens, which is 0.6 to 1 higher than the
BLEU of the same translations as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU, CHRF

from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress
from luna_fairseq.requirements import import_package
from luna_fairseq.text.documents import DocumentPiece
from luna_fairseq.text.language_codes import base_language
from luna_fairseq.text.moses import HYPHEN, detokenize, tokenize
from luna_fairseq.translation.generated import OTHER_TEXT


@dataclass(frozen=True)
class KnownTestSet:
    """Published test set, with line and token counts that identify its reference.

    Attributes:
        name: name of the test set in sacreBLEU.
        languages: language pair as in sacreBLEU's signature, such as "en-de".
        lines: number of sentences.
        tokens: number of reference tokens with sacreBLEU's tokenizer 13a.
        split_tokens: minimum and maximum number of Moses tokens of the reference, with hyphens split as in
            ``well @-@ known``. Versions of the Moses tokenizer differ by a few tokens.
    """

    name: str
    languages: str
    lines: int
    tokens: int
    split_tokens: Tuple[int, int]


TEST_SETS = {"wmt14/full": KnownTestSet("wmt14/full", "en-de", 3003, 62688, (64400, 64600))}


@dataclass(frozen=True)
class Score:
    """Value of a translation metric.

    Attributes:
        name: name of the metric, such as "BLEU" or "d-BLEU".
        value: value from 0 to 100.
        details: line that sacreBLEU prints for the score, beginning with ``name``.
        signature: sacreBLEU's signature of the metric, with its version and settings.
    """

    name: str
    value: float
    details: str
    signature: str


# sacreBLEU's tokenizer by target language. All others use 13a.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Languages written without spaces between words, for which sacreBLEU has no special tokenizer.
_WITHOUT_SPACES = {"th", "lo", "km", "my", "bo"}


def choose_tokenizer(tokenizer: Optional[str], language: Optional[str]) -> str:
    """Return ``tokenizer`` or, if it is None, sacreBLEU's tokenizer for a target language.

    Example:
        >>> choose_tokenizer(None, "zh-Hans"), choose_tokenizer(None, "de"), choose_tokenizer("char", "zh")
        ('zh', '13a', 'char')
    """
    if tokenizer is not None:
        return tokenizer
    return _TOKENIZERS.get(base_language(language or ""), BLEU.TOKENIZER_DEFAULT)


def should_score_moses_tokens(language: Optional[str]) -> bool:
    """Return True if translations into a language should also be scored as Moses tokens.

    Exceptions are languages that Moses cannot split, and languages with their own tokenizer in sacreBLEU.
    """
    base = base_language(language or "")
    return base not in _TOKENIZERS and base not in _WITHOUT_SPACES


def describe_tokenizer(tokenizer: str, language: Optional[str]) -> str:
    """Return a note on sacreBLEU's tokenizer to print with the scores, or "" if no note is needed.

    The note names a tokenizer other than the default 13a, or warns that 13a cannot split the language.
    """
    if tokenizer != BLEU.TOKENIZER_DEFAULT:
        return f"tokenizer: {tokenizer}\n"
    if base_language(language or "") in _WITHOUT_SPACES:
        return (
            f"BLEU: {tokenizer} does not divide {language} into words. Give --tokenize flores200 or char.\n"
        )
    return ""


def make_bleu(tokenizer: str, **options: Any) -> BLEU:
    """Return sacreBLEU's BLEU metric. Raise InputError if the tokenizer needs a missing package or model."""
    try:
        return BLEU(tokenize=tokenizer, **options)
    except OSError as error:  # some tokenizers download a model
        raise InputError(f"--tokenize {tokenizer}: sacreBLEU cannot download its model: {error}") from error
    except (ImportError, RuntimeError) as error:
        language = tokenizer.split("-")[0]
        package = f'"sacrebleu[{language}]"' if language in ("ja", "ko") else "sentencepiece"
        raise InputError(
            f"--tokenize {tokenizer} needs more packages: pip install {package}. "
            "Or give another --tokenize, such as char."
        ) from error


def check_scoring_packages(tokenizer: str, language: str, detokenize: Optional[str] = None) -> None:
    """Raise InputError if scoring translations into a language needs a package that is not installed.

    ``tokenizer`` is a tokenizer of sacreBLEU. ``detokenize`` is "moses" if the translations are Moses tokens.
    """
    make_bleu(tokenizer)
    if detokenize or should_score_moses_tokens(language):
        import_package("sacremoses", f"scoring translations into {language}")


@dataclass(frozen=True)
class Translations:
    """Hypotheses and their references.

    Attributes:
        hypotheses: hypotheses as plain text.
        references: references as plain text, in the same order.
        tokens: hypotheses as Moses tokens, with hyphens split as in ``well @-@ known``, if the system
            generates them. None if the system generates plain text.
    """

    hypotheses: List[str]
    references: List[str]
    tokens: Optional[List[str]] = None

    @classmethod
    def read(
        cls, hypotheses: List[str], references: List[str], detokenizer: Optional[str], language: Optional[str]
    ) -> Translations:
        """Create translations from plain-text references, and hypotheses as plain text or Moses tokens.

        If ``detokenizer`` is "moses", the hypotheses are Moses tokens, and are detokenized.
        """
        if detokenizer is None:
            return cls(hypotheses, references)
        lines = progress(hypotheses, "detokenise")
        return cls([detokenize(line.split(), str(language)) for line in lines], references, hypotheses)


def describe_split_hyphens(lines: Sequence[str]) -> str:
    """Return how many lines contain ``@-@``, a hyphen split by Moses, or "" if these are at most 10 %.

    Plain text may contain ``@-@`` in a few lines.
    """
    number = sum(f" {HYPHEN} " in f" {line} " for line in lines)
    return f"{HYPHEN} in {number:,} of {len(lines):,} lines" if number > OTHER_TEXT * len(lines) else ""


def check_plain_reference(references: Sequence[str], name: str = "the reference") -> None:
    """Raise InputError if references are Moses tokens, which have no BLEU of Moses tokens.

    The error message begins with ``name``.
    """
    found = describe_split_hyphens(references)
    if found:
        raise InputError(
            f"{name} is tokenized with hyphens split already ({found}), and splitting them twice inflates "
            "BLEU. Give the plain text."
        )


def plain_scores(text: Translations, tokenizer: str, test_set: Optional[KnownTestSet] = None) -> List[Score]:
    """Compute BLEU and chrF of plain, detokenized text with sacreBLEU.

    Raise InputError if the references differ from ``test_set`` in the number of lines or tokens.

    Example:
        >>> text = Translations(["A man sits here."], ["A man sits here."])
        >>> [(score.name, round(score.value)) for score in plain_scores(text, "13a")]
        [('BLEU', 100), ('chrF2', 100)]
    """
    if test_set is not None:
        check_reference(test_set, text.references)
    scores = []
    for metric in progress((make_bleu(tokenizer), CHRF()), "score", "metrics"):
        score = metric.corpus_score(text.hypotheses, [text.references])
        signature = metric.get_signature()
        if test_set is not None:
            signature.update("test", test_set.name)
            signature.update("lang", test_set.languages)
        scores.append(Score(score.name, score.score, str(score), str(signature)))
    return scores


def document_scores(
    text: Translations, pieces: Sequence[DocumentPiece], sentences: Score, tokenizer: str
) -> List[Score]:
    """Return BLEU with one sentence per line (s-BLEU) and with one document per line (d-BLEU).

    Raise InputError if ``pieces`` and ``text`` differ in the number of sentences.

    Args:
        text: translations, one line per sentence.
        pieces: parts of documents that were translated together, in the order of the text.
        sentences: BLEU of ``text`` with one sentence per line, which is returned under the name s-BLEU.
        tokenizer: tokenizer name in sacreBLEU, such as "13a".
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
        _bleu(joined[0], joined[1], "d-BLEU", f"documents:{len(joined[0])}", tokenizer),
    ]


def _bleu(
    hypotheses: List[str], references: List[str], name: str, suffix: str, tokenizer: str, **options: Any
) -> Score:
    """Compute BLEU with a tokenizer of sacreBLEU, such as "13a", and ``options`` of sacreBLEU's class BLEU.

    Return a :class:`Score` with the given name, and with ``suffix`` at the end of its signature.
    """
    metric = make_bleu(tokenizer, **options)
    score = metric.corpus_score(hypotheses, [references])
    details = str(score).replace(score.name, name, 1)
    return Score(name, score.score, details, f"{metric.get_signature()}|{suffix}")


def unigram_score(text: Translations, tokenizer: str) -> Score:
    """Compute BLEU-1: the unigram precision, multiplied by the brevity penalty."""
    return _bleu(
        text.hypotheses, text.references, "BLEU-1", "order:1", tokenizer, max_ngram_order=1, force=True
    )


def split_score(text: Translations, language: str, test_set: Optional[KnownTestSet] = None) -> Score:
    """Compute BLEU on Moses tokens with split hyphens (``well @-@ known``), as in the literature on WMT'14.

    Hypotheses that were generated as Moses tokens are scored unchanged. Plain text is tokenized first. Raise
    InputError if the references are Moses tokens, or if their number of tokens is not in the range known for
    ``test_set``.
    """
    check_plain_reference(text.references)
    references = [_tokenize_moses(line, language) for line in progress(text.references, "tokenise")]
    if test_set is not None:
        number = sum(len(line.split()) for line in references)
        least, most = test_set.split_tokens
        if not least <= number <= most:
            raise InputError(
                f"the reference of {test_set.name} has {least:,} to {most:,} tokens with hyphens split, got "
                f"{number:,}. Give the reference of {test_set.name}, or --test-set none."
            )
    hypotheses = text.tokens or [
        _tokenize_moses(line, language) for line in progress(text.hypotheses, "tokenise")
    ]
    suffix = f"moses:{language},sacremoses{import_package('sacremoses').__version__}"
    name = "BLEU of tokens, hyphens split"
    return replace(_bleu(hypotheses, references, name, suffix, "none", force=True), name="BLEU of tokens")


def _tokenize_moses(line: str, language: str) -> str:
    """Tokenize a line of plain text with Moses and split its hyphens, as in published results.

    Typographic apostrophes are converted to ``'``. Other punctuation is not normalized.
    """
    return " ".join(tokenize(line.replace("\u2019", "'"), language))


def check_reference(test_set: KnownTestSet, references: Sequence[str]) -> None:
    """Raise InputError if plain-text references differ from a test set in the number of lines or tokens."""
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
