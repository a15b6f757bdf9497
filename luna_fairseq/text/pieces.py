"""What is no text for a dictionary of pieces, plain or of another tokenizer: refused, since its words would
be unknown without a word."""

import re
from typing import Any, Optional

from luna_fairseq.errors import InputError
from luna_fairseq.text.documents import SEPARATOR

MASK = "<mask>"
_LANGUAGE = re.compile(r"__[a-z_A-Z]+__|\[[a-z]+_[A-Z]+\]|<lang:\w+>")
SPACE = "\u2581"  # sentencepiece's, before the pieces that begin a word


def encoding_of(dictionary: Any) -> Optional[str]:
    """fairseq's name of the encoding whose pieces the dictionary holds; None where it holds words."""
    symbols = [s for s in dictionary.symbols[dictionary.nspecial :] if not is_filler(s)]
    if any(symbol.startswith(SPACE) for symbol in symbols):
        return "sentencepiece"
    if any(symbol.endswith("@@") for symbol in symbols):
        return "subword_nmt"
    return "gpt2" if symbols and all(symbol.isdigit() for symbol in symbols) else None


def is_filler(symbol: str) -> bool:
    """Whether a symbol of a dictionary stands for no text: the mask, what stands between the sentences of a
    document, a language (fairseq's ``__en__``, ``[en_XX]``, ``<lang:en>``), or one that only fills it up."""
    return (
        symbol in (MASK, SEPARATOR)
        or symbol.startswith("madeupword")
        or _LANGUAGE.fullmatch(symbol) is not None
    )


def check_encoded(text: str, dictionary: Any) -> None:
    """Raise InputError when ``text`` is plain and the dictionary of pieces: its words are unknown to it.

    Text that is encoded already may be given: pieces between spaces.
    """
    encoding = encoding_of(dictionary)
    words = text.split()
    unknown = any(dictionary.index(word) == dictionary.unk() for word in words)
    plain = not any(word.startswith(SPACE) for word in words) if encoding == "sentencepiece" else unknown
    if encoding is not None and words and plain:
        raise InputError(
            f"the dictionary holds pieces of {encoding}, and the text is plain: give --bpe {encoding} and "
            f"its files (from_pretrained: bpe={encoding!r}, or put them beside the checkpoint or the data)"
        )


def check_tokenizer(bpe: Any, *dictionaries: Any, strict: bool = True) -> None:
    """Raise InputError when ``bpe``, of sentencepiece or GPT-2, has other pieces than the ``dictionaries``.

    Pieces that the training text did not contain may be missing from the dictionaries; unless ``strict``, a
    tenth of the dictionaries may be something else than pieces, and they may be of the frequent ones alone.
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
    # Of a smaller vocabulary's encoding all pieces may be in a larger one's, which then has many more.
    too_large = strict and hasattr(bpe, "sp") and len(symbols) < 0.9 * len(pieces) - special
    if len(unknown) > (0 if strict else len(symbols) // 10) or too_large:
        example = f"for example {unknown[0]!r} is no piece of it" if unknown else "it has many more pieces"
        raise InputError(
            f"the tokenizer ({len(pieces):,} pieces) is not the one of the dictionary ({len(symbols):,} "
            f"symbols): {example}; give the tokenizer with which the data was prepared"
        )
