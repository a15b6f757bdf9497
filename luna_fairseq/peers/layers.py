"""fairseq's Transformer encoder and decoder with the attention mechanisms of luna_fairseq.peers."""

from typing import Any, Callable, Dict, Optional

from torch import Tensor, nn

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from luna_fairseq.anchored.target_places import target_places
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import activation_function, replace_dropout, wrap_layer
from luna_fairseq.models.sequence_encoder import TransformerSequenceEncoder, TransformerSequenceLayer
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, CROSS
from luna_fairseq.peers.informer import InformationBlock
from luna_fairseq.peers.linformer import LinformerAttention
from luna_fairseq.peers.registry import build_attention


def build_layer_attention(cfg: Any, name: str, role: str) -> nn.Module:
    """Build the attention mechanism ``name`` for an encoder or decoder layer with the sizes in ``cfg``.

    ``role`` is "bidirectional" for an encoder, and "causal" or "cross" for a decoder.
    """
    encodes = role == BIDIRECTIONAL
    side = cfg.encoder if encodes else cfg.decoder
    return build_attention(
        name,
        side.embed_dim,
        side.attention_heads,
        role,
        cfg,
        max_positions=cfg.max_source_positions if encodes else cfg.max_target_positions,
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
    )


class PeerEncoderLayer(TransformerSequenceLayer):
    """fairseq's Transformer encoder layer, with the self-attention mechanism selected by ``--attention``."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        # The layer of fairseq 0.12.2 accesses projections that some attentions lack, so the attention is
        # not built by fairseq's method.
        self.self_attn = build_layer_attention(cfg, cfg.attention, BIDIRECTIONAL)

    def attend(self, x: Tensor, padding_mask: Optional[Tensor], num_outputs: int) -> Tensor:
        """Compute self-attention for x [T, B, C], and return the first ``num_outputs`` of the T outputs."""
        return self.self_attn(x, x, x, padding_mask)[0][:num_outputs]


class InformerEncoderLayer(PeerEncoderLayer):
    """Encoder layer with an :class:`InformationBlock` in place of the feed-forward network."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.fc1 = self.fc2 = None
        self.information_block = InformationBlock(
            self.embed_dim, cfg.max_source_positions, cfg.information_kernel
        )

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor],
        attn_mask: Optional[Tensor] = None,
        num_outputs: Optional[int] = None,
    ) -> Tensor:
        padding_mask = None if encoder_padding_mask is None else encoder_padding_mask.bool()
        x = self._sublayer(x, self.self_attn_layer_norm, lambda y: self.self_attn(y, y, y, padding_mask)[0])
        x = self._sublayer(x, self.final_layer_norm, lambda y: self.information_block(y, padding_mask))
        return x[:num_outputs]

    def _sublayer(self, x: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a block with dropout, a residual connection, and layer normalization before or after it."""
        y = self.dropout_module(block(norm(x) if self.normalize_before else x))
        x = self.residual_connection(y, x)
        return x if self.normalize_before else norm(x)


class PeerDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's Transformer decoder layer, with the attention mechanisms selected in ``cfg``."""

    def __init__(self, cfg: Any, no_encoder_attn: bool = False):
        super().__init__(cfg, no_encoder_attn)
        self.activation_fn = activation_function(cfg.activation_fn)
        # Otherwise, every layer computes attention weights in evaluation mode. The decoder reads one layer's.
        self.need_attn = False

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Leave ``need_attn`` False, also with ``--print-alignment``."""

    def build_self_attention(self, embed_dim: int, cfg: Any, **kwargs: Any) -> nn.Module:
        return build_layer_attention(cfg, cfg.decoder_attention, CAUSAL)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> nn.Module:
        return build_layer_attention(cfg, cfg.cross_attention, CROSS)


class PeerEncoder(TransformerSequenceEncoder):
    """fairseq's Transformer encoder, with the attention mechanism selected by ``--attention``.

    With ``--linformer-sharing layerwise``, all layers use the first layer's projection along the length.
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens, layer_repeats)
        linformers = [module for module in self.modules() if isinstance(module, LinformerAttention)]
        for attention in linformers[1:]:
            attention.share_projections(linformers[0])

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """Encode tokens [B, S]. The output also contains ``src_tokens``, which ``--diagonal-prior`` needs."""
        return {**super().forward(src_tokens, *args, **kwargs), "src_tokens": [src_tokens]}

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        layer_class = InformerEncoderLayer if cfg.information_block else PeerEncoderLayer
        return wrap_layer(layer_class(cfg), cfg)


class PeerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder, with the causal and cross-attention mechanisms selected in ``cfg``."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        replace_dropout(self)
        self.attn_in_training = getattr(self.cfg, "attn_in_training", False)
        self.need_attn = True

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Set whether the decoder returns attention weights over the source during generation."""
        self.need_attn = need_attn

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        return wrap_layer(PeerDecoderLayer(cfg, no_encoder_attn), cfg)

    def buffered_future_mask(self, tensor: Tensor) -> None:
        """Return None in place of a causal mask, because the attention modules mask later positions."""

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: Any = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> Any:
        """Compute the hidden states [B, T, C] before the output projection, and fairseq's extra outputs.

        The attention weights are those of layer ``alignment_layer`` (default: the last layer, or none if
        they are not needed), averaged over the first ``alignment_heads`` heads (default: all).
        ``--diagonal-prior`` is a bias toward source tokens near the position expected for a target position.
        With this option, cross-attention gets a tuple of the padding mask and the target positions in place
        of the padding mask. Raises InputError if ``full_context_alignment`` is True.
        """
        if full_context_alignment:
            raise InputError(
                "Full-context alignment is not possible, because the decoder's attention is causal. Use "
                "full_context_alignment=False."
            )
        if getattr(self.cfg, "diagonal_prior", False):
            (source,) = encoder_out["src_tokens"]
            places = target_places(prev_output_tokens, source, self.padding_idx, self.cfg.separators)
            new = prev_output_tokens.size(1) if incremental_state is None else 1
            new_places = tuple(None if x is None else x[:, -new:] for x in places)
            masks = tuple((mask, *new_places) for mask in encoder_out["encoder_padding_mask"])
            encoder_out = {**encoder_out, "encoder_padding_mask": masks}
        needs_weights = self.attn_in_training if self.training else self.need_attn
        if alignment_layer is None and not needs_weights:
            alignment_layer = -1
        x, extra = super().extract_features(
            prev_output_tokens, encoder_out, incremental_state, False, alignment_layer, alignment_heads
        )
        if extra["attn"][0] is None:
            # fairseq's scorer would add the None in the list to the weights of another model.
            extra = {**extra, "attn": None}
        return x, extra
