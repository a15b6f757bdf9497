"""Checks that a text and a tokenizer match a dictionary of subwords (pieces).

Without these checks, a mismatch would silently turn most of the text into unknown words.
"""

import re
from typing import Any, Mapping, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.text.documents import SEPARATOR

MASK = "<mask>"
_LANGUAGE = re.compile(r"__[a-z_A-Z]+__|\[[a-z]+_[A-Z]+\]|<lang:\w+>")
WORD_MARK = "\u2581"  # marks the beginning of a word in sentencepiece
# Names of encoding files in a folder of prepared data. CODES has the BPE merges of subword-nmt.
SENTENCEPIECE_MODEL, CODES = "sentencepiece.bpe.model", "bpe.codes"


def detect_encoding(dictionary: Any) -> Optional[str]:
    """Detect the subword encoding of a dictionary from its symbols.

    The result is a value of ``--bpe`` ("sentencepiece", "subword_nmt" or "gpt2"), or None for whole words.
    """
    symbols = [s for s in dictionary.symbols[dictionary.nspecial :] if not is_filler(s)]
    if any(symbol.startswith(WORD_MARK) for symbol in symbols):
        return "sentencepiece"
    if any(symbol.endswith("@@") for symbol in symbols):
        return "subword_nmt"
    return "gpt2" if symbols and all(symbol.isdigit() for symbol in symbols) else None


def is_filler(symbol: str) -> bool:
    """Return True if a dictionary symbol does not represent any text.

    Such symbols are the mask, the sentence separator, language tags (``__en__``, ``[en_XX]`` or
    ``<lang:en>``), and the ``madeupword`` symbols that pad the size of a dictionary.
    """
    return (
        symbol in (MASK, SEPARATOR)
        or symbol.startswith("madeupword")
        or _LANGUAGE.fullmatch(symbol) is not None
    )


def check_encoded(text: str, dictionary: Any) -> None:
    """Raise InputError if a text seems to consist of plain words although the dictionary has subwords."""
    encoding = detect_encoding(dictionary)
    words = text.split()
    unknown = [word for word in words if dictionary.index(word) == dictionary.unk()]
    # Encoded text may contain a few unknown pieces, such as letters that the training text lacks.
    is_plain = {
        None: False,
        "sentencepiece": not any(word.startswith(WORD_MARK) for word in words),
        "subword_nmt": bool(unknown) and not any(word.endswith("@@") for word in words),
        "gpt2": not all(word.isdigit() for word in unknown),
    }[encoding]
    if words and is_plain:
        raise InputError(
            f"The dictionary contains pieces of {encoding}, but the text is plain. Give --bpe {encoding} "
            f"with its files (from_pretrained: bpe={encoding!r}), or put the files beside the checkpoint or "
            "the data."
        )


def check_tokenizer(bpe: Any, *dictionaries: Any, strict: bool = True, options: Any = None) -> None:
    """Raise InputError if a sentencepiece or GPT-2 tokenizer does not match the dictionaries.

    Every symbol of the dictionaries must be a subword of the tokenizer. The tokenizer may have a few
    additional subwords, because the training text need not contain all of them. If ``strict`` is False, up to
    a tenth of the symbols may be missing, and the number of additional subwords is not limited.

    ``options`` are the tokenizer's options. The error message names the tokenizer file that they contain.
    """
    if hasattr(bpe, "sp"):
        pieces = {bpe.sp.id_to_piece(i) for i in range(bpe.sp.get_piece_size())}
    elif hasattr(bpe, "bpe") and hasattr(bpe.bpe, "encoder"):
        pieces = set(map(str, bpe.bpe.encoder.values()))
    else:
        return
    special = dictionaries[0].nspecial
    symbols = {s: None for each in dictionaries for s in each.symbols[special:] if not is_filler(s)}
    unknown = [symbol for symbol in symbols if symbol not in pieces]
    # The pieces of a small vocabulary may all occur in a larger one, which then has many more pieces.
    is_too_large = strict and hasattr(bpe, "sp") and len(symbols) < 0.9 * len(pieces) - special
    if len(unknown) > (0 if strict else len(symbols) // 10) or is_too_large:
        example = f"it lacks {unknown[0]!r}, for example" if unknown else "it has many more pieces"
        names = ("sentencepiece_model", "gpt2_encoder_json")
        values = options if isinstance(options, Mapping) else vars(options) if options else {}
        file = "".join(f" {values[name]}" for name in names if name in values)
        raise InputError(
            f"The tokenizer{file} ({len(pieces):,} pieces) is not the one of the dictionary "
            f"({len(symbols):,} symbols): {example}. Give the tokenizer with which the data was prepared."
        )
