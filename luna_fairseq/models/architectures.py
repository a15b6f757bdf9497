"""Architectures: named sets of model options for ``--arch``."""

from functools import partial
from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register ``presets``, name -> what it sets apart from the defaults of ``model``'s config, with fairseq.

    The architecture named as the model is registered together with it, and has the defaults.
    """
    for name, preset in presets.items():
        if name != model:
            register_model_architecture(model, name)(partial(_fill_in, preset))


def _fill_in(preset: Dict[str, Any], args: Any) -> None:
    for option, value in preset.items():
        if getattr(args, option, None) is None:
            setattr(args, option, value)


def encoder_sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> Dict[str, int]:
    """An encoder of so many layers and heads, of these widths."""
    return {
        "encoder_layers": layers,
        "encoder_embed_dim": embed_dim,
        "encoder_ffn_embed_dim": ffn_embed_dim,
        "encoder_attention_heads": heads,
    }
