"""Luna's encoder and decoder layers: fairseq's Transformer layers with a second stream, the packed sequence P."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention


class _LunaLayer:
    """Dropout, residual and norm around Luna attention and the feed-forward block, before (pre-norm) or after them."""

    def attend(
        self, attention: LunaAttention, layer_norm: LayerNorm, x: Tensor, packed: Optional[Tensor], *args, **kwargs
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Luna attention with X [T, B, C] and P [L, B, C] as two residual streams; P' is None where Y_P is, or where
        nothing reads it."""
        residual, packed_residual = x, packed
        if self.normalize_before:
            x = layer_norm(x)
            packed = packed if packed is None else self.packed_layer_norm(packed)
        x, packed_context, weights = attention(x, packed, *args, **kwargs)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = layer_norm(x)
        if packed_context is None or not self.update_packed:
            return x, None, weights
        packed = self.residual_connection(self.dropout_module(packed_context), packed_residual)
        if not self.normalize_before:
            packed = self.packed_layer_norm(packed)
        return x, packed, weights

    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward block with its residual; x [T, B, C]. P does not pass through it."""
        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = self.residual_connection(self.dropout_module(self.fc2(x)), residual)
        return x if self.normalize_before else self.final_layer_norm(x)

    def build_packed_layer_norm(self, cfg: Any, update_packed: bool) -> None:
        """The norm of Y_P + P, made only where something reads it: a parameter without gradient breaks DDP."""
        self.update_packed = update_packed
        self.packed_layer_norm = None
        if update_packed or self.normalize_before:
            self.packed_layer_norm = LayerNorm(self.embed_dim, export=cfg.export)

    def build_luna_attention(self, side: Any, cfg: Any) -> LunaAttention:
        """Luna attention with the heads of ``side``, the encoder's or the decoder's part of ``cfg``."""
        return LunaAttention(
            self.embed_dim,
            side.attention_heads,
            num_pack_heads=side.projected_attention_heads,
            dropout=cfg.attention_dropout,
            untie_kv=cfg.untie_luna_kv,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )


class LunaEncoderLayer(_LunaLayer, TransformerEncoderLayerBase):
    """Luna attention of X and P to X, then the feed-forward block on X.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        update_packed: pass the packed context on as the next layer's P (default: True)
    """

    def __init__(self, cfg: Any, update_packed: bool = True):
        super().__init__(cfg)
        self.build_packed_layer_norm(cfg, update_packed)

    def build_self_attention(self, embed_dim: int, cfg: Any) -> LunaAttention:
        return self.build_luna_attention(cfg.encoder, cfg)

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Args:
            x: [S, B, C]
            packed: P [L, B, C]
            encoder_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out

        Returns:
            x [S, B, C] and the next P [L, B, C], or None when P is not updated
        """
        x, packed, _ = self.attend(
            self.self_attn, self.self_attn_layer_norm, x, packed, x, encoder_padding_mask, packed_padding_mask
        )
        return self.feed_forward(x), packed


class LunaDecoderLayer(_LunaLayer, TransformerDecoderLayerBase):
    """Luna causal attention through P, Luna attention of X and P to the encoder's output, feed-forward block.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        update_packed: pass the packed context on as the next layer's P; the last layer does not (default: True)
    """

    def __init__(self, cfg: Any, update_packed: bool = True):
        super().__init__(cfg)
        self.build_packed_layer_norm(cfg, update_packed)

    def build_self_attention(self, embed_dim: int, cfg: Any, **kwargs: Any) -> LunaCausalAttention:
        return LunaCausalAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            untie_kv=cfg.untie_luna_kv,
            pack_activation=cfg.pack_activation,
            backend=cfg.luna_backend,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> LunaAttention:
        return self.build_luna_attention(cfg.decoder, cfg)

    def forward(
        self,
        x: Tensor,
        packed: Optional[Tensor],
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
        need_attn: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            x: [T, B, C]
            packed: P [L, B, C]; None after the first step of incremental decoding
            encoder_out: [S, B, C]
            encoder_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            self_attn_padding_mask: [B, T], True at padding
            incremental_state: fairseq's store for decoding
            need_attn: also return weights over the encoder's output

        Returns:
            x [T, B, C]; the next P [L, B, C] or None; weights [H, B, T, S] or None
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        # P enters causal attention as it is, pre-norm or not: the authors' model is defined so.
        x = self.self_attn(x, packed, self_attn_padding_mask, packed_padding_mask, incremental_state)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, packed, weights = self.attend(
            self.encoder_attn,
            self.encoder_attn_layer_norm,
            x,
            packed,
            encoder_out,
            encoder_padding_mask,
            packed_padding_mask,
            incremental_state,
            need_attn,
        )
        return self.feed_forward(x), packed, weights
