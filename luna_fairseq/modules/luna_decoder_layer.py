"""A layer of the Luna decoder: causal attention, attention to the source, feed-forward block."""

from typing import Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.luna_layer import LunaLayer
from luna_fairseq.modules.options import StackOptions
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.state import LayerState


class LunaDecoderLayer(LunaLayer):
    """Luna causal attention through P, Luna attention of X and P to the encoder's output, feed-forward block.

    Without an encoder the second is left out, and P is a parameter of the layer (Luna, section 3.3).

    Args:
        options: options of the decoder
        self_attn: causal attention, such as :class:`luna_fairseq.modules.LunaCausalAttention`
        encoder_attn: attention to the source, such as :class:`luna_fairseq.modules.LunaAttention`; None
            without an encoder
        packed_embedding: the layer's own P; None with an encoder
        update_packed: pass Y_P + P on as the next layer's P; nothing reads that of the last layer
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
        self.build_rest(options, update_packed and packs, packs and (update_packed or self.normalize_before))

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
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor], Optional[LayerState]]:
        """
        Args:
            x: [T, B n, C]; n rows that follow one another share one of the B sentences of the source
            packed: P [L, B, C]; None after the first step of decoding, and without an encoder
            context: the encoder's output [S, B, C]; None without an encoder
            source: masks of the context and of P
            target_padding_mask: [B n, T], True at padding of x (default: None, no padding)
            state: what the positions before these have left, with ``keep_state`` alone (default: None, x
                begins the sequences)
            geometry: what the decoder has computed of the batch (default: None, it has computed nothing)
            keep_state: return the state after these positions (default: False)
            need_weights: also return weights over the source (default: False)

        Returns:
            x [T, B n, C]; the next P [L, B, C] or None; weights [H, B n, T, S] or None; the state or None

        Raises:
            InputError: neither P nor a state with the packed source was given
        """
        # P enters causal attention as it is, pre-norm or not: the authors' model is defined so.
        y = self.before(self.self_attn_layer_norm, x)
        if self.packed_embedding is not None and (state is None or state.causal.pack_q is None):
            # In decoding all rows share one P: it depends on nothing but the layer.
            packed, _ = self.packed_embedding(x.new_ones(1 if keep_state else x.size(1)))
        kept = None
        if keep_state:
            causal = None if state is None else state.causal
            y, causal = self.self_attn.step(
                y, packed, causal, target_padding_mask, source.packed_padding_mask
            )
            kept = LayerState(causal)
        else:
            y = self.self_attn(y, packed, target_padding_mask, source.packed_padding_mask)
        x = self.after(self.self_attn_layer_norm, x, y)
        if self.encoder_attn is None:
            return self.feed_forward(x), None, None, kept
        y, packed_context = self.before(self.encoder_attn_layer_norm, x), None
        memory = None if state is None else state.memory
        if memory is None and packed is None:
            raise InputError("no packed sequence was given, and no earlier step has kept what it packed")
        if kept is None:  # nothing is kept: pack and unpack in one call
            p = self.before(self.packed_layer_norm, packed)
            y, packed_context, weights = self.encoder_attn(
                y, p, context, source=source, geometry=geometry, need_weights=need_weights
            )
        else:
            if memory is None:
                p = self.before(self.packed_layer_norm, packed)
                packed_context, memory = self.encoder_attn.pack(p, context, source, geometry, need_weights)
            y, weights = self.encoder_attn.unpack(y, memory, source, geometry, need_weights)
            kept = kept._replace(memory=memory)
        x = self.after(self.encoder_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights, kept
