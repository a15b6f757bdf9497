"""Find the tokenizer of a model by its files, and read and write plain text of Moses data with fairseq."""

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
CODES = "bpe.codes"  # merges of subword-nmt, which luna-prepare-bitext learns from Moses' tokens


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
    """Return fairseq's options for the tokenizer of raw text in the first of ``folders`` that has one.

    Returns:
        options of sentencepiece or of GPT-2's encoding; an empty dictionary if no folder has their files
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
    """Return fairseq's options for everything between plain text and pieces.

    These are the options of :func:`find_tokenizer`, or those of Moses and subword-nmt for the file
    ``bpe.codes`` that luna-prepare-bitext writes. They are empty if no folder has any of these files.
    """
    found = find_tokenizer(folders)
    codes = next((folder / CODES for folder in folders if (folder / CODES).is_file()), None)
    if found or codes is None:
        return found
    check_files(codes)
    return {"tokenizer": MOSES, "bpe": "subword_nmt", "bpe_codes": str(codes)}


@dataclass
class MosesTextConfig(FairseqDataclass):
    """Languages of the text."""

    source_lang: str = field(default="en", metadata={"help": "source language"})
    target_lang: str = field(default="en", metadata={"help": "target language"})


@register_tokenizer(MOSES, dataclass=MosesTextConfig)
class MosesText:
    """Moses tokenisation as luna-prepare-bitext applies it.

    fairseq's own tokenizer ``moses`` does not normalise punctuation.
    """

    def __init__(self, cfg: MosesTextConfig) -> None:
        self.cfg = cfg
        tokenize("", cfg.source_lang)  # a missing package is reported before a model is loaded

    def encode(self, text: str) -> str:
        """Return the tokens of plain text in the source language, with spaces between them."""
        return " ".join(tokenize(normalize(text, self.cfg.source_lang), self.cfg.source_lang))

    def decode(self, text: str) -> str:
        """Return the plain text of tokens in the target language."""
        return detokenize(text.split(), self.cfg.target_lang)


def set_languages(tokenizer: Any, task: Any) -> None:
    """Give a tokenizer's configuration the languages of the ``task``, if both have languages.

    fairseq's tokenizers are English unless the command line names languages, and ``from_pretrained`` has no
    command line.
    """
    for side in ("source_lang", "target_lang"):
        language = getattr(getattr(task, "cfg", None), side, None)
        if language and isinstance(tokenizer, DictConfig) and side in tokenizer:
            with open_dict(tokenizer):
                tokenizer[side] = language
