"""A joint byte-pair encoding of two languages, by sentencepiece, and fairseq's dictionary of its pieces."""

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
from luna_fairseq.text.dictionaries import dictionary_of

# The number is stored in the model file, so a constant one makes the file reproducible on any machine.
LEARNING_THREADS = 4
LONGEST_LINE_BYTES = 2**30  # sentencepiece's limit; by default it skips lines beyond 4,192 bytes
MOST_WORDS = 250_000  # that are frequent, and as many others; 32,000 pieces are learnt from far fewer
_OWN_SYMBOLS = re.compile("(<unk|<s|</s)>")


def learn_bpe(lines: Iterable[str], vocab_size: int) -> bytes:
    """Learn a byte-pair encoding.

    Text is encoded as it is: all its characters are covered and none is normalised, save that every run of
    white space, of whatever kind, is one space. Decoding gives the text back up to white space.

    Args:
        lines: the training text, both languages; up to half a million different words are in memory.
        vocab_size: number of pieces, with the three special ones of sentencepiece.

    Returns:
        The model, as the contents of a sentencepiece model file.

    Raises:
        InputError: the text does not fit the vocabulary size.
    """
    words = count_words(lines)
    model = io.BytesIO()
    with _temporary_current_folder():
        rules = Path("whitespace.tsv")
        rules.write_text(_whitespace_rules(), encoding="ascii")
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{_broken(word)}\t{count}" for word, count in words.items()),
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
    """How often each word occurs. Of more than 2 ``most`` different words the ``most`` frequent so far are
    kept, and of the others the characters, as words of one: so memory does not grow with the text."""
    words: Counter = Counter()
    for line in lines:
        words.update(line.split())
        if len(words) > 2 * most:
            frequent = Counter(dict(words.most_common(most)))
            rare_characters = set().union(*(words.keys() - frequent.keys())).difference(*frequent)
            words = frequent + Counter(sorted(rare_characters))
    return words


def _broken(line: str) -> str:
    """The line with a space in what looks like one of sentencepiece's own symbols, from which it would learn
    nothing, not even characters that stand nowhere else."""
    return _OWN_SYMBOLS.sub(r"\1 >", line) if "<" in line else line


@contextmanager
def _temporary_current_folder() -> Iterator[None]:
    """The path of the rules is stored in the model file: a relative one makes the file reproducible."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _whitespace_rules() -> str:
    """fairseq splits at every kind of white space, sentencepiece at spaces alone: make all of it spaces."""
    kinds = (code for code in range(sys.maxunicode + 1) if chr(code).isspace() and chr(code) not in " \n")
    return "".join(f"{code:X}\t20\n" for code in kinds)


def _explain(message: str, vocab_size: int) -> str:
    too_high = re.search(r"Please set it to a value <= (\d+)", message)
    size = f"--vocab-size {vocab_size} is too"
    if too_high:
        return f"{size} large for this training text: the most it gives is {too_high[1]}"
    too_low = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_low:
        return f"{size} small: the training text has {too_low[1]} different characters"
    return f"sentencepiece cannot learn from this text: {message}"


def bpe_dictionary(model: Path, counts: Mapping[str, int], separators: Sequence[str] = ()) -> Dictionary:
    """The dictionary of all pieces of a sentencepiece model's file, and of ``separators``, which it does not
    know; see :func:`dictionary_of`."""
    known = sentencepiece.SentencePieceProcessor(model_file=str(model))
    special = known.is_control, known.is_unknown, known.is_unused
    plain = [i for i in range(known.get_piece_size()) if not any(is_one(i) for is_one in special)]
    return dictionary_of([*known.id_to_piece(plain), *separators], counts)
