"""Encoders that convert lines of text to token IDs: sentencepiece, subword-nmt, GPT-2 and whole words."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import sentencepiece

from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from luna_fairseq.errors import InputError
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.files.writing import replacing
from luna_fairseq.requirements import import_package
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.indexed import Encoded, EncodedText, flatten_sentences

LINES = 10000  # lines per batch; an even number keeps the two sides of a pair together
WORDS = 100_000  # number of words whose pieces are cached


def check_unknown(unknown: Mapping[str, int], tokens: Mapping[str, int], max_percent: float) -> None:
    """Raise InputError if more than ``max_percent`` percent of the tokens of a text are unknown.

    ``unknown`` and ``tokens`` map the name of each text to the numbers of unknown tokens and of all tokens.
    """
    for name, number in unknown.items():
        if number > max_percent / 100 * tokens[name]:
            raise InputError(
                f"{name}: {describe_unknown(number, tokens[name])}. Check the language of the text and the "
                f"encoding of the dictionary, or use --max-unknown {math.ceil(100 * number / tokens[name])}."
            )


def describe_unknown(unknown: int, tokens: int) -> str:
    """Format the number of unknown tokens, such as "3 of 1,200 tokens unknown (0.25 %)"."""
    return f"{unknown:,} of {tokens:,} tokens unknown ({100 * unknown / max(tokens, 1):.2g} %)"


def print_unknown(name: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print how many tokens of the text ``name`` are unknown, if any.

    ``counts`` maps "unknown" and "tokens" to the numbers of such tokens in each text, keyed by text name.
    """
    if counts["unknown"][name]:
        print(f"{name}: {describe_unknown(counts['unknown'][name], counts['tokens'][name])}")


class Encoder:
    """Tokenizer that converts lines of text to the IDs of their pieces, which are subwords or words.

    Args:
        encode: function that maps an iterable of lines to an iterable of lists of piece IDs.
        pieces: mapping from a piece to its ID, sorted by ID. Some encoders add a piece when it first occurs.

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
        """Yield (concatenated piece IDs [N], line lengths [B]) in batches of up to 10,000 lines."""
        encoded = iter(self._encode(lines))
        return map(flatten_sentences, iter(lambda: list(islice(encoded, LINES)), []))

    def add(self, piece: str) -> int:
        """Add a piece that occurs in no text, such as a sentence separator, and return its ID."""
        return self.pieces.setdefault(piece, len(self.pieces))

    def dictionary_indices(self, dictionary: Dictionary) -> np.ndarray:
        """Return an array that maps each piece ID to its index in a dictionary, or to the unknown token."""
        return np.array([dictionary.index(piece) for piece in self.pieces], dtype=np.int64)


def count_pieces(encoder: Encoder, texts: Sequence[EncodedText]) -> Dict[str, int]:
    """Return the total frequency of each piece in several texts. Pieces that do not occur are omitted."""
    counts = np.zeros(len(encoder.pieces), dtype=np.int64)
    for text in texts:
        counts[: len(text.counts)] += text.counts
    return {piece: count for piece, count in zip(encoder.pieces, counts.tolist()) if count}


def write_texts(
    texts: Sequence[Tuple[str, EncodedText, Path, Dictionary]],
    dictionaries: Mapping[Path, Dictionary],
    encoder: Encoder,
    max_unknown: float = 100.0,
) -> Dict[str, Counter]:
    """Write encoded texts in fairseq's binary format, and return the token counts of each text.

    Each item of ``texts`` is a tuple (name, text, path without suffix, dictionary). Parts of a text have the
    same name. ``dictionaries`` are written too, keyed by path. Old texts are deleted first, so that an
    interruption leaves no mixture to train on. The counters are "tokens", "unknown" and "longest" (tokens in
    the longest line), keyed by name.

    Raises InputError if more than ``max_unknown`` percent of the tokens are unknown.
    """
    used = {id(dictionary): dictionary for _, _, _, dictionary in texts}
    tables = {key: encoder.dictionary_indices(words) for key, words in used.items()}
    counts: Dict[str, Counter] = {kind: Counter() for kind in ("tokens", "unknown", "longest")}
    for name, text, _, dictionary in texts:
        counts["tokens"][name] += text.tokens
        counts["unknown"][name] += text.unknown(tables[id(dictionary)], dictionary)
        counts["longest"][name] = max(counts["longest"][name], text.longest)
    check_unknown(counts["unknown"], counts["tokens"], max_unknown)
    for _, _, path, _ in texts:
        for ending in ("bin", "idx"):
            Path(f"{path}.{ending}").unlink(missing_ok=True)
    for path, dictionary in dictionaries.items():
        with replacing(path) as temporary:
            dictionary.save(str(temporary))
    for _, text, path, dictionary in texts:
        text.write(path, tables[id(dictionary)], dictionary)
    return counts


def _word_encoder(encode: Callable[[str], List[int]], pieces: Dict[str, int]) -> Encoder:
    """Build an encoder that splits lines at spaces, encodes words with ``encode`` and caches the results."""
    cached = lru_cache(maxsize=WORDS)(encode)
    return Encoder(
        lambda lines: (list(chain.from_iterable(map(cached, line.split()))) for line in lines), pieces
    )


def sentencepiece_encoder(model: Path) -> Encoder:
    """Build an encoder of plain text from a sentencepiece model whose pieces do not cross word boundaries."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return _word_encoder(processor.encode, _sentencepiece_pieces(processor))


