"""Luna encoder with the interface of fairseq's Transformer encoder.

The class adapts fairseq's options, dictionary and form of output to
:class:`luna_fairseq.modules.LunaEncoder`.
"""

import logging
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import SinusoidalPositionalEmbedding
from luna_fairseq.anchored.encoder_attentions import choose_encoder_attentions
from luna_fairseq.errors import InputError
from luna_fairseq.models.beams import Hypotheses
from luna_fairseq.models.fairseq_layers import (
    FairseqPositions,
    stack_options,
    use_fairseq_layers,
    use_fairseq_stack,
    with_layer_drop,
    wrap_luna_layer,
)
from luna_fairseq.models.last_packed_norm import find_packed_norm
from luna_fairseq.models.no_torchscript import NoTorchScript, refuse_graphs
from luna_fairseq.modules.luna_encoder import LunaEncoder
from luna_fairseq.modules.options import SINUSOIDAL, EncoderOptions, StackOptions

logger = logging.getLogger(__name__)
# Translations lose words if a row of P represents more source tokens than this.
TOKENS_A_ROW = 16


class FairseqLunaEncoder(NoTorchScript, LunaEncoder, TransformerEncoderBase):
    """:class:`LunaEncoder` with the interface of fairseq's Transformer encoder.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it.
        dictionary: source dictionary.
        embed_tokens: token embedding.
        sentence_encoder: build the encoder of a model without a decoder, see
            :class:`luna_fairseq.modules.options.EncoderOptions` (default: False).
        packed_is_read: True if a decoder or a classification head reads the last packed sequence P. If False,
            the layer norm of the last P in a sentence encoder has neither gain nor bias until
            :func:`read_packed` is called (default: True).
        layer_repeats: number of times that the list of layers is applied (default: 1).
    """

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        sentence_encoder: bool = False,
        packed_is_read: bool = True,
        layer_repeats: int = 1,
    ):
        FairseqEncoder.__init__(self, dictionary)
        self.cfg = cfg
        self.register_buffer("version", torch.Tensor([3]))  # expected by fairseq in checkpoints
        self.max_source_positions = cfg.max_source_positions
        self.sentence_encoder = sentence_encoder
        self.packed_is_read_later = False
        self.has_warned = sentence_encoder  # no warning for classifiers and masked language models
        options = EncoderOptions(
            **stack_options(cfg, cfg.encoder, cfg.max_source_positions),
            fix_projection_length=cfg.fix_projection_length,
            sentence_encoder=sentence_encoder,
            packed_is_read=packed_is_read,
            layer_repeats=layer_repeats,
        )
        self.build(options, embed_tokens, choose_encoder_attentions(cfg))
        self.num_layers = len(self.layers)
        use_fairseq_stack(self, "LunaEncoder", cfg)
        use_fairseq_layers(self.packed_embedding, "PackedEmbedding")

    def build_positions(self, options: StackOptions, padding_idx: int) -> Optional[nn.Module]:
        """Build fairseq's sinusoidal positions, or another kind of positions as :class:`LunaEncoder` does.

        Args:
            options: options of the encoder.
            padding_idx: index of padding in the dictionary.

        Returns:
            Module of the positions, or None without positions.
        """
        if options.positions == SINUSOIDAL:
            return FairseqPositions(options.max_positions, options.embed_dim, padding_idx)
        return super().build_positions(options, padding_idx)

    def packed_positions(self, length: int, embed_dim: int) -> Tensor:
        """Compute fairseq's sinusoidal position embeddings for the packed sequence P.

        Args:
            length: number of rows of P, L.
            embed_dim: width C.

        Returns:
            Position embeddings [L, C].
        """
        return SinusoidalPositionalEmbedding.get_embedding(length, embed_dim)

    def build_layers(self, options: EncoderOptions) -> nn.ModuleList:
        """Build the layers, with LayerDrop if --encoder-layerdrop is above 0."""
        return with_layer_drop(super().build_layers(options), self.cfg.encoder.layerdrop)

    def build_layer(self, options: EncoderOptions, number: int) -> nn.Module:
        """Build a layer out of fairseq's modules, and apply fairseq's wrappers.

        Args:
            options: options of the encoder.
            number: index of the layer, from 0.

        Returns:
            The layer.
        """
        return wrap_luna_layer(super().build_layer(options, number), "LunaEncoderLayer", self.cfg)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load parameters as torch does, after adapting the layer norm of the last packed sequence P.

        Args:
            state_dict: parameters of the checkpoint by name.
            prefix: beginning of the names of the encoder's parameters.
            args: further arguments of torch's method.
        """
        if self.sentence_encoder and self.packed_layer_norm is not None:
            find_packed_norm(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Add fairseq's version number to the state dict of an older checkpoint.

        fairseq's method would also rename parameters. Here the model does so, see
        :meth:`luna_fairseq.models.bases.PluginModel.upgrade_state_dict_named`.

        Args:
            state_dict: parameters by name, changed in place.
            name: prefix of the encoder's parameters.

        Returns:
            The state dict.
        """
        state_dict.setdefault(f"{name}.version", self.version.clone())
        return state_dict

    def check_length(self, length: int) -> None:
        """Check the length of the sources, and warn once if they are too long for the packed sequence P.

        Args:
            length: number of tokens of the longest source.

        Raises:
            InputError: The model has fewer positions than the source has tokens.
        """
        if length > self.max_positions():
            option = "--max-positions" if self.sentence_encoder else "--max-source-positions"
            raise InputError(
                f"a source sentence has {length} tokens, the model's positions end at "
                f"{self.max_positions()}: shorten it, or train with a larger {option}"
            )
        if not self.has_warned and length > TOKENS_A_ROW * self.cfg.projection_length:
            self.has_warned = True
            logger.warning(
                f"a source has {length:,} tokens and P {self.cfg.projection_length} rows "
                "(--projection-length): translations lose words if a row of P represents more than "
                f"{TOKENS_A_ROW} tokens; use --projection-length {-(-length // TOKENS_A_ROW)} or more"
            )

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> Dict[str, List[Any]]:
        """Encode source tokens.

        Args:
            src_tokens: source tokens [B, S], padded on either side.
            src_lengths: ignored, because lengths are counted from ``src_tokens``.
            return_all_hiddens: also return X and the packed sequence P after every layer (default: False).
            token_embeddings: embeddings [B, S, C] in place of those of the tokens (default: None).

        Returns:
            A dictionary of lists with the entries of fairseq's encoder and five further entries:

            - ``packed_out``: the last packed sequence P [L, B, C]
            - ``packed_padding_mask``: mask of P [B, L], True at masked rows; empty if no row is masked
            - ``packed_states``: P after every layer, with ``return_all_hiddens``
            - ``has_padding``: False if the batch is known to have no padding
            - ``hypotheses``: empty until :meth:`reorder_encoder_out` adds a :class:`Hypotheses`

        Raises:
            InputError: A source is longer than the positions, or the call is inside of torch.jit.trace or
                torch.export.
        """
        refuse_graphs()
        self.check_length(src_tokens.size(1))
        if isinstance(self.embed_positions, FairseqPositions):
            self.embed_positions.extend(src_tokens.size(1))
        padding_mask = src_tokens.eq(self.padding_idx)
        out = LunaEncoder.forward(
            self,
            src_tokens,
            embeddings=token_embeddings,
            padding_mask=padding_mask,
            return_states=return_all_hiddens,
        )
        source = out.source
        return {
            "encoder_out": [out.x],
            "encoder_padding_mask": [padding_mask],
            "has_padding": [source.padding_mask is not None],
            "encoder_embedding": [],
            "encoder_states": list(out.states),
            "packed_out": [out.packed],
            "packed_padding_mask": [] if source.packed_padding_mask is None else [source.packed_padding_mask],
            "packed_states": list(out.packed_states),
            "src_tokens": [src_tokens],
            "src_lengths": [(~padding_mask).sum(dim=1, keepdim=True)],
            "hypotheses": [],
        }

    def reorder_encoder_out(
        self, encoder_out: Dict[str, List[Any]], new_order: Tensor
    ) -> Dict[str, List[Any]]:
        """Reorder an encoder output for beam search.

        Args:
            encoder_out: output of :meth:`forward`.
            new_order: index [R] of the sentence that moves to each of the R positions of the new batch.

        Returns:
            The reordered output. ``encoder_out`` itself if hypotheses only change places within their
            sentences.
        """
        sentences = encoder_out["encoder_out"][0].size(1)
        before = encoder_out["hypotheses"] or [Hypotheses.in_a_row(sentences, sentences, new_order.device)]
        after = before[0].reorder(new_order)
        if after is None:
            return encoder_out
        # fairseq overwrites the entries of this list, so it gets a copy.
        encoder_out = {**encoder_out, "encoder_states": list(encoder_out["encoder_states"])}
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for name in ("packed_out", "packed_states"):
            reordered[name] = [packed.index_select(1, new_order) for packed in encoder_out[name]]
        reordered["has_padding"] = encoder_out["has_padding"]
        masks = encoder_out["packed_padding_mask"]
        reordered["packed_padding_mask"] = [mask.index_select(0, new_order) for mask in masks]
        reordered["hypotheses"] = [after[1]]
        return reordered
