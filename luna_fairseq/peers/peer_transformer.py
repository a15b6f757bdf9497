"""The Transformer for translation with any attention: ``--arch peer_transformer --attention NAME``."""

from argparse import Namespace
from typing import Any

from fairseq.models import register_model
from luna_fairseq.checks.model_options import fill_open
from luna_fairseq.errors import InputError
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import EncoderDecoder
from luna_fairseq.models.luna import check_widths, flat_options, nested_config
from luna_fairseq.peers.config import PeerTransformerConfig
from luna_fairseq.peers.layers import PeerDecoder, PeerEncoder


@register_model("peer_transformer", dataclass=PeerTransformerConfig)
class PeerTransformer(EncoderDecoder):
    """fairseq's Transformer; nothing but its attentions differs from one peer to another.

    Args:
        cfg: nested view of a :class:`PeerTransformerConfig`
        encoder: :class:`PeerEncoder`
        decoder: :class:`PeerDecoder`
    """

    encoder_class = PeerEncoder
    decoder_class = PeerDecoder

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerTransformer":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat.

        Raises:
            InputError: an attention that has not the form it is asked for in, or widths, heads or options
                that cannot be
        """
        options = fill_open(flat_options(cfg, PeerTransformerConfig()), PeerTransformerConfig)
        if options["diagonal_prior"] and options["cross_attention"] != "softmax":
            raise InputError(
                "--diagonal-prior is of softmax attention to the source, not of "
                f"{options['cross_attention']}: leave it out, or give --cross-attention softmax"
            )
        cfg = nested_config(Namespace(**options))
        check_widths(cfg, "give them the same width")
        return super().build_model(cfg, task)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """As fairseq's. Raises InputError as :meth:`check_generation`."""
        self.check_generation(getattr(cfg, "generation", None))
        super().prepare_for_inference_(cfg)

    def check_generation(self, generation: Any) -> None:
        """
        Args:
            generation: options of generation

        Raises:
            InputError: alignments are asked of cross-attention that computes no weights
        """
        attention = self.decoder.cfg.cross_attention
        aligned = getattr(generation, "print_alignment", None) or getattr(generation, "replace_unk", None)
        if aligned is not None and attention != "softmax":
            raise InputError(
                f"--print-alignment and --replace-unk need weights over the source, which {attention} "
                "attention does not compute: leave them out, or train with --cross-attention softmax"
            )


# The encoders of "Informer, an Information Organization Transformer Architecture", for n = 200 tokens and r =
# 8, under the Transformer's decoder. Sizes are the defaults: 6 + 6 layers of 512, 2,048, 8 heads, dropout
# 0.1.
_PUBLISHED = {"decoder_attention": "softmax", "cross_attention": "softmax", "max_source_positions": 200}
_LINFORMER = {"attention": "linformer", "linformer_k": 8, "linformer_sharing": "layerwise"}
_CONVOLUTION = {**_PUBLISHED, "attention": "conv_linformer"}
ARCHITECTURES: Presets = {
    "peer_transformer": {},
    "linformer_encoder": {**_PUBLISHED, **_LINFORMER},
    "conv_linformer_encoder": _CONVOLUTION,
    "informer_encoder": {**_CONVOLUTION, "information_block": True},
}
register_architectures("peer_transformer", ARCHITECTURES)
