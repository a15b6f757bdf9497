"""Text into numbers of pieces, in batches of lines: sentencepiece, subword-nmt, GPT-2, words."""

from __future__ import annotations

import json
import math
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence

import numpy as np
import sentencepiece

from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import regular_file
from luna_fairseq.requirements import import_package
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.indexed import Encoded, EncodedText, flat

LINES = 10000  # of a batch; even, so that it never parts the two sides of a pair
WORDS = 100_000  # that are known by heart


def check_unknown(unknown: Mapping[str, int], tokens: Mapping[str, int], most: float) -> None:
    """Raise InputError where more than ``most`` percent of a text's tokens are the unknown word, given how
    many each text (its name) has."""
    for name, number in unknown.items():
        if number > most / 100 * tokens[name]:
            raise InputError(
                f"{name}: {share_unknown(number, tokens[name])}: is the text in another language, or the "
                f"dictionary of another encoding? --max-unknown {math.ceil(100 * number / tokens[name])} "
                "takes it as it is"
            )


def share_unknown(unknown: int, tokens: int) -> str:
    """In words."""
    return f"{unknown:,} of {tokens:,} tokens unknown ({100 * unknown / max(tokens, 1):.2g} %)"


class Encoder:
    """
    Args:
        encode: lines -> numbers of the pieces of each.
        pieces: what these stand for -> the number; there may be more of them when more text is encoded.
    """

    def __init__(
        self, encode: Callable[[Iterable[str]], Iterable[List[int]]], pieces: Dict[str, int]
    ) -> None:
        self._encode, self.pieces = encode, pieces

    def encode(self, lines: Iterable[str]) -> Iterator[Encoded]:
        """Batches of ``LINES`` lines, in order; an empty line has no pieces."""
        encoded = iter(self._encode(lines))
        return map(flat, iter(lambda: list(islice(encoded, LINES)), []))

    def add(self, piece: str) -> int:
        """The number of one more ``piece``, which stands between texts, as no text is encoded with it."""
        return self.pieces.setdefault(piece, len(self.pieces))

    def table(self, dictionary: Dictionary) -> np.ndarray:
        """Index in ``dictionary`` of every piece; fairseq's unknown word where it has none."""
        return np.array([dictionary.index(piece) for piece in self.pieces], dtype=np.int64)


def counts_of(encoder: Encoder, texts: Sequence[EncodedText]) -> Dict[str, int]:
    """How often the pieces occur in texts that ``encoder`` encoded; those that do not are left out."""
    counts = np.zeros(len(encoder.pieces), dtype=np.int64)
    for text in texts:
        counts[: len(text.counts)] += text.counts
    return {piece: count for piece, count in zip(encoder.pieces, counts.tolist()) if count}


def _by_words(encode: Callable[[str], List[int]], pieces: Dict[str, int]) -> Encoder:
    """Each word is encoded once: for encodings none of whose pieces goes beyond a word."""
    known = lru_cache(maxsize=WORDS)(encode)
    return Encoder(
        lambda lines: (list(chain.from_iterable(map(known, line.split()))) for line in lines), pieces
    )


def sentencepiece_encoder(model: Path) -> Encoder:
    """Plain text, by a model of :func:`luna_fairseq.text.joint_bpe.learn_bpe`."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return _by_words(processor.encode, _pieces(processor))


def foreign_sentencepiece_encoder(model: Path, workers: int) -> Encoder:
    """Plain text, by any model of sentencepiece: its pieces may go beyond words."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    encode = partial(processor.encode, num_threads=workers)
    return Encoder(partial(map_batches, encode, workers=1), _pieces(processor))


def subword_nmt_encoder(codes: Path) -> Encoder:
    """Tokenised text, by subword-nmt's file of merges."""
    with codes.open(encoding="utf-8") as file:
        merges = import_package("subword_nmt.apply_bpe").BPE(file)
    merges.cache = _Nothing()
    return _numbered(lambda word: merges.segment_tokens([word]))


class _Nothing(Dict[str, Any]):
    """A memory of words that keeps none: subword-nmt's own would keep all."""

    def __setitem__(self, word: str, pieces: Any) -> None:
        pass


def words_encoder() -> Encoder:
    """Text that is tokenised already: the words between spaces."""
    return _numbered(lambda word: [word])


def _numbered(segment: Callable[[str], List[str]]) -> Encoder:
    """Pieces are numbered as they come."""
    numbers: Dict[str, int] = {}

    def encode(word: str) -> List[int]:
        return [numbers.setdefault(piece, len(numbers)) for piece in segment(word)]

    return _by_words(encode, numbers)


def gpt2_encoder(encoder_json: Path, vocab_bpe: Path, workers: int) -> Encoder:
    """Plain text, by GPT-2's two files; the pieces are numbers, as fairseq writes them."""
    most = max(map(int, gpt2_pieces(encoder_json)))
    pieces = {str(number): number for number in range(most + 1)}
    encode = partial(_gpt2_lines, str(encoder_json), str(vocab_bpe))
    return Encoder(partial(map_batches, encode, workers=workers), pieces)


def gpt2_pieces(encoder_json: Path) -> List[str]:
    """The numbers of all pieces, as text. Raises InputError where the file is missing or is no table of
    pieces."""
    try:
        table: Dict[str, int] = json.loads(regular_file(encoder_json).read_text(encoding="utf-8"))
        return [str(number) for number in sorted(table.values())]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{encoder_json} is not GPT-2's encoder.json: {error}") from error


def _pieces(processor: sentencepiece.SentencePieceProcessor) -> Dict[str, int]:
    return {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}


def _gpt2_lines(encoder_json: str, vocab_bpe: str, lines: List[str]) -> List[List[int]]:
    return [_gpt2(encoder_json, vocab_bpe).encode(line) for line in lines]


_gpt2 = lru_cache(maxsize=1)(get_encoder)
