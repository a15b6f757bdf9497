"""Which tokenizer belongs to a dictionary: its files beside the data, and what is no text for it."""

import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files

MASK = "<mask>"
_LANGUAGE = re.compile(r"__[a-z_A-Z]+__|\[[a-z]+_[A-Z]+\]|<lang:\w+>")
SPACE = "\u2581"  # sentencepiece's, before the pieces that begin a word


def folders_of(model_name_or_path: Any, data_name_or_path: Any) -> List[Path]:
    """Where ``from_pretrained`` looks for a tokenizer: beside the checkpoint and beside the dictionaries.

    Raises:
        InputError: one of them does not exist (an address, which fairseq downloads, need not).
    """
    folder, data = Path(str(model_name_or_path)), str(data_name_or_path)
    folders = [folder, folder / data if data.startswith(".") else Path(data)]
    for path, what in zip(folders, ("checkpoint", "dictionaries")):
        if not path.exists() and "://" not in f"{model_name_or_path} {data}":
            raise InputError(f"{path} does not exist: give from_pretrained the folder of the {what}")
    return folders


def encoding_of(dictionary: Dictionary) -> Optional[str]:
    """fairseq's name of the encoding whose pieces the dictionary holds; None where it holds words."""
    symbols = [s for s in dictionary.symbols[dictionary.nspecial :] if not is_filler(s)]
    if any(symbol.startswith(SPACE) for symbol in symbols):
        return "sentencepiece"
    if any(symbol.endswith("@@") for symbol in symbols):
        return "subword_nmt"
    return "gpt2" if symbols and all(symbol.isdigit() for symbol in symbols) else None


def check_encoded(text: str, dictionary: Dictionary) -> None:
    """Raise InputError when ``text`` is plain and the dictionary of pieces: its words are unknown to it.

    Text that is encoded already may be given: pieces between spaces.
    """
    encoding = encoding_of(dictionary)
    words = text.split()
    unknown = any(dictionary.index(word) == dictionary.unk() for word in words)
    plain = not any(word.startswith(SPACE) for word in words) if encoding == "sentencepiece" else unknown
    if encoding is not None and words and plain:
        raise InputError(
            f"the dictionary holds pieces of {encoding}, and no tokenizer was found beside the checkpoint or "
            f"the data: give from_pretrained bpe={encoding!r} and its files, or put them there"
        )


def find_tokenizer(folders: Sequence[Path]) -> Dict[str, str]:
    """fairseq's options for the tokenizer whose files are in the first of ``folders`` that has some; or
    none."""
    for folder in folders:
        model = folder / "sentencepiece.bpe.model"
        encoder, merges = folder / "encoder.json", folder / "vocab.bpe"
        if model.is_file():
            check_files(model)
            return {"bpe": "sentencepiece", "sentencepiece_model": str(model)}
        if encoder.is_file() and merges.is_file():
            return {"bpe": "gpt2", "gpt2_encoder_json": str(encoder), "gpt2_vocab_bpe": str(merges)}
    return {}


def check_tokenizer(bpe: Any, *dictionaries: Dictionary) -> None:
    """Raise InputError when ``bpe``, of sentencepiece or GPT-2, has other pieces than the ``dictionaries``.

    Pieces that the training text did not contain may be missing from the dictionaries.
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
    too_large = hasattr(bpe, "sp") and len(symbols) < 0.9 * len(pieces) - special
    if unknown or too_large:
        example = f"for example {unknown[0]!r} is no piece of it" if unknown else "it has many more pieces"
        raise InputError(
            f"the tokenizer ({len(pieces):,} pieces) is not the one of the dictionary ({len(symbols):,} "
            f"symbols): {example}; give the tokenizer with which the data was prepared"
        )


def is_filler(symbol: str) -> bool:
    """Whether a symbol of a dictionary stands for no text: the mask, a language (fairseq's ``__en__``,
    ``[en_XX]``, ``<lang:en>``), or one that only fills it up."""
    return symbol == MASK or symbol.startswith("madeupword") or _LANGUAGE.fullmatch(symbol) is not None
