"""Luna translation model (section 4.2 of the paper) and its named architectures."""

from argparse import Namespace
from typing import Any, Callable, Dict, Type

from omegaconf import DictConfig, OmegaConf

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.checks.bounds import check_bounds
from luna_fairseq.checks.model_options import fill_in_defaults
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import EncoderDecoder
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.fairseq_encoder import FairseqLunaEncoder
from luna_fairseq.models.luna_config import LunaConfig


@register_model("luna", dataclass=LunaConfig)
class LunaModel(EncoderDecoder):
    """Translation model with a Luna encoder and a Luna decoder.

    :meth:`build_model` creates a new model. :meth:`from_pretrained` loads a trained model that translates
    text. ``forward`` runs the encoder, then the decoder on the encoder's output, as in fairseq.

    Example:
        >>> from fairseq.data import Dictionary
        >>> task = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
        >>> model = LunaModel.build_model(LunaConfig(encoder_embed_dim=16, encoder_layers=2), task)
        >>> model.max_positions()
        (1024, 1024)
    """

    encoder_class = FairseqLunaEncoder
    decoder_class: Callable[..., FairseqLunaDecoder] = FairseqLunaDecoder

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaModel":
        """Build a model for the task from a :class:`LunaConfig`, or from an object with its attributes.

        Raises InputError if the widths, the numbers of heads or the projection length are invalid.
        """
        cfg = nested_config(cfg, getattr(cls, "__dataclass", LunaConfig))  # set by fairseq's register_model
        check_widths(cfg, "both read the same packed sequence, so give them the same width")
        return super().build_model(cfg, task)


def check_widths(cfg: TransformerConfig, why: str) -> None:
    """Raise InputError if encoder and decoder differ in width. ``why`` is the reason given in the message."""
    if cfg.decoder.embed_dim != cfg.encoder.embed_dim:
        raise InputError(
            f"--decoder-embed-dim {cfg.decoder.embed_dim} differs from --encoder-embed-dim "
            f"{cfg.encoder.embed_dim}: {why}"
        )


def flat_options(cfg: Any, defaults: FairseqDataclass) -> Dict[str, Any]:
    """Convert a flat configuration to a dictionary. Missing options and None are replaced with ``defaults``.

    Raises InputError if a numeric option is out of bounds.
    """
    values = OmegaConf.to_container(cfg, enum_to_str=True) if isinstance(cfg, DictConfig) else vars(cfg)
    options = {**vars(defaults), **{name: value for name, value in values.items() if value is not None}}
    check_bounds(options, type(defaults))
    return options


def nested_config(cfg: Any, dataclass: Type[LunaConfig] = LunaConfig) -> TransformerConfig:
    """Convert a flat configuration to fairseq's nested ``TransformerConfig``.

    Unset options get the defaults of ``dataclass``, which may depend on other options.

    Example:
        >>> nested_config(Namespace(encoder_embed_dim=16)).decoder.embed_dim
        16
    """
    options = fill_in_defaults(flat_options(cfg, dataclass()), dataclass)
    # fairseq copies the options that it does not know, such as Luna's, as attributes.
    return TransformerConfig.from_namespace(Namespace(**options))


_UNTIED = {"untie_luna_kv": True}
_PLACED = {"anchored_packed": True, "diagonal_prior": True, "causal_decay": True}
_ANCHORED = {**_PLACED, "packed_lookup": 4}
_SOFTMAX_CROSS = {"cross_attention": "softmax"}

# For each architecture, the options that differ from the defaults of LunaConfig, which are the paper's base
# size with tied keys and values.
ARCHITECTURES: Presets = {
    "luna": {},
    "luna_base": {},
    "luna_base_tied": {},
    "luna_base_untied": _UNTIED,
    "luna_softmax_cross": _SOFTMAX_CROSS,
    "luna_anchored": _ANCHORED,
    "luna_anchored_base": _ANCHORED,
    "luna_anchored_base_untied": {**_ANCHORED, **_UNTIED},
    "luna_anchored_softmax_cross": {**_PLACED, **_SOFTMAX_CROSS},
}
register_architectures("luna", ARCHITECTURES)
