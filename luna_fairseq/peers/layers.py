"""fairseq's Transformer encoder and decoder with peer attentions (attentions from other papers)."""

from typing import Any, Callable, Dict, Optional, Tuple

from torch import Tensor, nn

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from luna_fairseq.anchored.target_places import target_places
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import activation_function, wrap_layer
from luna_fairseq.models.sequence_encoder import TransformerSequenceEncoder, TransformerSequenceLayer
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, CROSS
from luna_fairseq.peers.informer import InformationBlock
from luna_fairseq.peers.linformer import LinformerAttention
from luna_fairseq.peers.registry import build_attention


def build_layer_attention(cfg: Any, name: str, form: str) -> nn.Module:
    """Build the attention of an encoder or decoder layer from the model options.

    Args:
        cfg: fairseq's nested ``TransformerConfig`` of the model.
        name: name of the attention in ``ATTENTIONS``, such as "performer".
        form: "bidirectional" for the encoder, "causal" or "cross" for the decoder.

    Returns:
        Attention with the width, number of heads and maximum length of the encoder or the decoder.
    """
    encodes = form == BIDIRECTIONAL
    side = cfg.encoder if encodes else cfg.decoder
    return build_attention(
        name,
        side.embed_dim,
        side.attention_heads,
        form,
        cfg,
        max_positions=cfg.max_source_positions if encodes else cfg.max_target_positions,
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
    )


