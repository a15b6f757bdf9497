"""Encoders from lines of text to numbers of subword pieces: sentencepiece, subword-nmt, GPT-2 and words."""

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
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.requirements import import_package
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.indexed import Encoded, EncodedText, flatten_sentences

LINES = 10000  # lines of a batch; an even number keeps the two sides of a pair together
WORDS = 100_000  # number of words whose pieces are cached


def check_unknown(unknown: Mapping[str, int], tokens: Mapping[str, int], most: float) -> None:
    """Check that few tokens of each text are unknown.

    Args:
        unknown: number of unknown tokens of each text, by the name of the text.
        tokens: number of all tokens of each text, by the name of the text.
        most: maximum percentage of unknown tokens.

    Raises:
        InputError: A text has a larger percentage of unknown tokens.
    """
    for name, number in unknown.items():
        if number > most / 100 * tokens[name]:
            raise InputError(
                f"{name}: {share_unknown(number, tokens[name])}. Check the language of the text and the "
                f"encoding of the dictionary, or use --max-unknown {math.ceil(100 * number / tokens[name])}."
            )


def share_unknown(unknown: int, tokens: int) -> str:
    """Describe the share of unknown tokens.

    Args:
        unknown: number of unknown tokens.
        tokens: number of all tokens.

    Returns:
        Text with the number and the percentage of unknown tokens.

    Example:
        >>> share_unknown(3, 1200)
        '3 of 1,200 tokens unknown (0.25 %)'
    """
    return f"{unknown:,} of {tokens:,} tokens unknown ({100 * unknown / max(tokens, 1):.2g} %)"


class Encoder:
    """Encoder from lines of text to numbers of pieces.

    Args:
        encode: function from lines to the piece numbers of each line.
        pieces: number of each piece. Encoders that number pieces by first occurrence add to this dict while
            they encode.

    Attributes:
        pieces: number of each piece, in increasing order of the numbers.

    Example:
        >>> encoder = words_encoder()
        >>> list(encoder.encode(["the cat", "a cat"]))
        [(array([0, 1, 2, 1], dtype=int32), array([2, 2], dtype=int32))]
        >>> encoder.pieces
        {'the': 0, 'cat': 1, 'a': 2}
    """

    def __init__(
        self, encode: Callable[[Iterable[str]], Iterable[List[int]]], pieces: Dict[str, int]
    ) -> None:
        self._encode, self.pieces = encode, pieces

    def encode(self, lines: Iterable[str]) -> Iterator[Encoded]:
        """Encode lines in batches.

        Args:
            lines: lines of text. An empty line has no pieces.

        Yields:
            Piece numbers [N] and line lengths [B] of up to 10,000 lines at a time.
        """
        encoded = iter(self._encode(lines))
        return map(flatten_sentences, iter(lambda: list(islice(encoded, LINES)), []))

    def add(self, piece: str) -> int:
        """Add a piece that no text contains, such as a separator.

        Args:
            piece: the piece.

        Returns:
            The number of the piece.
        """
        return self.pieces.setdefault(piece, len(self.pieces))

    def table(self, dictionary: Dictionary) -> np.ndarray:
        """Return the dictionary index of every piece [number of pieces].

        Args:
            dictionary: fairseq's dictionary. Pieces that it lacks get the index of the unknown word.
        """
        return np.array([dictionary.index(piece) for piece in self.pieces], dtype=np.int64)


def count_pieces(encoder: Encoder, texts: Sequence[EncodedText]) -> Dict[str, int]:
    """Count the occurrences of each piece in encoded texts.

    Args:
        encoder: encoder of the texts.
        texts: encoded texts.

    Returns:
        Number of occurrences by piece, without the pieces that do not occur.
    """
    counts = np.zeros(len(encoder.pieces), dtype=np.int64)
    for text in texts:
        counts[: len(text.counts)] += text.counts
    return {piece: count for piece, count in zip(encoder.pieces, counts.tolist()) if count}


def _word_encoder(encode: Callable[[str], List[int]], pieces: Dict[str, int]) -> Encoder:
    """Build an encoder that encodes each word separately and caches the result.

    Args:
        encode: function from a word to its piece numbers.
        pieces: number of each piece. No piece may span several words.
    """
    cached = lru_cache(maxsize=WORDS)(encode)
    return Encoder(
        lambda lines: (list(chain.from_iterable(map(cached, line.split()))) for line in lines), pieces
    )


