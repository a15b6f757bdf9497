"""Joint byte-pair encoding of tokenized text, learned with subword-nmt.

A subword piece that does not end a word is marked with a trailing ``@@``, as in ``walk@@ ing``.
"""

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
    """Learn a byte-pair encoding from tokenized text with subword-nmt, and return the codes file's content.

    ``merges`` is the number of merge operations. Raises InputError if the text is too small for this number,
    because only character sequences that occur at least twice are merged.
    """
    words = Counter(chain.from_iterable(map(str.split, lines)))
    if all(len(word) == 1 for word in words):
        raise InputError("The training text has only words of one character. Give another text.")
    codes = io.StringIO()
    # Without a terminal, subword-nmt would write its progress bar into log files.
    quiet = contextlib.nullcontext() if is_shown() else contextlib.redirect_stderr(io.StringIO())
    with quiet:
        import_package("subword_nmt.learn_bpe").learn_bpe(
            [f"{word} {count}" for word, count in words.items()], codes, merges, is_dict=True
        )
    learned = codes.getvalue().count("\n") - 1
    if learned < merges:
        raise InputError(
            f"--vocab-size {merges} is too large for this training text, which gives {learned} merges. Use "
            f"at most --vocab-size {learned}."
        )
    return codes.getvalue().encode("utf-8")
