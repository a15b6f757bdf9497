"""A joint byte-pair encoding of tokenised text, by subword-nmt, whose ``@@`` says that a word goes on."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from itertools import chain
from typing import Iterable

from luna_fairseq.errors import InputError
from luna_fairseq.progress import is_shown
from luna_fairseq.requirements import import_package


def learn_merges(lines: Iterable[str], merges: int) -> bytes:
    """Learn merges of character sequences.

    Args:
        lines: the training text, both languages; all its different words are in memory.
        merges: how many merges to learn.

    Returns:
        The contents of a subword-nmt code file.

    Raises:
        InputError: the text does not give so many merges (subword-nmt wants each pair at least twice).
    """
    words = Counter(chain.from_iterable(map(str.split, lines)))
    if all(len(word) == 1 for word in words):
        raise InputError(
            "the training text has no words of more than one character: there is nothing to merge"
        )
    codes = io.StringIO()
    # subword-nmt draws its progress bar into log files, too.
    quiet = contextlib.nullcontext() if is_shown() else contextlib.redirect_stderr(io.StringIO())
    with quiet:
        import_package("subword_nmt.learn_bpe").learn_bpe(
            [f"{word} {count}" for word, count in words.items()], codes, merges, is_dict=True
        )
    learnt = codes.getvalue().count("\n") - 1
    if learnt < merges:
        raise InputError(
            f"--vocab-size {merges} is too large for this training text: it gives {learnt} merges"
        )
    return codes.getvalue().encode("utf-8")
