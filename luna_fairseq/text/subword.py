"""Subword methods: sentencepiece on raw text, subword-nmt on Moses tokens, and whole words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.requirements import import_package
from luna_fairseq.text.dictionaries import build_text_dictionary
from luna_fairseq.text.encoders import Encoder, sentencepiece_encoder, subword_nmt_encoder, words_encoder
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.text.merges import learn_merges
from luna_fairseq.text.moses import tokenize_pairs
from luna_fairseq.text.pieces import CODES, SENTENCEPIECE_MODEL

# Mapping from a piece to its number of occurrences.
Counts = Mapping[str, int]


@dataclass(frozen=True)
class SubwordMethod:
    """Method for splitting text into subword pieces, such as sentencepiece.

    Args:
        name: value of ``--subword`` that selects the method.
        packages: libraries whose versions affect the output.
        encoder: function that maps the path of the model file to an encoder.
        dictionary: function ``(model file, counts, separators) -> fairseq dictionary``. ``separators`` are
            additional symbols.
        remove_bpe: value of ``--remove-bpe`` for fairseq-generate, or "" for whole words.
        model_file: name of the model file in the data folder, or "" if the method learns no model.
        learn: function ``(lines, vocabulary size) -> contents of the model file``. For subword-nmt, the
            vocabulary size is the number of merges.
        tokenize: function ``(languages, pairs of lines) -> tokenized pairs``.
        is_joint: True if both languages have the same dictionary.
        settings: other values that affect the output.
    """

    name: str
    packages: Tuple[str, ...]
    encoder: Callable[[Path], Encoder]
    dictionary: Callable[[Path, Counts, Sequence[str]], Dictionary]
    remove_bpe: str = ""
    model_file: str = ""
    learn: Optional[Callable[[Iterable[str], int], bytes]] = None
    tokenize: Optional[Callable[[Sequence[str], Sequence[Tuple[str, str]]], List[Tuple[str, ...]]]] = None
    is_joint: bool = True
    settings: Tuple[Any, ...] = ()

    @property
    def versions(self) -> Tuple[Any, ...]:
        """Values that affect the method's output: versions of the libraries and other settings."""
        return (*(import_package(name).__version__ for name in self.packages), *self.settings)


def _merges_dictionary(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
    return build_text_dictionary({**dict.fromkeys(separators, 1), **counts})


def whole_word_method(min_count: int) -> SubwordMethod:
    """Return a method that does not split words. Each language has a separate dictionary of words.

    Words that occur fewer than ``min_count`` times in the training text are mapped to the unknown token.
    """

    def dictionary(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
        built = build_text_dictionary(counts, min_count)
        if all(symbol.startswith("madeupword") for symbol in built.symbols[built.nspecial :]):
            raise InputError(f"No word occurs {min_count} times. Use a smaller --min-count.")
        return built

    return SubwordMethod(
        "words", (), lambda model: words_encoder(), dictionary, is_joint=False, settings=(min_count,)
    )


SUBWORD_METHODS = {
    # Raw text, which decoding restores.
    "sentencepiece": SubwordMethod(
        "sentencepiece",
        ("sentencepiece",),
        sentencepiece_encoder,
        bpe_dictionary,
        remove_bpe="sentencepiece",
        model_file=SENTENCEPIECE_MODEL,
        learn=learn_bpe,
    ),
    # Normalized, tokenized text with split hyphens, for the dictionaries and BLEU scores of the literature.
    "moses": SubwordMethod(
        "moses",
        ("sacremoses",),
        subword_nmt_encoder,
        _merges_dictionary,
        remove_bpe="subword_nmt",
        model_file=CODES,
        learn=learn_merges,
        tokenize=tokenize_pairs,
    ),
}