class PeerEncoderLayer(TransformerSequenceLayer):
    """fairseq's Transformer encoder layer with a peer attention, an efficient attention from another paper.

    Args:
        cfg: fairseq's nested ``TransformerConfig`` of the model; ``cfg.attention`` names the attention.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        # The layer of fairseq 0.12.2 accesses projections that some attentions lack, so the attention is
        # not built by fairseq's method.
        self.self_attn = build_layer_attention(cfg, cfg.attention, BIDIRECTIONAL)


class InformerEncoderLayer(PeerEncoderLayer):
    """Encoder layer with an information organization block in place of the feed-forward network.

    The block comes from the Informer of Estupinan Ojeda et al., see :class:`InformationBlock`.

    Args:
        cfg: fairseq's nested ``TransformerConfig`` of the model. ``cfg.attention`` names the attention, and
            ``cfg.information_kernel`` is the kernel of the block.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.fc1 = self.fc2 = None
        self.information_block = InformationBlock(
            self.embed_dim, cfg.max_source_positions, cfg.information_kernel
        )

    def forward(
        self, x: Tensor, encoder_padding_mask: Optional[Tensor], attn_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Apply attention and the information block, each with a residual connection and layer normalization.

        Overrides ``forward`` of fairseq's encoder layer.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.
            encoder_padding_mask: mask [B, T], True at padding (None if there is no padding).
            attn_mask: ignored (default: None).

        Returns:
            Output [T, B, C].
        """
        padding_mask = None if encoder_padding_mask is None else encoder_padding_mask.bool()
        x = self._sublayer(x, self.self_attn_layer_norm, lambda y: self.self_attn(y, y, y, padding_mask)[0])
        return self._sublayer(x, self.final_layer_norm, lambda y: self.information_block(y, padding_mask))

    def _sublayer(self, x: Tensor, norm: nn.Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a block with dropout, a residual connection and layer normalization.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.
            norm: layer normalization. It is applied before the block if ``normalize_before`` is set, and
                otherwise after the residual connection.
            block: function from a tensor [T, B, C] to a tensor of the same shape.

        Returns:
            Output [T, B, C].
        """
        y = self.dropout_module(block(norm(x) if self.normalize_before else x))
        x = self.residual_connection(y, x)
        return x if self.normalize_before else norm(x)


class PeerDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's Transformer decoder layer with peer attentions, efficient attentions from other papers.

    Args:
        cfg: fairseq's nested ``TransformerConfig`` of the model. ``cfg.decoder_attention`` and
            ``cfg.cross_attention`` name the attentions.
        no_encoder_attn: build a layer without cross-attention (default: False).
    """

    def __init__(self, cfg: Any, no_encoder_attn: bool = False):
        super().__init__(cfg, no_encoder_attn)
        self.activation_fn = activation_function(cfg.activation_fn)

    def build_self_attention(self, embed_dim: int, cfg: Any, **kwargs: Any) -> nn.Module:
        """Build the causal self-attention. Overrides the method of fairseq's decoder layer.

        Args:
            embed_dim: ignored, because ``cfg`` contains the width.
            cfg: fairseq's nested ``TransformerConfig`` of the model.
            kwargs: ignored.

        Returns:
            The attention module named by ``cfg.decoder_attention``.
        """
        return build_layer_attention(cfg, cfg.decoder_attention, CAUSAL)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> nn.Module:
        """Build the cross-attention. Overrides the method of fairseq's decoder layer.

        Args:
            embed_dim: ignored, because ``cfg`` contains the width.
            cfg: fairseq's nested ``TransformerConfig`` of the model.

        Returns:
            The attention module named by ``cfg.cross_attention``.
        """
        return build_layer_attention(cfg, cfg.cross_attention, CROSS)


class PeerEncoder(TransformerSequenceEncoder):
    """fairseq's Transformer encoder with peer attentions, efficient attentions from other papers.

    With ``--linformer-sharing layerwise``, all layers use the length projections of the first layer.

    Args:
        cfg: fairseq's nested ``TransformerConfig`` of the model.
        dictionary: dictionary of the source tokens.
        embed_tokens: token embedding.
        layer_repeats: number of times the stack of layers is applied (default: 1).
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens, layer_repeats)
        linformers = [module for module in self.modules() if isinstance(module, LinformerAttention)]
        for attention in linformers[1:]:
            attention.share_projections(linformers[0])

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """Encode a batch, and also return the source tokens.

        Overrides ``forward`` of fairseq's encoder. The decoder needs the source tokens if
        ``--diagonal-prior`` is set.

        Args:
            src_tokens: source tokens [B, S]: B sentences of S tokens.
            args: remaining positional arguments of fairseq's encoder.
            kwargs: remaining keyword arguments of fairseq's encoder.

        Returns:
            The outputs of fairseq's encoder, with the entry ``src_tokens`` added.
        """
        return {**super().forward(src_tokens, *args, **kwargs), "src_tokens": [src_tokens]}

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Build an encoder layer. Overrides the method of fairseq's encoder.

        Args:
            cfg: nested ``TransformerConfig`` of the model. With ``cfg.information_block``, an information
                organization block replaces the feed-forward network.

        Returns:
            The layer.
        """
        layer_class = InformerEncoderLayer if cfg.information_block else PeerEncoderLayer
        return wrap_layer(layer_class(cfg), cfg)


class PeerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder with peer attentions, efficient attentions from other papers.

    See fairseq's ``TransformerDecoderBase`` for the constructor arguments.

    Attributes:
        separators: indices of the sentence separator in the source and target dictionaries, needed for
            ``--sentence-diagonal`` (default: None).
    """

    separators: Optional[Tuple[int, int]] = None

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        """Build a decoder layer with peer attentions. Overrides the method of fairseq's decoder.

        Args:
            cfg: fairseq's nested ``TransformerConfig`` of the model.
            no_encoder_attn: build a layer without cross-attention (default: False).

        Returns:
            The layer.
        """
        return wrap_layer(PeerDecoderLayer(cfg, no_encoder_attn), cfg)

    def buffered_future_mask(self, tensor: Tensor) -> None:
        """Return None in place of a causal mask, because peer attentions mask later positions themselves.

        Overrides the method of fairseq's decoder.

        Args:
            tensor: ignored.
        """

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: Any = None,
        full_context_alignment: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Compute the decoder features, as in fairseq.

        Overrides the method of fairseq's decoder. With ``--diagonal-prior``, this method first passes the
        positions of the target tokens to each cross-attention.

        Args:
            prev_output_tokens: target tokens [B, T], shifted right: B sentences of T tokens.
            encoder_out: outputs of the encoder (None if the model has no encoder).
            incremental_state: fairseq's dictionary of decoding states (default: None, all positions at once).
            full_context_alignment: must be False (default: False).
            args: remaining positional arguments of fairseq's decoder.
            kwargs: remaining keyword arguments of fairseq's decoder.

        Returns:
            - features [B, T, C] of model width C.
            - dictionary of additional outputs of fairseq's decoder.

        Raises:
            InputError: ``full_context_alignment`` is set, which is incompatible with causal attention.
        """
        if full_context_alignment:
            raise InputError(
                "Full-context alignment is not possible, because the decoder's attention is causal. Use "
                "full_context_alignment=False."
            )
        if getattr(self.cfg, "diagonal_prior", False):
            (source,) = encoder_out["src_tokens"]
            places = target_places(prev_output_tokens, source, self.padding_idx, self.separators)
            new = prev_output_tokens.size(1) if incremental_state is None else 1
            new_positions = tuple(None if x is None else x[:, -new:] for x in places)
            for layer in self.layers:
                layer.encoder_attn.diagonal_positions = new_positions
        return super().extract_features(
            prev_output_tokens, encoder_out, incremental_state, full_context_alignment, *args, **kwargs
        )
