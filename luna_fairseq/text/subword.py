"""The two ways from text to subword pieces: raw text by sentencepiece, Moses tokens by subword-nmt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.requirements import import_package
from luna_fairseq.text.dictionaries import dictionary_of_text
from luna_fairseq.text.encoders import Encoder, sentencepiece_encoder, subword_nmt_encoder, words_encoder
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.text.merges import learn_merges
from luna_fairseq.text.moses import tokenize_pairs

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Route:
    """A way from text to pieces.

    Attributes:
        name: value of --subword.
        packages: libraries whose versions the output depends on.
        encoder: makes the encoder, given the model file.
        dictionary: makes fairseq's dictionary, given the model file, how often each piece occurs in the
            training text, and separators, which the model does not know.
        remove_bpe: value of fairseq-generate's --remove-bpe.
        model_file: what ``learn`` makes, in the folder of the data; "" where nothing is learnt.
        learn: makes the contents of the model file, given lines and the number of pieces (of merges, in
            Moses).
        tokenize: what is done to pairs of lines in two languages before anything is learnt, if anything.
        is_joint: True if both languages share one dictionary.
        settings: further values that the output depends on.
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
        """Versions of the packages and the settings that the output depends on."""
        return (*(import_package(name).__version__ for name in self.packages), *self.settings)


def _of_merges(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
    return dictionary_of_text({**dict.fromkeys(separators, 1), **counts})


def words(least: int) -> Route:
    """Text that is tokenised already: whole words, a dictionary for each language; nothing is learnt.

    Args:
        least: how often a word of a dictionary occurs in the training text; all others are unknown.
    """

    def dictionary(model: Path, counts: Counts, separators: Sequence[str]) -> Dictionary:
        found = dictionary_of_text(counts, least)
        if all(symbol.startswith("madeupword") for symbol in found.symbols[found.nspecial :]):
            raise InputError(f"no word occurs {least} times: give a smaller --min-count")
        return found

    return Route("words", (), lambda model: words_encoder(), dictionary, is_joint=False, settings=(least,))


ROUTES = {
    # Raw text, reversible.
    "sentencepiece": Route(
        "sentencepiece",
        ("sentencepiece",),
        sentencepiece_encoder,
        bpe_dictionary,
        remove_bpe="sentencepiece",
        model_file="sentencepiece.bpe.model",
        learn=learn_bpe,
    ),
    # Normalised, tokenised text with hyphens split: the dictionary and the BLEU of the literature.
    "moses": Route(
        "moses",
        ("sacremoses",),
        subword_nmt_encoder,
        _of_merges,
        remove_bpe="subword_nmt",
        model_file="bpe.codes",
        learn=learn_merges,
        tokenize=tokenize_pairs,
    ),
}
