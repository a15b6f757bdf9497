"""Language codes, which may contain hyphens and dots, and the language pairs of a prepared data folder."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import List, Tuple

from luna_fairseq.errors import InputError


def check_language(option: str, language: str) -> None:
    """Raise InputError if the language code given with ``option`` is invalid in file names or options."""
    if not language or language.startswith("-") or any(c.isspace() or c in "/\\:,$" for c in language):
        raise InputError(
            f"{option} {language!r} cannot name files. Give a language code, such as en or zh-Hans."
        )


def find_language_pairs(folder: Path) -> List[Tuple[str, str]]:
    """Return the (source, target) language pairs of the training text in a data folder, in sorted order.

    The dictionaries ``dict.LANG.txt`` give the possible languages, because a file name such as
    ``train.en-zh-Hans.en.idx`` can be split in several ways.
    """
    languages = sorted(path.name[len("dict.") : -len(".txt")] for path in folder.glob("dict.*.txt"))
    return [
        (source, target)
        for source, target in permutations(languages, 2)
        if (folder / f"train.{source}-{target}.{source}.idx").is_file()
    ]
