"""Joint byte-pair encoding of two languages, learned with sentencepiece, and its fairseq dictionary."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Iterable, Iterator, List, Mapping, Sequence
from zlib import crc32

import sentencepiece

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.text.dictionaries import build_dictionary

# The model file stores this number. A constant makes the file reproducible on any machine.
LEARNING_THREADS = 4
LONGEST_LINE_BYTES = 2**30  # sentencepiece's limit; by default, it skips lines beyond 4,192 bytes
# Number of frequent words that are counted exactly. 32,000 pieces are learned from far fewer words.
MAX_WORDS = 250_000
# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese.
_UNSEGMENTED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_LONGEST_UNSEGMENTED_WORD = 16
_CHECKSUMS = 2**32
_SENTENCEPIECE_SYMBOLS = re.compile("(<unk|<s|</s)>")


def learn_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Learn a byte-pair encoding from plain text with sentencepiece, and return the contents of a model file.

    The encoding covers all characters and does not normalize text, except that runs of whitespace are
    collapsed into one space. Decoding therefore restores the text except for whitespace. ``vocab_size``
    includes sentencepiece's three special symbols.
    """
    words = count_words(lines)
    model = io.BytesIO()
    with _temporary_working_folder():
        rules = Path("whitespace.tsv")
        # fairseq splits text at every whitespace character, but sentencepiece only at spaces.
        other_spaces = (x for x in map(chr, range(sys.maxunicode + 1)) if x.isspace() and x not in " \n")
        rules.write_text("".join(f"{ord(x):X}\t20\n" for x in other_spaces), encoding="ascii")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(
                    f"{_break_special_symbols(word)}\t{count}" for word, count in words.items()
                ),
                input_format="tsv",
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                character_coverage=1.0,
                normalization_rule_tsv=str(rules),
                max_sentence_length=LONGEST_LINE_BYTES,
                num_threads=LEARNING_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise InputError(_explain_error(str(error), vocab_size)) from error
    return model.getvalue()


def count_words(lines: Iterable[str], max_words: int = MAX_WORDS) -> Counter:
    """Count the words of a text, with a bounded number of words in memory.

    Whenever the number of distinct words exceeds ``2 * max_words``, only the ``max_words`` most frequent
    words are kept. Characters that occur only in discarded words are kept as one-character words, so that the
    encoding covers them.

    In a script without spaces, a whole sentence is a word and occurs once. A random sample of such sentences
    takes up to half of the ``max_words``, and its counts are multiplied by the inverse of the sampling rate.
    The sample consists of the sentences with the smallest checksums, so it is the same in each run.
    """
    words: Counter = Counter()
    bound = _CHECKSUMS
    for line in lines:
        words.update(line.split())
        if len(words) > 2 * max_words:
            checksums = sorted(_checksum(word) for word in words if _is_sentence(word))
            if len(checksums) > max_words // 2:
                bound = min(bound, checksums[max_words // 2])
            words = _keep_frequent(words, max_words, bound)
    if bound < _CHECKSUMS:
        words = _keep_frequent(words, len(words), bound)  # sentences since the last time
        for word in filter(_is_sentence, words):
            words[word] = round(words[word] * _CHECKSUMS / bound)
    return words


def _keep_frequent(words: Counter, max_words: int, bound: int) -> Counter:
    """Return the sentences with checksums below ``bound``, and the most frequent words, ``max_words`` in all.

    The characters of discarded words are kept as one-character words.
    """
    sentences = {
        word: count for word, count in words.items() if _is_sentence(word) and _checksum(word) < bound
    }
    others = Counter({word: count for word, count in words.items() if not _is_sentence(word)})
    kept = Counter({**dict(others.most_common(max_words - len(sentences))), **sentences})
    rare_characters = set().union(*(words.keys() - kept.keys())).difference(*kept)
    return kept + Counter(sorted(rare_characters))


def _is_sentence(word: str) -> bool:
    """Return True if a word is probably a sentence of a language that is written without spaces."""
    return len(word) > _LONGEST_UNSEGMENTED_WORD and _UNSEGMENTED.search(word) is not None


def _checksum(word: str) -> int:
    return crc32(word.encode("utf-8"))


def _break_special_symbols(line: str) -> str:
    """Insert spaces so that sentencepiece does not read text as special symbols: ``<s>`` becomes ``<s >``."""
    # sentencepiece skips such text and does not learn characters that occur nowhere else.
    return _SENTENCEPIECE_SYMBOLS.sub(r"\1 >", line) if "<" in line else line


@contextmanager
def _temporary_working_folder() -> Iterator[None]:
    """Context manager that changes the working directory to a temporary folder.

    sentencepiece stores the path of the normalization rules in the model file. With a relative path, equal
    text gives an identical model file.
    """
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _explain_error(message: str, vocab_size: int) -> str:
    """Translate an error message of sentencepiece into advice on ``--vocab-size``."""
    too_high = re.search(r"Please set it to a value <= (\d+)", message)
    if too_high:
        return (
            f"--vocab-size {vocab_size} is too large for this training text. Use at most --vocab-size "
            f"{too_high[1]}."
        )
    too_low = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_low:
        return (
            f"--vocab-size {vocab_size} is too small: the training text has {too_low[1]} different "
            "characters. Use a larger value."
        )
    return f"sentencepiece cannot learn from this text: {message}"


def bpe_dictionary(model: Path, counts: Mapping[str, int], separators: Sequence[str] = ()) -> Dictionary:
    """Build a fairseq dictionary of a sentencepiece model's subwords and ``separators`` such as ``<sep>``.

    ``counts`` maps each subword to its frequency in the training text.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return build_dictionary([*ordinary_pieces(processor), *separators], counts)


def ordinary_pieces(processor: sentencepiece.SentencePieceProcessor) -> List[str]:
    """Return a sentencepiece model's pieces except control, unknown and unused pieces, in model order."""
    special = processor.is_control, processor.is_unknown, processor.is_unused
    ordinary = [i for i in range(processor.get_piece_size()) if not any(is_kind(i) for is_kind in special)]
    return processor.id_to_piece(ordinary)
