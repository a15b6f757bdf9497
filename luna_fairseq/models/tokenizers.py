"""Tokenizers of trained models: search for their files, and fairseq's interface to Moses tokenisation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence

from omegaconf import DictConfig, open_dict

from fairseq.data.encoders import register_tokenizer
from fairseq.dataclass import FairseqDataclass
from fairseq.registry import REGISTRIES
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.text.moses import detokenize, normalize, tokenize

MOSES = "luna_moses"
CODES = "bpe.codes"  # merges that luna-prepare-bitext learns with subword-nmt from the tokens of Moses


def find_folders(model_name_or_path: Any, data_name_or_path: Any) -> List[Path]:
    """Return the folders in which ``from_pretrained`` looks for a tokenizer.

    Args:
        model_name_or_path: folder of the checkpoint, or an address from which fairseq downloads a model.
        data_name_or_path: folder of the dictionaries. A path that starts with ``.`` is relative to the folder
            of the checkpoint.

    Returns:
        The folder of the checkpoint and the folder of the dictionaries.

    Raises:
        InputError: One of the folders does not exist, and neither is an address.
    """
    folder, data = Path(str(model_name_or_path)), str(data_name_or_path)
    folders = [folder, folder / data if data.startswith(".") else Path(data)]
    for path, what in zip(folders, ("checkpoint", "dictionaries")):
        if not path.exists() and "://" not in f"{model_name_or_path} {data}":
            raise InputError(f"{path} does not exist: pass the folder of the {what} to from_pretrained")
    return folders


def tokenizer_options() -> List[str]:
    """Return the names of the options of all tokenizers that are registered with fairseq."""
    config_classes = [
        config_class
        for kind in ("bpe", "tokenizer")
        for config_class in REGISTRIES[kind]["dataclass_registry"].values()
    ]
    return [name for config_class in config_classes for name in config_class.__dataclass_fields__]


def find_tokenizer(folders: Sequence[Path]) -> Dict[str, str]:
    """Return fairseq's options for the tokenizer whose files are in one of the folders.

    Args:
        folders: folders to search; the first with a tokenizer counts.

    Returns:
        Options of sentencepiece or of GPT-2's byte-level BPE; an empty dictionary if no folder has their
        files.

    Raises:
        InputError: The file of sentencepiece differs from its recorded checksum.

    Example:
        >>> find_tokenizer([Path("a folder without a tokenizer")])
        {}
    """
    for folder in folders:
        model = folder / "sentencepiece.bpe.model"
        encoder, merges = folder / "encoder.json", folder / "vocab.bpe"
        if model.is_file():
            check_files(model)
            return {"bpe": "sentencepiece", "sentencepiece_model": str(model)}
        if encoder.is_file() and merges.is_file():
            return {"bpe": "gpt2", "gpt2_encoder_json": str(encoder), "gpt2_vocab_bpe": str(merges)}
    return {}


def find_text_pipeline(folders: Sequence[Path]) -> Dict[str, str]:
    """Return fairseq's options for all steps between plain text and subwords.

    Unlike :func:`find_tokenizer`, this function also finds the file ``bpe.codes`` of luna-prepare-bitext,
    whose data is tokenised by Moses and split by subword-nmt.

    Args:
        folders: folders to search; the first with a tokenizer counts.

    Returns:
        Options for fairseq; an empty dictionary if no folder has files of a tokenizer.

    Raises:
        InputError: A file of the tokenizer differs from its recorded checksum.
    """
    options = find_tokenizer(folders)
    codes = next((folder / CODES for folder in folders if (folder / CODES).is_file()), None)
    if options or codes is None:
        return options
    check_files(codes)
    return {"tokenizer": MOSES, "bpe": "subword_nmt", "bpe_codes": str(codes)}


@dataclass
class MosesTextConfig(FairseqDataclass):
    """Languages of the text that a :class:`MosesText` encodes and decodes."""

    source_lang: str = field(default="en", metadata={"help": "source language"})
    target_lang: str = field(default="en", metadata={"help": "target language"})


@register_tokenizer(MOSES, dataclass=MosesTextConfig)
class MosesText:
    """Moses tokenizer that normalises punctuation first, as luna-prepare-bitext does.

    fairseq's tokenizer ``moses`` does not normalise punctuation.

    Args:
        cfg: source and target language.

    Raises:
        InputError: The package sacremoses is not installed.

    Example:
        >>> MosesText(MosesTextConfig()).encode("Hello, world!")
        'Hello , world !'
    """

    def __init__(self, cfg: MosesTextConfig) -> None:
        self.cfg = cfg
        tokenize("", cfg.source_lang)  # reports a missing package before a model is loaded

    def encode(self, text: str) -> str:
        """Tokenise plain text of the source language.

        Args:
            text: plain text.

        Returns:
            The tokens as one string, separated by spaces.
        """
        return " ".join(tokenize(normalize(text, self.cfg.source_lang), self.cfg.source_lang))

    def decode(self, text: str) -> str:
        """Join tokens of the target language to plain text.

        Args:
            text: tokens, separated by spaces.

        Returns:
            Plain text.
        """
        return detokenize(text.split(), self.cfg.target_lang)


def set_languages(tokenizer: Any, task: Any) -> None:
    """Copy the languages of a task to the configuration of a tokenizer.

    Without this copy, ``from_pretrained`` would use fairseq's default, English. Nothing is copied if the task
    or the tokenizer has no languages.

    Args:
        tokenizer: configuration of a tokenizer, changed in place.
        task: fairseq task.
    """
    for side in ("source_lang", "target_lang"):
        language = getattr(getattr(task, "cfg", None), side, None)
        if language and isinstance(tokenizer, DictConfig) and side in tokenizer:
            with open_dict(tokenizer):
                tokenizer[side] = language
