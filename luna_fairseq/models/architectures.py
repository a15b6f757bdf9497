"""Named sets of model options for fairseq's option ``--arch``."""

from functools import partial
from typing import Any, Dict

from fairseq.models import register_model_architecture

Presets = Dict[str, Dict[str, Any]]


def register_architectures(model: str, presets: Presets) -> None:
    """Register named architectures of a model with fairseq.

    The architecture that has the name of the model itself is skipped. fairseq registers that architecture,
    with the default values of all options.

    Args:
        model: registered name of the model.
        presets: maps the name of each architecture to its options, ``{option: value}``. Options that are
            absent keep the defaults of the model's configuration.
    """
    for name, preset in presets.items():
        if name != model:
            register_model_architecture(model, name)(partial(_set_missing_options, preset))


def _set_missing_options(preset: Dict[str, Any], args: Any) -> None:
    """Set every option of a preset that the user has not set.

    Args:
        preset: maps names of options to values.
        args: parsed options, updated in place. An option that is absent or None counts as not set.
    """
    for option, value in preset.items():
        if getattr(args, option, None) is None:
            setattr(args, option, value)


def encoder_sizes(layers: int, embed_dim: int, ffn_embed_dim: int, heads: int) -> Dict[str, int]:
    """Return fairseq's options for the size of an encoder.

    Args:
        layers: number of layers.
        embed_dim: model width.
        ffn_embed_dim: inner width of the feed-forward blocks.
        heads: number of attention heads.

    Returns:
        Four options, ``{name: value}``.

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
