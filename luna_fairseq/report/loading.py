"""A checkpoint of any of our models, or of fairseq's that they are compared with, ready for text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

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
    """A model of Long Range Arena for text.

    Args:
        task: its task
        model: in evaluation mode
    """

    def __init__(self, task: LRATextTask, model: torch.nn.Module) -> None:
        if task.pairs:
            raise InputError(
                "the model classifies pairs of texts: only models of single texts can be looked at"
            )
        self.task, self.model = task, model

    def classify_text(self, text: str) -> Tuple[List[str], str]:
        """The tokens that the model reads, and its class for them. Text is bytes where the vocabulary is."""
        dictionary = self.task.dictionary
        of_bytes = all(str(value) in dictionary for value in range(256))
        words = [str(value) for value in text.encode("utf-8")] if of_bytes else text.split()
        indices = [dictionary.index(word) for word in words] + [dictionary.eos()]
        if self.task.prepends_cls:
            indices.insert(0, dictionary.index(CLS))
        device = next(self.model.parameters()).device
        logits = self.model(torch.tensor([indices], device=device))
        label = self.task.label_dictionary[int(logits.argmax()) + self.task.label_dictionary.nspecial]
        shown = [_byte(dictionary[index]) if of_bytes else dictionary[index] for index in indices]
        return shown, label


def _byte(symbol: str) -> str:
    return chr(int(symbol)) if symbol.isdigit() and 32 <= int(symbol) < 127 else symbol


def load(path: Path, data: Optional[Path] = None) -> Any:
    """What ``attention_maps`` takes.

    Args:
        path: the checkpoint
        data: folder of its dictionaries (default: the one that it was trained on)

    Raises:
        InputError: the checkpoint or its data are not there, or of something that reads no text
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist: give a checkpoint that fairseq-train wrote")
    utils.import_user_module(argparse.Namespace(user_dir=USER_DIR))
    state = _state(path)
    options = state["cfg"]["task"]
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    folder = data if data is not None else Path(str(options.get("data")))
    if not folder.is_dir():
        raise InputError(
            f"{folder}, which the model was trained on, does not exist: give --data, with its dictionaries"
        )
    overrides = {"data": str(folder), **find_text_pipeline([path.parent, folder])}
    overwrite_args_by_name(state["cfg"], overrides)  # fairseq does so where it reads the file itself
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides, state=state)
    model = (model.cuda() if torch.cuda.is_available() else model).eval()
    if isinstance(task, LRATextTask):
        return Classifier(task, model)
    if isinstance(model, RobertaModel):
        return MaskedLMHub(cfg, task, [model])
    if task.source_dictionary is None or not hasattr(model, "decoder"):
        raise InputError(f"{path} is a model that reads no text: only models of text can be looked at")
    return GeneratorHub(cfg, task, [model]).eval()


def _state(path: Path) -> Dict[str, Any]:
    try:
        return checkpoint_utils.load_checkpoint_to_cpu(str(path))
    except InputError:
        raise
    except Exception as error:  # whatever pickle makes of a file that is none
        message = (str(error).splitlines() or ["no message"])[0][:200]
        raise InputError(f"{path} cannot be read as a checkpoint: {message}") from error
