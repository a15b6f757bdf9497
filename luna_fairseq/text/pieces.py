"""Plain text where a dictionary holds pieces: refused, since its words would be unknown without a word."""

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
