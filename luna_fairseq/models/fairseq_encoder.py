"""Luna encoder with the interface of fairseq's Transformer encoder.

:class:`FairseqLunaEncoder` connects :class:`luna_fairseq.modules.LunaEncoder` to fairseq's options,
dictionary and output format.
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
    apply_layer_drop,
    stack_options,
    use_fairseq_layers,
    use_fairseq_stack,
    wrap_luna_layer,
)
from luna_fairseq.models.last_packed_norm import adapt_packed_norm
from luna_fairseq.models.no_torchscript import NoTorchScript, refuse_tracing
from luna_fairseq.modules.luna_encoder import LunaEncoder
from luna_fairseq.modules.options import SINUSOIDAL, EncoderOptions, StackOptions

logger = logging.getLogger(__name__)
# Translations lose words if a row of P represents more source tokens than this.
TOKENS_A_ROW = 16


class FairseqLunaEncoder(NoTorchScript, LunaEncoder, TransformerEncoderBase):
    """Luna encoder with the interface of fairseq's Transformer encoder.

    Args:
        cfg: fairseq's TransformerConfig, extended with Luna's options.
        dictionary: source dictionary.
        embed_tokens: token embedding.
        sentence_encoder: build the encoder of a classifier or masked language model; see
            :class:`luna_fairseq.modules.options.EncoderOptions` (default: False, for translation).
        packed_is_read: whether a decoder or a classification head uses the packed sequence P after the last
            layer. If False, the final layer norm of P has no weight or bias in a sentence encoder.
            :func:`add_packed_norm_parameters` adds them later (default: True).
        layer_repeats: number of times the layers are applied, with shared weights (default: 1).
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
        self.register_buffer("version", torch.Tensor([3]))  # expected in checkpoints by fairseq
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
        """Build the position embeddings: fairseq's implementation if they are sinusoidal, otherwise Luna's.

        Overrides ``LunaEncoder.build_positions``.

        Args:
            options: encoder options.
            padding_idx: index of the padding symbol.

        Returns:
            Module that embeds positions; None if the options disable position embeddings.
        """
        if options.positions == SINUSOIDAL:
            return FairseqPositions(options.max_positions, options.embed_dim, padding_idx)
        return super().build_positions(options, padding_idx)

    def packed_positions(self, length: int, embed_dim: int) -> Tensor:
        """Compute fairseq's sinusoidal position embeddings for the packed sequence P.

        Overrides ``LunaEncoder.packed_positions``.

        Args:
            length: number of vectors in P.
            embed_dim: model width.

        Returns:
            Position embeddings [length, embed_dim].
        """
        return SinusoidalPositionalEmbedding.get_embedding(length, embed_dim)

    def build_layers(self, options: EncoderOptions) -> nn.ModuleList:
        """Build the encoder layers, with LayerDrop if --encoder-layerdrop is greater than 0.

        Overrides ``LunaEncoder.build_layers``.

        Args:
            options: encoder options.

        Returns:
            List of layers.
        """
        return apply_layer_drop(super().build_layers(options), self.cfg.encoder.layerdrop)

    def build_layer(self, options: EncoderOptions, number: int) -> nn.Module:
        """Build an encoder layer with fairseq's dropout and layer norm.

        The layer is also compiled, checkpointed or sharded if the options request it. Overrides
        ``LunaEncoder.build_layer``.

        Args:
            options: encoder options.
            number: zero-based layer index.

        Returns:
            The layer.
        """
        return wrap_luna_layer(super().build_layer(options, number), "LunaEncoderLayer", self.cfg)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load parameters, after adapting the final layer norm of the packed sequence P to this encoder.

        Overrides the method of :class:`torch.nn.Module`. See :func:`adapt_packed_norm` for the changes.

        Args:
            state_dict: checkpoint parameters keyed by name, modified in place.
            prefix: prefix of the encoder's parameters.
            args: remaining arguments of torch's method.
        """
        if self.sentence_encoder and self.packed_layer_norm is not None:
            adapt_packed_norm(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """Add fairseq's version number to a state dict from an older checkpoint.

        Overrides the method of fairseq's ``TransformerEncoderBase``, which would also rename parameters.
        :meth:`luna_fairseq.models.bases.PluginModel.upgrade_state_dict_named` renames them.

        Args:
            state_dict: parameters keyed by name, modified in place.
            name: prefix of the encoder's parameters.

        Returns:
            The state dict.
        """
        state_dict.setdefault(f"{name}.version", self.version.clone())
        return state_dict

    def check_length(self, length: int) -> None:
        """Check that the model has enough positions for the longest source.

        A translation model also warns once if the packed sequence P is too short for the source, because
        translations then lose words.

        Args:
            length: number of tokens in the longest source.

        Raises:
            InputError: ``length`` exceeds the model's maximum length.
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

        Shapes: batch size B, S source tokens, model width C, L vectors in the packed sequence P.

        Args:
            src_tokens: source tokens [B, S], padded on the left or on the right.
            src_lengths: ignored, because lengths are computed from ``src_tokens``.
            return_all_hiddens: also return the hidden states after every layer (default: False).
            token_embeddings: embeddings [B, S, C] that replace the token embeddings (default: None).

        Returns:
            A dictionary of lists: the entries of fairseq's encoder output and five additional entries.

            - ``packed_out``: packed sequence P [L, B, C] after the last layer
            - ``packed_padding_mask``: padding mask [B, L] of P, True at padding; an empty list if there is no
              padding
            - ``packed_states``: P after every layer, if ``return_all_hiddens`` is True
            - ``has_padding``: False if the batch is known to contain no padding
            - ``hypotheses``: empty until :meth:`reorder_encoder_out` adds a :class:`Hypotheses`

        Raises:
            InputError: A source exceeds the model's maximum length, or the call is inside torch.jit.trace or
                torch.export.
        """
        refuse_tracing()
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
        """Reorder the encoder output after beam search has selected hypotheses.

        Overrides the method of fairseq's ``TransformerEncoderBase``.

        Args:
            encoder_out: output of :meth:`forward`.
            new_order: for each new batch entry, the index of the old sentence it continues, [new batch size].

        Returns:
            The reordered output; ``encoder_out`` itself if every position keeps its sentence.
        """
        sentences = encoder_out["encoder_out"][0].size(1)
        before = encoder_out["hypotheses"] or [Hypotheses.adjacent(sentences, sentences, new_order.device)]
        after = before[0].reorder(new_order)
        if after is None:
            return encoder_out
        # fairseq overwrites the entries of this list, so pass a copy.
        encoder_out = {**encoder_out, "encoder_states": list(encoder_out["encoder_states"])}
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for name in ("packed_out", "packed_states"):
            reordered[name] = [packed.index_select(1, new_order) for packed in encoder_out[name]]
        reordered["has_padding"] = encoder_out["has_padding"]
        masks = encoder_out["packed_padding_mask"]
        reordered["packed_padding_mask"] = [mask.index_select(0, new_order) for mask in masks]
        reordered["hypotheses"] = [after[1]]
        return reordered
