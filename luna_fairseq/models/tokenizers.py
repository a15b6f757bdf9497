"""Tokenizer lookup and preparation of text for trained models, and Moses tokenization for fairseq."""

import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence

from omegaconf import DictConfig, open_dict

from fairseq.data.encoders import register_tokenizer
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from fairseq.data.encoders.hf_byte_bpe import HuggingFaceByteLevelBPE
from fairseq.dataclass import FairseqDataclass
from fairseq.registry import REGISTRIES
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.text.moses import detokenize, tokenize, tokenize_line
from luna_fairseq.text.pieces import CODES, SENTENCEPIECE_MODEL

MOSES = "luna_moses"


def find_folders(model_name_or_path: Any, data_name_or_path: Any) -> List[Path]:
    """Return the checkpoint folder and the dictionary folder. Raise InputError if one is missing or a file.

    A dictionary folder that starts with ``.`` is relative to the checkpoint folder. A model given as a URL is
    not checked. An archive (tar) may replace the checkpoint folder.
    """
    folder, data = Path(str(model_name_or_path)), str(data_name_or_path)
    if folder.is_file() and not tarfile.is_tarfile(str(folder)):
        call = f"from_pretrained({str(folder.parent)!r}, {folder.name!r}, {data!r})"
        raise InputError(f"{folder} is a file: pass its folder and its name, {call}")
    folders = [folder, folder / data if data.startswith(".") else Path(data)]
    for path, what in zip(folders, ("checkpoint", "dictionaries")):
        if not path.exists() and "://" not in f"{model_name_or_path} {data}":
            raise InputError(f"{path} does not exist: pass the folder of the {what} to from_pretrained")
    return folders


def tokenizer_options() -> List[str]:
    """Return the names of all options of the tokenizers registered with fairseq."""
    config_classes = [
        config_class
        for kind in ("bpe", "tokenizer")
        for config_class in REGISTRIES[kind]["dataclass_registry"].values()
    ]
    return [name for config_class in config_classes for name in config_class.__dataclass_fields__]


def find_tokenizer(folders: Sequence[Path]) -> Dict[str, str]:
    """Return fairseq's tokenizer options for the first folder with SentencePiece or GPT-2 files, or {}."""
    for folder in folders:
        model = folder / SENTENCEPIECE_MODEL
        encoder, merges = folder / "encoder.json", folder / "vocab.bpe"
        if model.is_file():
            check_files(model)
            return {"bpe": "sentencepiece", "sentencepiece_model": str(model)}
        if encoder.is_file() and merges.is_file():
            return {"bpe": "gpt2", "gpt2_encoder_json": str(encoder), "gpt2_vocab_bpe": str(merges)}
    return {}


def find_text_pipeline(folders: Sequence[Path]) -> Dict[str, str]:
    """Return fairseq's options for all steps from plain text to subwords, or {} without tokenizer files.

    In addition to the files of :func:`find_tokenizer`, ``bpe.codes`` is recognized. luna-prepare-bitext
    writes this file for text tokenized with Moses.
    """
    options = find_tokenizer(folders)
    codes = next((folder / CODES for folder in folders if (folder / CODES).is_file()), None)
    if options or codes is None:
        return options
    check_files(codes)
    return {"tokenizer": MOSES, "bpe": "subword_nmt", "bpe_codes": str(codes)}


def join_lines(text: str, bpe: Any) -> str:
    """Replace the line breaks in a text with spaces, unless ``bpe`` encodes bytes and has pieces for them.

    sentencepiece would omit a line break and join the words around it.
    """
    is_bytewise = isinstance(bpe, (GPT2BPE, HuggingFaceByteLevelBPE))
    return text if is_bytewise else " ".join(text.splitlines())


def first_token(task: Any) -> int:
    """Return the token that begins a text of a language model: <s> with --add-bos-token, otherwise </s>."""
    dictionary = task.source_dictionary
    has_bos = getattr(getattr(task, "args", None), "add_bos_token", False)
    return dictionary.bos() if has_bos else dictionary.eos()


@dataclass
class MosesTextConfig(FairseqDataclass):
    """Languages of the text that :class:`MosesText` encodes and decodes."""

    source_lang: str = field(default="en", metadata={"help": "source language"})
    target_lang: str = field(default="en", metadata={"help": "target language"})


@register_tokenizer(MOSES, dataclass=MosesTextConfig)
class MosesText:
    """Moses tokenizer that first normalizes punctuation, as luna-prepare-bitext does.

    Example:
        >>> MosesText(MosesTextConfig()).encode("Hello, world!")
        'Hello , world !'
    """

    def __init__(self, cfg: MosesTextConfig) -> None:
        self.cfg = cfg
        tokenize("", cfg.source_lang)  # reports a missing package before the model is loaded

    def encode(self, text: str) -> str:
        return tokenize_line(text, self.cfg.source_lang)

    def encode_target(self, text: str) -> str:
        """Tokenize text in the target language."""
        return tokenize_line(text, self.cfg.target_lang)

    def decode(self, text: str) -> str:
        return detokenize(text.split(), self.cfg.target_lang)


def set_languages(tokenizer: Any, task: Any) -> None:
    """Copy the languages of a task to the configuration of a Moses tokenizer, if the task has languages."""
    for side in ("source_lang", "target_lang"):
        language = getattr(getattr(task, "cfg", None), side, None)
        if language and isinstance(tokenizer, DictConfig) and side in tokenizer:
            with open_dict(tokenizer):
                tokenizer[side] = language
