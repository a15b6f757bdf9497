"""Arguments of fairseq-train that rebuild a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import luna_fairseq.models  # noqa: F401  (registers the classes that a checkpoint may refer to)
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from luna_fairseq.checks.model_options import command_line, fixed_options, model_name, plain_options
from luna_fairseq.checks.same_training import check_fingerprints, fingerprint, stored_fingerprints
from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.models.classification_heads import PACKED_HEADS
from luna_fairseq.models.luna_masked_lm import LunaMaskedLM

# Options of a classification head, which fine-tuning creates.
_OPTIONS_OF_HEADS = {"pooler_activation_fn", "spectral_norm_classification_head"}


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """Model options, vocabulary size and maximum length read from a pretrained checkpoint.

    Attributes:
        path: checkpoint file.
        model: name of the model.
        options: model options, as command-line arguments of fairseq-train.
        positions: maximum number of tokens in a sequence.
        dictionary_size: number of dictionary entries, including ``<mask>``.
        fingerprints: size and hash of each dictionary, by name. None if the checkpoint does not store them.
    """

    path: Path
    model: str
    options: List[str]
    positions: int
    dictionary_size: int
    fingerprints: Optional[Dict[str, str]]

    @classmethod
    def load(cls, path: Path) -> PretrainedCheckpoint:
        """Read a checkpoint, or raise InputError if it does not contain a masked language model."""
        if not path.is_file():
            raise InputError(f"{path} does not exist. Give the checkpoint of a pretrained model.")
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        tables = {}
        for name, value in state["model"].items():
            if "sentence_encoder." in name and name.endswith(".weight"):
                tables[name.split(".")[-2]] = value
        model = plain_options(state["cfg"]["model"])
        if "embed_tokens" not in tables or "max_positions" not in model:
            raise InputError(
                f"{path} holds the model {model_name(model)}. Give a checkpoint of a masked language model."
            )
        if "embed_positions" in tables:  # two entries are reserved for padding and the index below it
            model["max_positions"] = tables["embed_positions"].size(0) - 2
        options, positions = command_line(model), int(model["max_positions"])
        size = tables["embed_tokens"].size(0)
        return cls(path, model_name(model), options, positions, size, stored_fingerprints(state))

    def check_options(self, words: Sequence[str]) -> None:
        """Raise InputError if the fairseq-train arguments set an option that the checkpoint determines."""
        names = set(fixed_options(self.model)) - _OPTIONS_OF_HEADS
        fixed = {f"--{name.replace('_', '-')}" for name in names}
        for name in parse_options(words):
            if name in fixed:
                raise InputError(f"{name} after --: {self.path} determines this option. Remove it.")

    def check_head(self, name: str) -> None:
        """Raise InputError if the head named ``name`` reads P, which only Luna models have."""
        model = MODEL_REGISTRY.get(self.model, LunaMaskedLM)
        if name in PACKED_HEADS and not issubclass(model, LunaMaskedLM):
            raise InputError(
                f"--head {name} reads the packed sequence P, which the model {self.model} does not have. "
                "Choose another name."
            )

    def check_dictionary(self, path: Path) -> None:
        """Raise InputError if a dictionary file differs from the checkpoint's dictionary.

        The symbol ``<mask>``, which the file does not contain, is added before the comparison.
        """
        dictionary = Dictionary.load(str(path))
        dictionary.add_symbol("<mask>")  # as fairseq's tasks do
        check_fingerprints(self.path, self.fingerprints, {"source": fingerprint(dictionary)})
        if len(dictionary) != self.dictionary_size:
            raise InputError(
                f"the checkpoint's dictionary has {self.dictionary_size} entries, and {path} has "
                f"{len(dictionary)}. Prepare the task with the vocabulary of the pretrained model."
            )
