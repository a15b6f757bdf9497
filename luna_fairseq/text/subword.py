"""Routes from text to subword pieces: sentencepiece for raw text, subword-nmt for Moses tokens, and words."""

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

# Number of occurrences of each piece.
Counts = Mapping[str, int]


@dataclass(frozen=True)
class Route:
    """Steps from text to subword pieces.

    Args:
        name: value of ``--subword`` that chooses the route.
        packages: libraries whose versions influence the output.
        encoder: function from the path of the model file to the encoder.
        dictionary: function that builds fairseq's dictionary, given the path of the model file, the number of
            occurrences of each piece in the training text, and separators, which the model does not know.
        remove_bpe: value of ``--remove-bpe`` for fairseq-generate. Empty (default) for words.
        model_file: name of the model file in the data folder. Empty (default) if nothing is learned.
        learn: function from lines and the vocabulary size (number of merges for Moses) to the content of the
            model file. None (default) if nothing is learned.
        tokenize: function from two languages and pairs of lines to tokenised pairs. None (default) if lines
            are not tokenised.
        is_joint: True (default) if both languages share a dictionary.
        settings: further values that influence the output. Empty by default.
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
        """Versions of the packages, and the settings, that influence the output."""
        return (*(import_package(name).__version__ for name in self.packages), *self.settings)


def _merges_dictionary(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
    return build_text_dictionary({**dict.fromkeys(separators, 1), **counts})


def words(min_count: int) -> Route:
    """Return the route from tokenised text to pieces: whole words, with a dictionary for each language.

    Args:
        min_count: how often a word must occur in the training text to enter the dictionary. Rarer words
            become the unknown word.
    """

    def dictionary(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
        built = build_text_dictionary(counts, min_count)
        if all(symbol.startswith("madeupword") for symbol in built.symbols[built.nspecial :]):
            raise InputError(f"No word occurs {min_count} times. Use a smaller --min-count.")
        return built

    return Route(
        "words", (), lambda model: words_encoder(), dictionary, is_joint=False, settings=(min_count,)
    )


ROUTES = {
    # Raw text, which decoding restores.
    "sentencepiece": Route(
        "sentencepiece",
        ("sentencepiece",),
        sentencepiece_encoder,
        bpe_dictionary,
        remove_bpe="sentencepiece",
        model_file="sentencepiece.bpe.model",
        learn=learn_bpe,
    ),
    # Normalised, tokenised text with split hyphens, for the dictionaries and BLEU scores of the literature.
    "moses": Route(
        "moses",
        ("sacremoses",),
        subword_nmt_encoder,
        _merges_dictionary,
        remove_bpe="subword_nmt",
        model_file="bpe.codes",
        learn=learn_merges,
        tokenize=tokenize_pairs,
    ),
}
