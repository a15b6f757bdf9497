"""Which tokenizer belongs to a dictionary: its files beside the data, and what is no text for it."""

from pathlib import Path
from typing import Any, Dict, List, Sequence

from fairseq.registry import REGISTRIES
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files


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


def tokenizer_options() -> List[str]:
    """Names of the options of all of fairseq's tokenizers and encodings."""
    classes = [
        one for kind in ("bpe", "tokenizer") for one in REGISTRIES[kind]["dataclass_registry"].values()
    ]
    return [name for one in classes for name in one.__dataclass_fields__]


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