def sentencepiece_line_encoder(model: Path, workers: int) -> Encoder:
    """Build an encoder with ``workers`` threads from a sentencepiece model whose pieces may span words."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    encode = partial(processor.encode, num_threads=workers)
    return Encoder(partial(map_batches, encode, workers=1), _sentencepiece_pieces(processor))


def subword_nmt_encoder(codes: Path) -> Encoder:
    """Build an encoder of tokenized text from a codes file (BPE merges) of subword-nmt."""
    with codes.open(encoding="utf-8") as file:
        merges = import_package("subword_nmt.apply_bpe").BPE(file)
    merges.cache = _DisabledCache()
    return _numbering_encoder(lambda word: merges.segment_tokens([word]))


class _DisabledCache(Dict[str, Any]):
    """Dictionary that ignores new entries, because subword-nmt's own cache would grow without bound."""

    def __setitem__(self, word: str, pieces: Any) -> None:
        pass


def words_encoder() -> Encoder:
    """Build an encoder of tokenized text whose pieces are whole words."""
    return _numbering_encoder(lambda word: [word])


def _numbering_encoder(segment: Callable[[str], List[str]]) -> Encoder:
    """Build an encoder from a function that splits words into pieces. IDs are in order of appearance."""
    numbers: Dict[str, int] = {}

    def encode(word: str) -> List[int]:
        return [numbers.setdefault(piece, len(numbers)) for piece in segment(word)]

    return _word_encoder(encode, numbers)


def gpt2_encoder(encoder_json: Path, vocab_bpe: Path, workers: int) -> Encoder:
    """Build an encoder of plain text that runs in ``workers`` processes, from GPT-2's BPE files.

    As in fairseq's RoBERTa data, the dictionary symbol of a token is its ID, such as "464" for "The".
    """
    largest = max(map(int, gpt2_symbols(encoder_json)))
    pieces = {str(number): number for number in range(largest + 1)}
    encode = partial(_encode_gpt2_lines, str(encoder_json), str(vocab_bpe))
    return Encoder(partial(map_batches, encode, workers=workers), pieces)


def gpt2_symbols(encoder_json: Path) -> List[str]:
    """Return GPT-2's token IDs as strings, "0" to "50256". fairseq uses them as dictionary symbols."""
    try:
        table: Dict[str, int] = json.loads(require_regular_file(encoder_json).read_text(encoding="utf-8"))
        return [str(number) for number in sorted(table.values())]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{encoder_json} is not GPT-2's encoder.json: {error}") from error


def _sentencepiece_pieces(processor: sentencepiece.SentencePieceProcessor) -> Dict[str, int]:
    return {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}


def _encode_gpt2_lines(encoder_json: str, vocab_bpe: str, lines: List[str]) -> List[List[int]]:
    """Encode lines with GPT-2's byte-pair encoding. Each process loads both files only once."""
    return [_load_gpt2(encoder_json, vocab_bpe).encode(line) for line in lines]


_load_gpt2 = lru_cache(maxsize=1)(get_encoder)
