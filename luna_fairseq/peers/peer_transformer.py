"""The Transformer for translation with any attention: ``--arch peer_transformer --attention NAME``."""

from argparse import Namespace
from typing import Any, Dict

from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from luna_fairseq.models.authors_checkpoint import check_dictionary, refuse_misfit
from luna_fairseq.models.luna import check_widths, flat_options, nested_config
from luna_fairseq.peers.config import PeerTransformerConfig
from luna_fairseq.peers.layers import PeerDecoder, PeerEncoder


@register_model("peer_transformer", dataclass=PeerTransformerConfig)
class PeerTransformer(TransformerModelBase):
    """fairseq's Transformer; nothing but its attentions differs from one peer to another.

    Args:
        cfg: nested view of a :class:`PeerTransformerConfig`
        encoder: :class:`PeerEncoder`
        decoder: :class:`PeerDecoder`
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Options of :class:`PeerTransformerConfig`; defaults come from the architecture, then from the
        dataclass."""
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerTransformer":
        """Build the model for the dictionaries of ``task``; ``cfg`` is flat.

        Raises:
            InputError: an attention that has not the form it is asked for in, or widths, heads or options
                that cannot be
        """
        options = flat_options(cfg, PeerTransformerConfig())
        for name in ("decoder_attention", "cross_attention"):
            options[name] = options[name] or options["attention"]
        cfg = nested_config(Namespace(**options))
        check_widths(cfg, "give them the same width")
        return super().build_model(cfg, task)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> PeerEncoder:
        return PeerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> PeerDecoder:
        return PeerDecoder(cfg, tgt_dict, embed_tokens)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's. Raises InputError when the checkpoint has other dictionaries."""
        check_dictionary(state_dict, self)
        super().upgrade_state_dict_named(state_dict, name)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's. Raises InputError when the checkpoint is of another architecture."""
        with refuse_misfit():
            return super().load_state_dict(*args, **kwargs)