def sentencepiece_encoder(model: Path) -> Encoder:
    """Build an encoder of plain text from a model of :func:`luna_fairseq.text.joint_bpe.learn_bpe`.

    Args:
        model: path of the model file. None of its pieces spans several words.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return _word_encoder(processor.encode, _sentencepiece_pieces(processor))


def foreign_sentencepiece_encoder(model: Path, workers: int) -> Encoder:
    """Build an encoder of plain text from any sentencepiece model.

    Pieces may span several words, so whole lines are encoded.

    Args:
        model: path of the model file.
        workers: number of threads.

    Returns:
        The encoder.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    encode = partial(processor.encode, num_threads=workers)
    return Encoder(partial(map_batches, encode, workers=1), _sentencepiece_pieces(processor))


def subword_nmt_encoder(codes: Path) -> Encoder:
    """Build an encoder of tokenised text from a code file of subword-nmt.

    Args:
        codes: path of the code file.
    """
    with codes.open(encoding="utf-8") as file:
        merges = import_package("subword_nmt.apply_bpe").BPE(file)
    merges.cache = _DisabledCache()
    return _numbering_encoder(lambda word: merges.segment_tokens([word]))


class _DisabledCache(Dict[str, Any]):
    """Dict that ignores new entries. It replaces subword-nmt's cache, which grows without limit."""

    def __setitem__(self, word: str, pieces: Any) -> None:
        pass


def words_encoder() -> Encoder:
    """Build an encoder of tokenised text whose pieces are the words between spaces."""
    return _numbering_encoder(lambda word: [word])


def _numbering_encoder(segment: Callable[[str], List[str]]) -> Encoder:
    """Build an encoder that numbers pieces in the order of their first occurrence.

    Args:
        segment: function from a word to its pieces.

    Returns:
        The encoder.
    """
    numbers: Dict[str, int] = {}

    def encode(word: str) -> List[int]:
        return [numbers.setdefault(piece, len(numbers)) for piece in segment(word)]

    return _word_encoder(encode, numbers)


def gpt2_encoder(encoder_json: Path, vocab_bpe: Path, workers: int) -> Encoder:
    """Build an encoder of plain text from the two files of GPT-2.

    Pieces are named by their numbers, as in fairseq's data.

    Args:
        encoder_json: path of encoder.json, the table of pieces.
        vocab_bpe: path of vocab.bpe, the list of merges.
        workers: number of processes.

    Raises:
        InputError: ``encoder_json`` is missing or not a table of pieces.
    """
    largest = max(map(int, gpt2_pieces(encoder_json)))
    pieces = {str(number): number for number in range(largest + 1)}
    encode = partial(_encode_gpt2_lines, str(encoder_json), str(vocab_bpe))
    return Encoder(partial(map_batches, encode, workers=workers), pieces)


def gpt2_pieces(encoder_json: Path) -> List[str]:
    """Return the numbers of all pieces of GPT-2, as text.

    Args:
        encoder_json: path of encoder.json.

    Raises:
        InputError: The file is missing or not a table of pieces.
    """
    try:
        table: Dict[str, int] = json.loads(require_regular_file(encoder_json).read_text(encoding="utf-8"))
        return [str(number) for number in sorted(table.values())]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{encoder_json} is not GPT-2's encoder.json: {error}") from error


def _sentencepiece_pieces(processor: sentencepiece.SentencePieceProcessor) -> Dict[str, int]:
    return {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}


def _encode_gpt2_lines(encoder_json: str, vocab_bpe: str, lines: List[str]) -> List[List[int]]:
    """Encode lines in a worker process, which loads the two files once.

    Args:
        encoder_json: path of ``encoder.json``.
        vocab_bpe: path of ``vocab.bpe``.
        lines: plain text.

    Returns:
        Numbers of the pieces of each line.
    """
    return [_load_gpt2(encoder_json, vocab_bpe).encode(line) for line in lines]


_load_gpt2 = lru_cache(maxsize=1)(get_encoder)
