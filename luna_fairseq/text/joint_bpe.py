"""Joint byte-pair encoding of two languages, learned with sentencepiece, and its dictionary for fairseq."""

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
MOST_WORDS = 250_000
_SENTENCEPIECE_SYMBOLS = re.compile("(<unk|<s|</s)>")


def learn_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Learn a byte-pair encoding from plain text.

    The encoding covers all characters and normalises none of them, except that a run of white space becomes
    one space. Decoding therefore restores the text up to white space.

    Args:
        lines: training text in both languages. Up to 500,000 distinct words are kept in memory.
        vocab_size: number of pieces, including the three special pieces of sentencepiece.

    Returns:
        Content of a sentencepiece model file.

    Raises:
        InputError: The vocabulary size does not fit the text.
    """
    words = count_words(lines)
    model = io.BytesIO()
    with _temporary_working_folder():
        rules = Path("whitespace.tsv")
        rules.write_text(_whitespace_rules(), encoding="ascii")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{_break_symbols(word)}\t{count}" for word, count in words.items()),
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
            raise InputError(_explain(str(error), vocab_size)) from error
    return model.getvalue()


def count_words(lines: Iterable[str], most: int = MOST_WORDS) -> Counter:
    """Count the words of a text in bounded memory.

    Whenever there are more than ``2 * most`` distinct words, only the ``most`` frequent ones are kept. The
    characters of the others are counted as words, so that no character is lost.

    Args:
        lines: lines of text.
        most: number of frequent words to keep (default: 250,000).

    Returns:
        Number of occurrences by word.

    Example:
        >>> count_words(["the cat", "the dog"])
        Counter({'the': 2, 'cat': 1, 'dog': 1})
    """
    words: Counter = Counter()
    for line in lines:
        words.update(line.split())
        if len(words) > 2 * most:
            frequent = Counter(dict(words.most_common(most)))
            rare_characters = set().union(*(words.keys() - frequent.keys())).difference(*frequent)
            words = frequent + Counter(sorted(rare_characters))
    return words


def _break_symbols(line: str) -> str:
    """Insert a space into text that looks like a special symbol of sentencepiece.

    sentencepiece would skip such text and would not learn characters that occur nowhere else.

    Args:
        line: line of plain text.

    Returns:
        The line, with a space inside such text.
    """
    return _SENTENCEPIECE_SYMBOLS.sub(r"\1 >", line) if "<" in line else line


@contextmanager
def _temporary_working_folder() -> Iterator[None]:
    """Context manager that changes the working directory to a temporary folder.

    The model file stores the path of the rules. A relative path makes the file reproducible.
    """
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _whitespace_rules() -> str:
    """Return normalisation rules that replace every kind of white space by a space.

    fairseq splits text at every kind of white space, but sentencepiece only at spaces.
    """
    kinds = (code for code in range(sys.maxunicode + 1) if chr(code).isspace() and chr(code) not in " \n")
    return "".join(f"{code:X}\t20\n" for code in kinds)


def _explain(message: str, vocab_size: int) -> str:
    """Translate an error message of sentencepiece into the terms of our options.

    Args:
        message: error message of sentencepiece.
        vocab_size: value of ``--vocab-size``.

    Returns:
        Error message for the user.
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
    """Build the dictionary of all pieces of a sentencepiece model.

    Args:
        model: path of the model file.
        counts: number of occurrences of each piece in the encoded training text.
        separators: further symbols, which the model does not know. Empty by default.

    Returns:
        The dictionary, with the most frequent pieces first.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    special = processor.is_control, processor.is_unknown, processor.is_unused
    ordinary = [i for i in range(processor.get_piece_size()) if not any(is_kind(i) for is_kind in special)]
    return build_dictionary([*processor.id_to_piece(ordinary), *separators], counts)
