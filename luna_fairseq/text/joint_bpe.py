"""Learn a joint byte-pair encoding for two languages with sentencepiece, and build its fairseq dictionary."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Sequence

import sentencepiece

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.text.dictionaries import build_dictionary

# The model file stores this number. A constant makes the file reproducible on any machine.
LEARNING_THREADS = 4
LONGEST_LINE_BYTES = 2**30  # sentencepiece's limit; by default, it skips lines beyond 4,192 bytes
# Number of frequent words that are counted exactly. 32,000 pieces are learned from far fewer words.
MAX_WORDS = 250_000
_SENTENCEPIECE_SYMBOLS = re.compile("(<unk|<s|</s)>")


def learn_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Learn a byte-pair encoding from plain text with sentencepiece.

    The encoding covers all characters and does not normalize them, except that runs of whitespace are
    collapsed into one space. Decoding therefore restores the text except for whitespace.

    Args:
        lines: training text in both languages. Up to 500,000 distinct words are kept in memory.
        vocab_size: number of pieces, including the three special pieces of sentencepiece.

    Returns:
        Contents of a sentencepiece model file.

    Raises:
        InputError: The text contains too few words or too many characters for the vocabulary size.
    """
    words = count_words(lines)
    model = io.BytesIO()
    with _temporary_working_folder():
        rules = Path("whitespace.tsv")
        rules.write_text(_whitespace_rules(), encoding="ascii")
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
    """Count the words of a text in bounded memory.

    Whenever the number of distinct words exceeds ``2 * max_words``, only the ``max_words`` most frequent ones
    are kept. Characters that occur only in discarded words are kept as one-character words, so that the
    encoding covers them.

    Args:
        lines: lines of text.
        max_words: number of frequent words to keep (default: 250,000).

    Returns:
        Mapping from a word to its number of occurrences.

    Example:
        >>> count_words(["the cat", "the dog"])
        Counter({'the': 2, 'cat': 1, 'dog': 1})
    """
    words: Counter = Counter()
    for line in lines:
        words.update(line.split())
        if len(words) > 2 * max_words:
            frequent = Counter(dict(words.most_common(max_words)))
            rare_characters = set().union(*(words.keys() - frequent.keys())).difference(*frequent)
            words = frequent + Counter(sorted(rare_characters))
    return words


def _break_special_symbols(line: str) -> str:
    """Insert a space into text that looks like a special symbol of sentencepiece.

    sentencepiece skips such text and does not learn characters that occur nowhere else.

    Args:
        line: line of plain text.

    Returns:
        Line in which ``<unk>``, ``<s>`` and ``</s>`` are split before ``>``, such as ``<s >``.
    """
    return _SENTENCEPIECE_SYMBOLS.sub(r"\1 >", line) if "<" in line else line


@contextmanager
def _temporary_working_folder() -> Iterator[None]:
    """Context manager that makes a temporary folder the working directory.

    sentencepiece stores the path of the normalization rules in the model file. A relative path makes the
    model file reproducible.
    """
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _whitespace_rules() -> str:
    """Return sentencepiece normalization rules that map every whitespace character to a space.

    fairseq splits text at every whitespace character, but sentencepiece only at spaces.

    Returns:
        Contents of a rules file. Each line consists of a character code, a tab and the code of the space.
    """
    kinds = (code for code in range(sys.maxunicode + 1) if chr(code).isspace() and chr(code) not in " \n")
    return "".join(f"{code:X}\t20\n" for code in kinds)


def _explain_error(message: str, vocab_size: int) -> str:
    """Rewrite an error message of sentencepiece in terms of ``--vocab-size``.

    Args:
        message: error message of sentencepiece.
        vocab_size: value of ``--vocab-size``.

    Returns:
        Error message that says what to change.
    """
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
    """Build a dictionary of all pieces of a sentencepiece model.

    Args:
        model: path of the model file.
        counts: mapping from a piece to its number of occurrences in the training text.
        separators: additional symbols, such as ``<sep>`` (default: none).

    Returns:
        Dictionary, sorted by decreasing frequency.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    special = processor.is_control, processor.is_unknown, processor.is_unused
    ordinary = [i for i in range(processor.get_piece_size()) if not any(is_kind(i) for is_kind in special)]
    return build_dictionary([*processor.id_to_piece(ordinary), *separators], counts)
