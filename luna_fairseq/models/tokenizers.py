"""Which tokenizer belongs to a dictionary: its files beside the data, and what is no text for it."""

from pathlib import Path
from typing import Any, Dict, List, Sequence

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.text.pieces import is_filler


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
