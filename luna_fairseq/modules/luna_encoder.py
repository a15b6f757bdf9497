"""The Luna encoder: fairseq's Transformer encoder with the packed sequence P beside X."""

import logging
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import FairseqDropout, LayerNorm, SinusoidalPositionalEmbedding
from luna_fairseq.errors import InputError
from luna_fairseq.modules.fairseq_layers import (
    RepeatedLayer,
    attention_options,
    finish_layer,
    use_fairseq_layers,
)
from luna_fairseq.modules.incremental_decoding import IncrementalEncoder
from luna_fairseq.modules.last_packed_norm import find_packed_norm
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_layer import LunaEncoderLayer
from luna_fairseq.modules.no_torchscript import REASON, NoTorchScript
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import IncrementalState, Sentences
from luna_fairseq.ops.attention import in_a_graph

logger = logging.getLogger(__name__)
# Sources of more tokens for each row of P are more than it holds: translations lose words.
TOKENS_A_ROW = 16


def drop_words(embedding: Tensor, dropout_module: FairseqDropout) -> Tensor:
    """Drop whole token vectors of ``embedding`` [B, T, C] and rescale the rest."""
    if dropout_module.p == 0.0:
        return embedding
    return embedding * dropout_module(embedding.new_ones(embedding.shape[:2])).unsqueeze(-1)


