"""A pretrained checkpoint seen from fine-tuning: the options with which fairseq-train builds the model that
fits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from luna_fairseq.engine.dictionaries import check_fingerprints, fingerprint, stored_fingerprints
from luna_fairseq.errors import InputError

_VALUES = (
    "projection_length",
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "activation_fn",
    "pooler_activation_fn",
    "anchor_strength",
    "local_parts",
    "information_kernel",
)
_FLAGS = (
    "fix_projection_length",
    "untie_luna_kv",
    "encoder_normalize_before",
    "untie_weights_luna",
    "untie_weights_roberta",
    "no_token_positional_embeddings",
    "alibi",
    "anchored_packed",
    "share_token_projections",
    "information_block",
)


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
        embeddings = {
            name.rsplit(".", 2)[-2]: value for name, value in state["model"].items() if _is_embedding(name)
        }
        if set(embeddings) != {"embed_tokens", "embed_positions"}:
            raise InputError(f"{path} is no masked language model with learned positions")
        model = _as_dictionary(state["cfg"]["model"])
        # Two positions are those of padding and before it.
        positions = embeddings["embed_positions"].size(0) - 2
        options = ["--arch", str(model.get("_name") or model["arch"]), "--max-positions", str(positions)]
        names = [*_VALUES, *_FLAGS]
        if model.get("attention") is not None:  # a peer, with the options of its attention
            names += ["attention", *(name for name in model if name.startswith(f"{model['attention']}_"))]
        for name in names:
            if model.get(name) is not None and model[name] is not False:
                options.append(f"--{name.replace('_', '-')}")
                options += [] if model[name] is True else [str(model[name])]
        size = embeddings["embed_tokens"].size(0)
        return cls(path, options, positions, size, stored_fingerprints(state))

    def check_dictionary(self, path: Path) -> None:
        """Raise InputError when the dictionary at ``path`` is another one than the checkpoint's."""
        dictionary = Dictionary.load(str(path))
        dictionary.add_symbol("<mask>")  # as fairseq's tasks do
        check_fingerprints(self.path, self.fingerprints, {"source": fingerprint(dictionary)})
        size = len(dictionary)
        if size != self.dictionary_size:
            raise InputError(
                f"the checkpoint's dictionary has {self.dictionary_size} entries, that of {path} has {size}: "
                "prepare the "
                "task with the vocabulary of the pretrained model"
            )


def _is_embedding(name: str) -> bool:
    return "sentence_encoder." in name and name.endswith(("embed_tokens.weight", "embed_positions.weight"))


def _as_dictionary(config: Any) -> Dict[str, Any]:
    return dict(config) if hasattr(config, "keys") else vars(config)
