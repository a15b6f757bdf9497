"""Registration of named sets of model options (presets) with fairseq. ``--arch`` selects a preset."""

from functools import partial
from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register the architectures of a model with fairseq, so that ``--arch`` can select them.

    ``presets`` maps each architecture to its options. fairseq has already registered the name ``model``.
    """
    for name, preset in presets.items():
        if name != model:
            register_model_architecture(model, name)(partial(_set_missing_options, preset))


def _set_missing_options(preset: Dict[str, Any], args: Any) -> None:
    """Set the options of a preset in ``args``, except options that the user has set."""
    for option, value in preset.items():
        if getattr(args, option, None) is None:
            setattr(args, option, value)


def encoder_sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> Dict[str, int]:
    """Return a dictionary of fairseq's options for the size of an encoder, such as ``encoder_layers``."""
    return {
        "encoder_layers": layers,
        "encoder_embed_dim": embed_dim,
        "encoder_ffn_embed_dim": ffn_embed_dim,
        "encoder_attention_heads": heads,
    }