class LunaEncoder(NoTorchScript, IncrementalEncoder, TransformerEncoderBase):
    """N Luna layers over tokens and P.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        dictionary: source dictionary
        embed_tokens: token embedding
        sentence_encoder: there is no decoder. The encoder itself then normalises the last P, and rows of P
            that are left out begin as zeros (default: False)
        packed_is_read: something reads the last P. Otherwise its norm in a sentence encoder has neither gain
            nor bias before :func:`read_packed` (default: True)
        layer_repeats: apply the one layer that ``cfg`` asks for so many times (default: 1, every layer once).
            Its post-norm of P is then also that of the last P
    """

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        embed_tokens: torch.nn.Embedding,
        sentence_encoder: bool = False,
        packed_is_read: bool = True,
        layer_repeats: int = 1,
    ):
        self.sentence_encoder = sentence_encoder
        self.packed_is_read_later = False
        self.layers_normalize_packed = layer_repeats > 1 and not cfg.encoder.normalize_before
        self.positions_option = "--max-positions" if sentence_encoder else "--max-source-positions"
        self.layers_built = 0
        self.warned_of_rows = sentence_encoder  # classifiers and masked LMs read long texts with few rows
        super().__init__(cfg, dictionary, embed_tokens)
        if layer_repeats > 1:
            self.layers: torch.nn.ModuleList = RepeatedLayer(self.layers, layer_repeats)
        self.word_dropout_module = FairseqDropout(cfg.word_dropout, module_name="LunaEncoder")
        self.dropout_module.module_name = "LunaEncoder"  # whatever the subclass
        sinusoidal = not (cfg.no_token_positional_embeddings or cfg.encoder.learned_pos)
        packed_embedding = PackedEmbedding(
            cfg.projection_length,
            embed_tokens.embedding_dim,
            dropout=cfg.dropout,
            scale=not cfg.no_scale_embedding,
            positions=SinusoidalPositionalEmbedding.get_embedding if sinusoidal else None,
            layer_norm=cfg.layernorm_embedding,
            fix_length=cfg.fix_projection_length,
            zero_padding=sentence_encoder,
        )
        self.packed_embedding = use_fairseq_layers(packed_embedding, "PackedEmbedding")
        self.packed_layer_norm: Optional[torch.nn.Module] = None
        if sentence_encoder and not self.layers_normalize_packed:
            self.packed_layer_norm = LayerNorm(
                embed_tokens.embedding_dim, elementwise_affine=packed_is_read, export=cfg.export
            )
        elif cfg.encoder.normalize_before and not cfg.non_contextual_packed:
            self.packed_layer_norm = LayerNorm(embed_tokens.embedding_dim, export=cfg.export)

    def build_encoder_layer(self, cfg: Any) -> torch.nn.Module:
        # fairseq builds the layers in order and does not say which one it is at.
        self.layers_built += 1
        leaves_norm = self.sentence_encoder and self.layers_built == cfg.encoder.layers
        noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
        attention = use_fairseq_layers(self.build_attention(cfg), "LunaAttention", **noise)
        layer = LunaEncoderLayer(attention, cfg.encoder.embed_dim)
        normalize_packed = self.layers_normalize_packed or not leaves_norm
        return finish_layer(layer, "LunaEncoderLayer", cfg, not cfg.non_contextual_packed, normalize_packed)

    def build_attention(self, cfg: Any) -> LunaAttention:
        """The attention of a layer."""
        return LunaAttention(**attention_options(cfg, cfg.encoder))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        if self.sentence_encoder and self.packed_layer_norm is not None:
            find_packed_norm(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Optional[Tensor] = None):
        """fairseq's embedding of ``src_tokens`` [B, S], with word dropout before the positions are added."""
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        return super().forward_embedding(src_tokens, drop_words(token_embedding, self.word_dropout_module))

    def warn_of_few_rows(self, length: int) -> None:
        """Say once that sources of ``length`` tokens are too long for P."""
        self.warned_of_rows = True
        logger.warning(
            f"a source has {length:,} tokens and P {self.cfg.projection_length} rows (--projection-length): "
            f"translations of long sources lose words where a row is for more than {TOKENS_A_ROW} tokens; "
            f"give --projection-length {-(-length // TOKENS_A_ROW)} or more"
        )

    def first_packed(self, lengths: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """The P [L, B, C] that the first layer reads, and its padding mask, see :class:`PackedEmbedding`."""
        return self.packed_embedding(lengths)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> Dict[str, List[Any]]:
        """
        Args:
            src_tokens: [B, S], padded on either side
            src_lengths: not needed: lengths are counted from ``src_tokens``
            return_all_hiddens: also return X and P after every layer
            token_embeddings: [B, S, C] in place of the embedding's own

        Returns:
            what fairseq's encoder returns, and ``has_padding`` [whether its mask has any], ``packed_out`` [P:
            L x B x C], ``packed_padding_mask`` [B x L] (empty when no row of P is left out),
            ``packed_states``, and ``hypotheses`` [:class:`Hypotheses`] (empty until
            :meth:`reorder_encoder_out`: one of each sentence)

        Raises:
            InputError: a source longer than the positions; torch.jit.trace or torch.export
        """
        if in_a_graph("is_exporting"):
            raise InputError(REASON)
        if src_tokens.size(1) > self.max_positions():
            raise InputError(
                f"a source sentence has {src_tokens.size(1)} tokens, the model's positions end at "
                f"{self.max_positions()}: shorten it, or train with a larger {self.positions_option}"
            )
        if not self.warned_of_rows and src_tokens.size(1) > TOKENS_A_ROW * self.cfg.projection_length:
            self.warn_of_few_rows(src_tokens.size(1))
        encoder_padding_mask = src_tokens.eq(self.padding_idx)
        lengths = (~encoder_padding_mask).sum(dim=1)
        x, encoder_embedding = self.forward_embedding(src_tokens, token_embeddings)
        has_pads = bool(encoder_padding_mask.any())
        if has_pads:
            x = x.masked_fill(encoder_padding_mask.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)  # [S, B, C]
        initial_packed, packed_padding_mask = self.first_packed(lengths)

        sentences = Sentences(encoder_padding_mask if has_pads else None, packed_padding_mask)
        packed = initial_packed
        encoder_states = [x] if return_all_hiddens else []
        packed_states = [packed] if return_all_hiddens else []
        for layer in self.layers:
            x, packed = layer(x, packed, sentences)
            packed = initial_packed if packed is None else packed
            if return_all_hiddens:
                encoder_states.append(x)
                packed_states.append(packed)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.packed_layer_norm is not None:
            packed = self.packed_layer_norm(packed)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [encoder_padding_mask],
            "has_padding": [has_pads],
            "encoder_embedding": [encoder_embedding],
            "encoder_states": encoder_states,
            "packed_out": [packed],
            "packed_padding_mask": [] if packed_padding_mask is None else [packed_padding_mask],
            "packed_states": packed_states,
            "src_tokens": [src_tokens],
            "src_lengths": [lengths.unsqueeze(1)],
            "hypotheses": [],
        }


def source_of(
    encoder_out: Optional[Dict[str, List[Any]]], incremental_state: Optional[IncrementalState]
) -> Tuple[Optional[Tensor], Optional[Tensor], Sentences]:
    """Context [S, B, C], P [L, B, C] and their sentences from an encoder's output: for each row of it, or
    once for all the hypotheses of a sentence where an ``incremental_state`` is there."""
    sentences = Sentences(incremental_state=incremental_state)
    if encoder_out is None:
        return None, None, sentences
    hypotheses = encoder_out["hypotheses"]
    beams = hypotheses[0].each if hypotheses and incremental_state is not None else 1
    if all(encoder_out.get("has_padding", [True])):
        for mask in encoder_out["encoder_padding_mask"]:
            sentences.padding_mask = mask[::beams]
    for tokens in encoder_out["src_tokens"]:
        sentences.source_tokens = tokens[::beams]
    for mask in encoder_out["packed_padding_mask"]:
        sentences.packed_padding_mask = mask[::beams]
    return encoder_out["encoder_out"][0][:, ::beams], encoder_out["packed_out"][0][:, ::beams], sentences
