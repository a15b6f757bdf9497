"""The Luna encoder-decoder for translation (Luna, section 4.2) and its architectures."""

from argparse import Namespace
from typing import Any, Dict

from omegaconf import DictConfig, OmegaConf

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from luna_fairseq.checks.bounds import check_bounds
from luna_fairseq.checks.model_options import fill_open
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import EncoderDecoder
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.fairseq_encoder import FairseqLunaEncoder
from luna_fairseq.models.generator_hub import from_pretrained
from luna_fairseq.models.luna_config import LunaConfig


@register_model("luna", dataclass=LunaConfig)
class LunaModel(EncoderDecoder):
    """Encoder-decoder of Luna layers.

    ``LunaModel.from_pretrained(dir, checkpoint_file, data, bpe=..)`` gives fairseq's generator interface.

    Args:
        cfg: nested view of a :class:`LunaConfig`, see :func:`nested_config`
        encoder: :class:`FairseqLunaEncoder`
        decoder: :class:`FairseqLunaDecoder`
    """

    encoder_class = FairseqLunaEncoder
    decoder_class = FairseqLunaDecoder

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """See :func:`luna_fairseq.models.generator_hub.from_pretrained`."""
        return from_pretrained(*args, **kwargs)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "LunaModel":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat, as :class:`LunaConfig` is.

        Raises:
            InputError: widths, heads or projection length that cannot be
        """
        cfg = nested_config(cfg)
        check_widths(cfg, "both read the same packed sequence, so give them the same width")
        model = super().build_model(cfg, task)
        # label_smoothed_cross_entropy_with_alignment then reads them in training.
        model.decoder.attn_in_training = bool(getattr(getattr(task, "cfg", None), "load_alignments", False))
        return model


def check_widths(cfg: TransformerConfig, why: str) -> None:
    """Raise InputError, which says ``why``, unless encoder and decoder have one width."""
    if cfg.decoder.embed_dim != cfg.encoder.embed_dim:
        raise InputError(
            f"--decoder-embed-dim {cfg.decoder.embed_dim} differs from --encoder-embed-dim "
            f"{cfg.encoder.embed_dim}: {why}"
        )


def flat_options(cfg: Any, defaults: FairseqDataclass) -> Dict[str, Any]:
    """Return the options of a flat config (dataclass, DictConfig or Namespace), completed by ``defaults``.

    Raises:
        InputError: a number is out of its bounds.
    """
    given = OmegaConf.to_container(cfg, enum_to_str=True) if isinstance(cfg, DictConfig) else vars(cfg)
    options = {**vars(defaults), **{name: value for name, value in given.items() if value is not None}}
    check_bounds(options, type(defaults))
    return options


def nested_config(cfg: Any) -> TransformerConfig:
    """fairseq's nested view of a flat config (dataclass, DictConfig or Namespace), with open defaults filled
    in."""
    options = fill_open(flat_options(cfg, LunaConfig()), LunaConfig)
    return TransformerConfig.from_namespace(Namespace(**options))


_UNTIED = {"untie_luna_kv": True}
_PLACED = {"anchored_packed": True, "diagonal_prior": True, "causal_decay": True}
_ANCHORED = {**_PLACED, "packed_lookup": 4}
_SOFTMAX_CROSS = {"cross_attention": "softmax"}

# What each architecture sets apart from LunaConfig's defaults, which are the paper's base size with tied keys
# and values.
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
