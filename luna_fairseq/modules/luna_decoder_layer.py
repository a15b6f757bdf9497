"""Luna decoder layer: causal self-attention, cross-attention and a feed-forward block."""

from typing import Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.luna_layer import LunaLayer
from luna_fairseq.modules.options import StackOptions
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.state import LayerState
from luna_fairseq.ops.causal_luna import TokenCounts


class LunaDecoderLayer(LunaLayer):
    """Decoder layer with causal self-attention, cross-attention and a feed-forward block.

    Both attention modules use a packed sequence P of fixed length. In a translation model, P summarizes the
    source. A layer of a language model has no cross-attention and a learned P (Luna, section 3.3).

    Args:
        options: decoder options.
        self_attn: causal self-attention, such as :class:`luna_fairseq.modules.LunaCausalAttention`.
        encoder_attn: cross-attention to the source, such as :class:`luna_fairseq.modules.LunaAttention`, or
            None in a language model.
        packed_embedding: learned P of this layer, or None in a translation model.
        update_packed: return an updated P for the next layer; False in the last layer.

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions, LunaAttention, LunaCausalAttention
        >>> options = DecoderOptions(embed_dim=64, ffn_embed_dim=128, num_layers=1, num_heads=8)
        >>> layer = LunaDecoderLayer(options, LunaCausalAttention(64, 8), LunaAttention(64, 8), None, True)
        >>> x, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(50, 4, 64)
        >>> x, packed, _, _ = layer(x, packed, context, Source())
        >>> x.shape, packed.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

    def __init__(
        self,
        options: StackOptions,
        self_attn: nn.Module,
        encoder_attn: Optional[nn.Module],
        packed_embedding: Optional[PackedEmbedding],
        update_packed: bool,
    ):
        super().__init__(options)
        self.self_attn = self_attn
        self.self_attn_layer_norm: nn.Module = nn.LayerNorm(options.embed_dim)
        self.encoder_attn = encoder_attn
        self.packed_embedding = packed_embedding
        if encoder_attn is not None:
            self.encoder_attn_layer_norm: nn.Module = nn.LayerNorm(options.embed_dim)
        packs = encoder_attn is not None and encoder_attn.packs
        has_norm = packs and (update_packed or self.normalize_before)
        self.build_feed_forward(options, update_packed and packs, has_norm)

    def forward(
        self,
        x: Tensor,
        packed: Optional[Tensor],
        context: Optional[Tensor],
        source: Source,
        target_padding_mask: Optional[Tensor] = None,
        state: Optional[LayerState] = None,
        geometry: Optional[Geometry] = None,
        keep_state: bool = False,
        need_weights: bool = False,
        counts: Optional[TokenCounts] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[LayerState]]:
        """Apply causal self-attention, cross-attention and the feed-forward block.

        Shapes: T target positions, S source tokens, L rows of the packed sequence P, width C, H heads, B
        source sentences with n hypotheses each. The hypotheses (candidate translations in beam search) of a
        sentence are adjacent in the batch; n is 1 in training.

        Args:
            x: hidden states X [T, B * n, C] of the target.
            packed: packed sequence P [L, B, C]. None in a language model, and after the first decoding step.
            context: encoder output [S, B, C], or None in a language model.
            source: padding masks of the encoder output and of P.
            target_padding_mask: boolean mask [B * n, T], True at padding of X (default: None, no padding).
            state: state after the earlier positions, used only if ``keep_state`` is True (default: None, this
                call starts at the beginning of the sequences).
            geometry: token positions, if attention weights depend on distance (default: None, cross-attention
                computes them if needed).
            keep_state: also return the state after these positions (default: False).
            need_weights: also return the weights over the source (default: False).
            counts: number of tokens up to each position, used only if ``keep_state`` is True (default: None,
                computed by self-attention).

        Returns:
            Tuple of four values:

            - output X [T, B * n, C].
            - updated P [L, B, C] for the next layer, or None if the layer does not update P.
            - weights over the source [H, B * n, T, S] (None if ``need_weights`` is False).
            - state after these positions (None if ``keep_state`` is False).

        Raises:
            InputError: Neither ``packed`` nor ``state`` contains the packed source.
        """
        # P enters causal attention without a layer norm even in a pre-norm layer, as in the authors' code.
        y = self.normalize_input(self.self_attn_layer_norm, x)
        if self.packed_embedding is not None and (state is None or state.causal.pack_q is None):
            # All sequences share the learned P, so decoding projects and stores it once.
            packed, _ = self.packed_embedding(x.new_ones(1 if keep_state else x.size(1)))
        next_state = None
        if keep_state:
            causal = None if state is None else state.causal
            y, causal = self.self_attn.step(
                y, packed, causal, target_padding_mask, source.packed_padding_mask, counts
            )
            next_state = LayerState(causal)
        else:
            y = self.self_attn(y, packed, target_padding_mask, source.packed_padding_mask)
        x = self.add_residual(self.self_attn_layer_norm, x, y)
        if self.encoder_attn is None:
            return self.feed_forward(x), None, None, next_state
        y, packed_context = self.normalize_input(self.encoder_attn_layer_norm, x), None
        memory = None if state is None else state.memory
        if memory is None and packed is None:
            raise InputError(
                "no packed sequence was passed, and the state has no packed source. "
                "Pass packed in the first step"
            )
        if next_state is None:
            p = self.normalize_input(self.packed_layer_norm, packed)
            y, packed_context, weights = self.encoder_attn(
                y, p, context, source=source, geometry=geometry, need_weights=need_weights
            )
        else:
            if memory is None:
                p = self.normalize_input(self.packed_layer_norm, packed)
                packed_context, memory = self.encoder_attn.pack(p, context, source, geometry, need_weights)
                if not need_weights:
                    memory = self.encoder_attn.prepare(memory, source)
            y, weights = self.encoder_attn.unpack(y, memory, source, geometry, need_weights)
            next_state = next_state._replace(memory=memory)
        x = self.add_residual(self.encoder_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights, next_state
