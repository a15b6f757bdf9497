"""Loading of a luna_fairseq or fairseq checkpoint and its tokenizer, to show the model's attention."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, List, Optional, Tuple

import torch

from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models.roberta import RobertaModel
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError
from luna_fairseq.lra.task import CLS, LRATextTask
from luna_fairseq.models.generator_hub import GeneratorHub
from luna_fairseq.models.masked_lm_hub import MaskedLMHub
from luna_fairseq.models.tokenizers import find_text_pipeline


class Classifier:
    """Long Range Arena text classifier with token and label dictionaries. Text pairs are not supported."""

    def __init__(self, task: LRATextTask, model: torch.nn.Module) -> None:
        if task.pairs:
            raise InputError(
                "The model classifies pairs of texts, and attention maps need a single text. Give a model of "
                "single texts."
            )
        self.task, self.model = task, model

    def classify_text(self, text: str, max_tokens: int = sys.maxsize) -> Tuple[List[str], str]:
        """Return the input tokens of a text and its predicted class.

        Raise InputError if the text has more than ``max_tokens`` tokens.

        The text is split into UTF-8 bytes for a byte-level model, and at spaces for any other model.
        Printable ASCII bytes are returned as characters.
        """
        dictionary = self.task.dictionary
        is_byte_level = all(str(value) in dictionary for value in range(256))
        words = [str(value) for value in text.encode("utf-8")] if is_byte_level else text.split()
        indices = [dictionary.index(word) for word in words] + [dictionary.eos()]
        if self.task.prepends_cls:
            indices.insert(0, dictionary.index(CLS))
        if len(indices) > max_tokens:
            raise InputError(f"Expected a text of at most {max_tokens} tokens, got {len(indices)} tokens.")
        device = next(self.model.parameters()).device
        logits = self.model(torch.tensor([indices], device=device), all_outputs=True)
        label = self.task.label_dictionary[int(logits.argmax()) + self.task.label_dictionary.nspecial]
        symbols = [dictionary[index] for index in indices]
        return [_to_character(symbol) for symbol in symbols] if is_byte_level else symbols, label


def _to_character(symbol: str) -> str:
    """Convert a decimal ASCII code to its character if it is printable. Other symbols are unchanged.

    Example:
        >>> _to_character("97"), _to_character("10"), _to_character("</s>")
        ('a', '10', '</s>')
    """
    return chr(int(symbol)) if symbol.isdigit() and 32 <= int(symbol) < 127 else symbol


def load(path: Path, data: Optional[Path] = None) -> Any:
    """Load a checkpoint's model and tokenizer.

    Return a :class:`Classifier` for a text classifier of Long Range Arena, otherwise a hub interface. Either
    can be passed to :func:`~luna_fairseq.report.attention.attention_maps`. ``data`` is the folder that
    contains the dictionaries (default: the folder used in training).

    Example:
        >>> hub = load(Path("checkpoints/luna/checkpoint_best.pt"))  # doctest: +SKIP
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist. Give a checkpoint that fairseq-train wrote.")
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    options = state["cfg"]["task"]
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    # Shards, separated by ":", have the same dictionaries. The tokenizer is in the folder above them.
    first, *more_shards = map(Path, str(options.get("data")).split(os.pathsep))
    folder = first if data is None else data
    above = [first.parent] if data is None and more_shards else []
    if not folder.is_dir():
        raise InputError(
            f"The data folder {folder} does not exist. Give --data, the folder of the model's dictionaries."
        )
    # Weights in 8 bits could not be moved to a GPU.
    overrides = {"data": str(folder), "int8": False, **find_text_pipeline([path.parent, folder, *above])}
    # fairseq applies overrides only to checkpoints that it loads from disk itself.
    overwrite_args_by_name(state["cfg"], overrides)
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides, state=state)
    if isinstance(task, LRATextTask):
        return Classifier(task, _prepare(model))
    if isinstance(model, RobertaModel):
        return _prepare(MaskedLMHub(cfg, task, [model]))
    if task.source_dictionary is None or not hasattr(model, "decoder"):
        raise InputError(f"The model of {path} does not read text. Give a checkpoint of a text model.")
    return _prepare(GeneratorHub(cfg, task, [model]))


def _prepare(module: torch.nn.Module) -> torch.nn.Module:
    """Set a model or a hub interface to evaluation mode, and move it to the GPU if there is one."""
    return (module.cuda() if torch.cuda.is_available() else module).eval()
