"""A pretrained checkpoint seen from fine-tuning: the options with which fairseq-train builds the model that
fits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from luna_fairseq.checks.model_options import command_line, model_name, plain_options
from luna_fairseq.checks.same_training import check_fingerprints, fingerprint, stored_fingerprints
from luna_fairseq.errors import InputError


@dataclass(frozen=True)
class Pretrained:
    """A masked language model's checkpoint.

    Attributes:
        path: the file.
        options: its model's, as words of fairseq-train's command line.
        positions: the longest sequence.
        dictionary_size: entries, ``<mask>`` included.
        fingerprints: of the dictionaries, where the checkpoint has them.
    """

    path: Path
    options: List[str]
    positions: int
    dictionary_size: int
    fingerprints: Optional[Dict[str, str]]

    @classmethod
    def load(cls, path: Path) -> Pretrained:
        """Raises InputError when there is no such file, or it is no checkpoint of a masked language model."""
        if not path.is_file():
            raise InputError(f"{path} does not exist: give the checkpoint of a pretrained model")
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        tables = {}
        for name, value in state["model"].items():
            if "sentence_encoder." in name and name.endswith(".weight"):
                tables[name.split(".")[-2]] = value
        model = plain_options(state["cfg"]["model"])
        if "embed_tokens" not in tables or "max_positions" not in model:
            raise InputError(f"{path} is no masked language model: its model is {model_name(model)}")
        if "embed_positions" in tables:  # two are those of padding and before it
            model["max_positions"] = tables["embed_positions"].size(0) - 2
        options, positions = command_line(model), int(model["max_positions"])
        return cls(path, options, positions, tables["embed_tokens"].size(0), stored_fingerprints(state))

    def check_dictionary(self, path: Path) -> None:
        """Raise InputError when the dictionary at ``path`` is another one than the checkpoint's."""
        dictionary = Dictionary.load(str(path))
        dictionary.add_symbol("<mask>")  # as fairseq's tasks do
        check_fingerprints(self.path, self.fingerprints, {"source": fingerprint(dictionary)})
        if len(dictionary) != self.dictionary_size:
            raise InputError(
                f"the checkpoint's dictionary has {self.dictionary_size} entries, that of {path} has "
                f"{len(dictionary)}: prepare the task with the vocabulary of the pretrained model"
            )
