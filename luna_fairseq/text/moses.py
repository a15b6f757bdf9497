"""Moses tokenization with sacremoses, as in the published WMT'14 systems and their BLEU scores.

Punctuation is normalized, hyphens are split aggressively (``a @-@ b``), and XML characters are escaped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, List, Sequence, Tuple

from luna_fairseq.requirements import import_package
from luna_fairseq.text.language_codes import base_language

HYPHEN = "@-@"


@lru_cache(maxsize=None)
def _tokenizer(language: str) -> Any:
    """Return sacremoses' tokenizer for a language, with cached sets of letters for speed."""
    base: Any = import_package("sacremoses").MosesTokenizer
    letters, lower_case = frozenset(base.IsAlpha), frozenset(base.IsLower)

    class Tokenizer(base):
        def islower(self, text: str) -> bool:
            return lower_case.issuperset(text)

        def isanyalpha(self, text: str) -> bool:
            return not letters.isdisjoint(text)

    return Tokenizer(base_language(language))


@lru_cache(maxsize=None)
def _normalizer(language: str) -> Any:
    normalizer = import_package("sacremoses").MosesPunctNormalizer
    return normalizer(base_language(language), post_remove_control_chars=True)


@lru_cache(maxsize=None)
def _detokenizer(language: str) -> Any:
    return import_package("sacremoses").MosesDetokenizer(base_language(language))


def normalize(line: str, language: str) -> str:
    """Normalize punctuation, remove control characters, and collapse whitespace."""
    # Tabs are control characters: removing them first would join the words around a tab.
    return _normalizer(language).normalize(" ".join(line.split()))


def tokenize(line: str, language: str) -> List[str]:
    """Split a line of normalized text into Moses tokens."""
    return _tokenizer(language).tokenize(line, aggressive_dash_splits=True)


def detokenize(tokens: Sequence[str], language: str) -> str:
    """Join Moses tokens into plain text, as the inverse of :func:`tokenize`."""
    return _detokenizer(language).detokenize(tokens)


def tokenize_line(line: str, language: str) -> str:
    """Normalize and tokenize a line, and join the tokens with spaces."""
    return " ".join(tokenize(normalize(line, language), language))


def tokenize_pairs(languages: Sequence[str], pairs: Sequence[Tuple[str, str]]) -> List[Tuple[str, ...]]:
    """Apply :func:`tokenize_line` to both sides of sentence pairs."""
    return [tuple(map(tokenize_line, pair, languages)) for pair in pairs]
