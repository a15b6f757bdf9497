"""Luna's encoder and decoder layers: a Transformer layer with a second stream, the packed sequence P.

They do not extend fairseq's layers: that of fairseq 0.12 keeps a second copy of every parameter of its own
attention.
"""

from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq import utils
from luna_fairseq.modules.anchors import Anchors
from luna_fairseq.modules.fairseq_attention import (
    FairseqLunaAttention,
    FairseqLunaCausalAttention,
    FairseqSoftmaxCrossAttention,
    IncrementalState,
    with_fairseq_parts,
)
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.two_streams import TwoStreamLayer


def gelu(x: Tensor) -> Tensor:
    """Exact GELU, of half precision in float32 as fairseq's; unlike fairseq's, of float64 in float64."""
    return F.gelu(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """fairseq's activation function of this name, and our :func:`gelu`."""
    return gelu if name == "gelu" else utils.get_activation_fn(name)


class _LunaLayer(TwoStreamLayer):
    """A layer of two streams with fairseq's parts."""

    def finish(
        self, cfg: Any, side: Any, update_packed: Optional[bool] = None, normalize_packed: bool = True
    ) -> None:
        """Build what follows the attentions in a layer of ``side``, the encoder's or the decoder's part of
        ``cfg``.

        Without ``update_packed`` there is no norm of P.
        """
        self.build_feed_forward(
            side.embed_dim,
            side.ffn_embed_dim,
            activation_function(cfg.activation_fn),
            cfg.dropout,
            cfg.activation_dropout,
            side.normalize_before,
        )
        self.packed_layer_norm = None
        if update_packed is not None:
            self.build_packed_layer_norm(side.embed_dim, update_packed, normalize_packed)
        noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
        with_fairseq_parts(self, self.__class__.__name__, **noise, export=cfg.export)

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        # A last layer that was an inner one before layers were pruned has a norm of P that nothing reads any
        # more.
        if self.packed_layer_norm is None:
            for name in ("weight", "bias"):
                state_dict.pop(f"{prefix}packed_layer_norm.{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


def luna_attention_options(cfg: Any, side: Any) -> Dict[str, Any]:
    """Arguments of Luna attention with the heads of ``side``, the encoder's or the decoder's part of
    ``cfg``."""
    return {
        "embed_dim": side.embed_dim,
        "num_heads": side.attention_heads,
        "num_pack_heads": side.projected_attention_heads,
        "dropout": cfg.attention_dropout,
        "untie_kv": cfg.untie_luna_kv,
        "anchor_strength": cfg.anchor_strength if cfg.anchored_packed else None,
        "share_token_projections": cfg.share_token_projections,
        "q_noise": cfg.quant_noise.pq,
        "qn_block_size": cfg.quant_noise.pq_block_size,
    }


class LunaEncoderLayer(_LunaLayer):
    """Luna attention of X and P to X, then the feed-forward block on X.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        update_packed: pass the packed context on as the next layer's P (default: True)
        normalize_packed: in a post-norm layer, normalise that P; otherwise the caller does (default: True)
    """

    def __init__(self, cfg: Any, update_packed: bool = True, normalize_packed: bool = True):
        super().__init__()
        self.self_attn = FairseqLunaAttention(
            **luna_attention_options(cfg, cfg.encoder), anchored_unpack=True, local_parts=cfg.local_parts
        )
        self.self_attn_layer_norm = nn.LayerNorm(cfg.encoder.embed_dim)
        self.finish(cfg, cfg.encoder, update_packed, normalize_packed)

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's encoder calls this; names are translated for the whole model at once."""

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        anchors: Optional[Anchors] = None,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Args:
            x: [S, B, C]
            packed: P [L, B, C]
            encoder_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            anchors: the places of P's rows in X, the same in all layers (default: found here, where P is
                anchored)

        Returns:
            x [S, B, C] and the next P [L, B, C], or None when P is not updated
        """
        masks = encoder_padding_mask, packed_padding_mask
        x, packed, _ = self.attend(
            self.self_attn, self.self_attn_layer_norm, x, packed, None, *masks, anchors=anchors
        )
        return self.feed_forward(x), packed


class LunaDecoderLayer(_LunaLayer):
    """Luna causal attention through P, Luna attention of X and P to the encoder's output, feed-forward block.

    Without an encoder the second is left out, and P is a parameter of the layer (Luna, section 3.3).

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
        update_packed: pass the packed context on as the next layer's P; the last layer does not (default:
            True)
        no_encoder_attn: there is no encoder (default: False)
    """

    def __init__(self, cfg: Any, update_packed: bool = True, no_encoder_attn: bool = False):
        super().__init__()
        side = cfg.decoder
        self.self_attn = self.build_self_attention(cfg)
        self.self_attn_layer_norm = nn.LayerNorm(side.embed_dim)
        self.encoder_attn: Any = None
        self.packed_embedding: Any = None
        if no_encoder_attn:
            scale = not cfg.no_scale_embedding
            self.packed_embedding = PackedEmbedding(
                cfg.projection_length, side.embed_dim, scale=scale, fix_length=True
            )
        else:
            self.encoder_attn = self.build_encoder_attention(cfg, update_packed)
            self.encoder_attn_layer_norm = nn.LayerNorm(side.embed_dim)
        # With softmax attention to the source, P that is not handed on is not packed either.
        packs = not no_encoder_attn and (cfg.cross_attention == "luna" or update_packed)
        self.finish(cfg, side, update_packed if packs else None)
        self.update_packed = update_packed
        self.need_attn = True

    def build_self_attention(self, cfg: Any) -> nn.Module:
        side = cfg.decoder
        return FairseqLunaCausalAttention(
            side.embed_dim,
            side.attention_heads,
            dropout=cfg.attention_dropout,
            untie_kv=cfg.untie_luna_kv,
            pack_activation=cfg.pack_activation,
            backend=cfg.luna_backend,
            decay=cfg.causal_decay,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )

    def build_encoder_attention(self, cfg: Any, update_packed: bool) -> FairseqLunaAttention:
        options = {
            **luna_attention_options(cfg, cfg.decoder),
            "lookup": cfg.packed_lookup,
            "diagonal": cfg.diagonal_prior,
        }
        if cfg.cross_attention == "softmax":
            return FairseqSoftmaxCrossAttention(**options, packs=update_packed)
        return FairseqLunaAttention(**options)

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """fairseq-generate says here whether it will print alignments."""
        self.need_attn = need_attn

    def forward(
        self,
        x: Tensor,
        packed: Optional[Tensor] = None,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_attn: bool = False,
        anchors: Optional[Anchors] = None,
        target_place: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            x: [T, B, C]
            packed: P [L, B, C]; None after the first step of incremental decoding, and without an encoder
            encoder_out: [S, B, C]; None without an encoder
            encoder_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            self_attn_padding_mask: [B, T], True at padding
            incremental_state: fairseq's store for decoding
            need_attn: also return weights over the encoder's output
            anchors: the places of P's rows in it, the same in all layers (default: found here, where P is
                anchored)
            target_place: the number of each token in the target [B, T] (default: 0 .. T - 1)

        Returns:
            x [T, B, C]; the next P [L, B, C] or None; weights [H, B, T, S] or None
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        if self.packed_embedding is not None and self.self_attn.kept(incremental_state) is None:
            # In decoding all hypotheses share one P: it depends on nothing but the layer.
            sentences = x.size(1) if incremental_state is None else 1
            packed, _ = self.packed_embedding(x.new_full((sentences,), x.size(0)))
        # P enters causal attention as it is, pre-norm or not: the authors' model is defined so.
        x = self.self_attn(x, packed, self_attn_padding_mask, packed_padding_mask, incremental_state)
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)
        if self.encoder_attn is None:
            return self.feed_forward(x), None, None
        x, packed, weights = self.attend(
            self.encoder_attn,
            self.encoder_attn_layer_norm,
            x,
            packed,
            encoder_out,
            encoder_padding_mask,
            packed_padding_mask,
            need_attn,
            anchors,
            target_place,
            incremental_state,
        )
        return self.feed_forward(x), packed, weights
