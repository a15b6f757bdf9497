"""The two ways from text to subword pieces: raw text by sentencepiece, Moses tokens by subword-nmt."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import sacremoses
import sentencepiece

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.text.dictionaries import dictionary_of_text
from luna_fairseq.text.encoders import Encoder, sentencepiece_encoder, subword_nmt_encoder, words_encoder
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.text.merges import learn_merges
from luna_fairseq.text.moses import tokenize_pairs

Counts = Mapping[str, int]
Pairs = Callable[[List[Tuple[str, str]]], List[Tuple[str, ...]]]


class Route:
    """A way from text to pieces.

    Attributes:
        name: value of --subword.
        model_file: what ``learn`` makes, in the folder of the data; None where nothing is learnt.
        is_joint: whether both languages have one dictionary.
        remove_bpe: value of fairseq-generate's --remove-bpe.
        versions: of the libraries that the output depends on.
    """

    name: str
    model_file: Optional[str]
    is_joint = True
    remove_bpe: str
    versions: Tuple[Any, ...]

    def tokenizer(self, languages: Sequence[str]) -> Optional[Pairs]:
        """What is done to pairs of lines before anything is learnt, if anything."""
        return None

    def learn(self, lines: Iterator[str], vocab_size: int) -> bytes:
        """Contents of the model file; ``vocab_size`` is the number of pieces (of merges, in Moses)."""
        raise NotImplementedError

    def encoder(self, model: Path) -> Encoder:
        """By the model file."""
        raise NotImplementedError

    def dictionary(self, model: Path, counts: Counts, separators: Sequence[str] = ()) -> Dictionary:
        """fairseq's dictionary, from the model and the number of times each piece occurs in the training
        text, and ``separators``, which the model does not know."""
        raise NotImplementedError


class SentencePiece(Route):
    """Raw text, reversible."""

    name = "sentencepiece"
    model_file = "sentencepiece.bpe.model"
    remove_bpe = "sentencepiece"
    versions = (sentencepiece.__version__,)

    def learn(self, lines: Iterator[str], vocab_size: int) -> bytes:
        return learn_bpe(lines, vocab_size)

    def encoder(self, model: Path) -> Encoder:
        return sentencepiece_encoder(model)

    def dictionary(self, model: Path, counts: Counts, separators: Sequence[str] = ()) -> Dictionary:
        return bpe_dictionary(sentencepiece.SentencePieceProcessor(model_file=str(model)), counts, separators)


class Moses(Route):
    """Normalised, tokenised text with hyphens split: the dictionary and the BLEU of the literature."""

    name = "moses"
    model_file = "bpe.codes"
    remove_bpe = "subword_nmt"
    versions = (sacremoses.__version__,)

    def tokenizer(self, languages: Sequence[str]) -> Optional[Pairs]:
        return partial(tokenize_pairs, tuple(languages))

    def learn(self, lines: Iterator[str], vocab_size: int) -> bytes:
        return learn_merges(Counter(chain.from_iterable(map(str.split, lines))), vocab_size)

    def encoder(self, model: Path) -> Encoder:
        return subword_nmt_encoder(model)

    def dictionary(self, model: Path, counts: Counts, separators: Sequence[str] = ()) -> Dictionary:
        return dictionary_of_text({**dict.fromkeys(separators, 1), **counts})


class Words(Route):
    """Text that is tokenised already: whole words, a dictionary for each language; nothing is learnt.

    Args:
        least: how often a word of a dictionary occurs in the training text; all others are unknown.
    """

    name = "words"
    model_file = None
    is_joint = False

    def __init__(self, least: int) -> None:
        self.least = least
        self.versions = (least,)

    def encoder(self, model: Path) -> Encoder:
        return words_encoder()

    def dictionary(self, model: Path, counts: Counts, separators: Sequence[str] = ()) -> Dictionary:
        dictionary = dictionary_of_text(counts, self.least)
        if all(symbol.startswith("madeupword") for symbol in dictionary.symbols[dictionary.nspecial :]):
            raise InputError(f"no word occurs {self.least} times: give a smaller --min-count")
        return dictionary


ROUTES: Dict[str, Any] = {route.name: route for route in (SentencePiece(), Moses())}
