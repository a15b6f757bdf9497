"""Architectures: named sets of model options for ``--arch``."""

from functools import partial
from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register named architectures of a model with fairseq.

    The architecture with the name of the model is skipped, because fairseq registers it with all defaults.

    Args:
        model: registered name of the model.
        presets: for each architecture, the options that differ from the defaults of the model's
            configuration.
    """
    for name, preset in presets.items():
        if name != model:
            register_model_architecture(model, name)(partial(_fill_in, preset))


def _fill_in(preset: Dict[str, Any], args: Any) -> None:
    """Set the options of a preset that the user has not set.

    Args:
        preset: values by the name of the option.
        args: parsed options, updated in place. An option that is missing or None counts as not set.
    """
    for option, value in preset.items():
        if getattr(args, option, None) is None:
            setattr(args, option, value)


def encoder_sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> Dict[str, int]:
    """Return the options for the size of an encoder.

    Args:
        layers: number of layers.
        embed_dim: model width.
        ffn_embed_dim: width of the feed-forward blocks.
        heads: number of attention heads.

    Example:
        >>> encoder_sizes(2, 128, 512, 4)["encoder_layers"]
        2
    """
    return {
        "encoder_layers": layers,
        "encoder_embed_dim": embed_dim,
        "encoder_ffn_embed_dim": ffn_embed_dim,
        "encoder_attention_heads": heads,
    }
