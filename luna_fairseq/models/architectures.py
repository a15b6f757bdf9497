"""Named sets of model options, selected with fairseq's ``--arch``."""

from functools import partial
from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register named architectures of a model with fairseq.

    An architecture with the same name as the model is skipped, because fairseq registers it with the default
    values of all options.

    Args:
        model: registered name of the model.
        presets: options ``{option: value}`` of each architecture, keyed by architecture name. Options that
            are not listed keep the defaults of the model configuration.
    """
    for name, preset in presets.items():
        if name != model:
            register_model_architecture(model, name)(partial(_set_missing_options, preset))


def _set_missing_options(preset: Dict[str, Any], args: Any) -> None:
    """Set every option of a preset that the user has not set.

    Args:
        preset: option values, keyed by option name.
        args: parsed options, updated in place. An option that is absent or None counts as unset.
    """
    for option, value in preset.items():
        if getattr(args, option, None) is None:
            setattr(args, option, value)


def encoder_sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> Dict[str, int]:
    """Return the fairseq options that set the size of an encoder.

    Args:
        layers: number of layers.
        embed_dim: model width.
        ffn_embed_dim: hidden width of the feed-forward blocks.
        heads: number of attention heads.

    Returns:
        The four options ``{name: value}``.

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
