"""Encoding text for language models: sentencepiece's or GPT-2's pieces, in several processes, and their
dictionary."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Tuple

import sentencepiece

from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from luna_fairseq.errors import InputError
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.joint_bpe import PADDING_FACTOR

BATCH_LINES = 1000
EncodeLines = Callable[[List[str]], List[str]]


def sentencepiece_encoder(model: str) -> EncodeLines:
    """Lines to lines of pieces, by the sentencepiece model file ``model``."""
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return lambda lines: [" ".join(pieces) for pieces in processor.encode(lines, out_type=str)]


def gpt2_encoder(encoder_json: str, vocab_bpe: str) -> EncodeLines:
    """Lines to lines of piece numbers, by GPT-2's two files."""
    bpe = get_encoder(encoder_json, vocab_bpe)
    return lambda lines: [" ".join(map(str, bpe.encode(line))) for line in lines]


def words_encoder() -> EncodeLines:
    """Lines as they are: words separated by spaces."""
    return lambda lines: lines


def encode_lines(
    lines: Iterable[str], make_encoder: Callable[..., EncodeLines], files: List[str], workers: int
) -> Iterator[str]:
    """Encode ``lines`` in ``workers`` processes, in order and streaming; an empty line stays empty.

    Args:
        lines: the text
        make_encoder: :func:`sentencepiece_encoder`, :func:`gpt2_encoder` or :func:`words_encoder`
        files: its arguments
        workers: processes
    """
    encode = partial(_encode_batch, make_encoder, tuple(files))
    return map_batches(encode, lines, workers, BATCH_LINES)


@lru_cache(maxsize=1)
def _encoder(make_encoder: Callable[..., EncodeLines], files: Tuple[str, ...]) -> EncodeLines:
    return make_encoder(*files)


def _encode_batch(
    make_encoder: Callable[..., EncodeLines], files: Tuple[str, ...], lines: List[str]
) -> List[str]:
    return _encoder(make_encoder, files)(lines)


def gpt2_pieces(encoder_json: Path) -> List[str]:
    """The numbers of all pieces, as text.

    Raises:
        InputError: the file is missing or is no table of pieces
    """
    try:
        table: Dict[str, int] = json.loads(encoder_json.read_text(encoding="utf-8"))
        return [str(number) for number in sorted(table.values())]
    except OSError as error:
        raise InputError(f"cannot read {encoder_json}: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{encoder_json} is not GPT-2's encoder.json: {error}") from error


def dictionary_of(pieces: Iterable[str], counts: Mapping[str, int]) -> Dictionary:
    """fairseq's dictionary of all ``pieces``, most frequent first, padded as fairseq-preprocess pads."""
    dictionary = Dictionary()
    for piece, count in Counter({piece: counts.get(piece, 0) for piece in pieces}).most_common():
        dictionary.add_symbol(piece, n=count)
    dictionary.pad_to_multiple_(PADDING_FACTOR)
    return dictionary
