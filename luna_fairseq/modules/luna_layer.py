"""Layers of an encoder, of a decoder with cross-attention to a source, and of a language model.

A Luna layer is a Transformer layer with two residual streams: the tokens X and the packed sequence P. In pack
attention P attends to a context, with the result Y_P, which updates P. In unpack attention the tokens attend
to Y_P, with the result Y_X, which updates X.

In a decoder, P never depends on a target token. A decoder layer therefore has two methods: ``read`` is called
once per source, and ``forward`` for the target, either for whole sequences or for one token at a time. In
beam search, each of B source sentences has n hypotheses (candidate translations), which are adjacent in the
batch of targets. In training n is 1.

Shapes: S source tokens, T target tokens, L rows of P, batch size B, width C, H heads.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import NO_PADDING, Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.embedding import PackedEmbedding
from luna_fairseq.modules.memory import LayerMemory
from luna_fairseq.modules.options import StackOptions
from luna_fairseq.ops.causal_luna import TokenCounts


class LunaLayer(nn.Module):
    """Base class of the Luna layers, with residual connections, layer norms and a feed-forward block.

    A pre-norm layer (``options.normalize_before``) normalizes the input of each block. A post-norm layer
    normalizes the sum of a block's input and output. P has no feed-forward block.

    Subclasses build their attention modules first, then call :meth:`build_feed_forward` and
    :meth:`build_packed_update`. Optimizer states in checkpoints refer to the parameters by this order.

    Args:
        options: encoder or decoder options.
        builders: functions that build dropout and layer norms, and wrap linear layers (default: torch's).
    """

    dropout_name: str  # name by which --retain-dropout-modules selects the dropout modules

    def __init__(self, options: StackOptions, builders: Builders = TORCH):
        super().__init__()
        self.normalize_before = options.normalize_before
        self.dropout_module = builders.dropout(options.dropout, self.dropout_name)

    def build_feed_forward(self, options: StackOptions, builders: Builders) -> None:
        """Build the feed-forward block: two linear layers, an activation, dropout and a layer norm."""
        C = options.embed_dim
        self.activation_fn = options.activation_fn
        self.activation_dropout_module = builders.dropout(options.activation_dropout, self.dropout_name)
        self.fc1 = builders.linear(nn.Linear(C, options.ffn_embed_dim))
        self.fc2 = builders.linear(nn.Linear(options.ffn_embed_dim, C))
        self.final_layer_norm: nn.Module = builders.norm(C)

    def build_packed_update(
        self, width: int, update_packed: bool, has_norm: bool, builders: Builders
    ) -> None:
        """Store whether the layer updates P, and build the layer norm of P if ``has_norm`` is True.

        A pre-norm layer normalizes the P that enters pack attention, even if it does not update P. Causal
        attention reads P without a norm.
        """
        # A norm whose output is unused must not be built: parameters without a gradient break distributed
        # training.
        self.update_packed = update_packed
        self.packed_layer_norm: Optional[nn.Module] = builders.norm(width) if has_norm else None

    def block_input(self, norm: Optional[nn.Module], x: Tensor) -> Tensor:
        """Apply a block's layer norm to its input x if the layer is pre-norm and ``norm`` is not None."""
        return norm(x) if self.normalize_before and norm is not None else x

    def add_residual(self, norm: Optional[nn.Module], residual: Tensor, x: Tensor) -> Tensor:
        """Add a block's output x, with dropout, to the block's input ``residual``.

        A post-norm layer normalizes the sum, unless ``norm`` is None.
        """
        x = residual + self.dropout_module(x)
        return x if self.normalize_before or norm is None else norm(x)

    def next_packed(self, packed: Tensor, packed_context: Optional[Tensor]) -> Optional[Tensor]:
        """Return P for the next layer, the sum of P and Y_P [L, B, C], normalized in a post-norm layer.

        Return None if the layer does not update P. The next layer then reads the same P as the first layer.
        """
        if packed_context is None or not self.update_packed:
            return None
        return self.add_residual(self.packed_layer_norm, packed, packed_context)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward block and its residual connection to tokens [T, B, C]."""
        y = self.activation_fn(self.fc1(self.block_input(self.final_layer_norm, x)))
        return self.add_residual(self.final_layer_norm, x, self.fc2(self.activation_dropout_module(y)))

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        # A checkpoint from which later layers were pruned can contain a norm of P that the new last layer
        # does not have. The output of that norm would be unused.
        if self.packed_layer_norm is None:
            for name in ("weight", "bias"):
                state_dict.pop(f"{prefix}packed_layer_norm.{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class LunaEncoderLayer(LunaLayer):
    """Encoder layer with Luna self-attention and a feed-forward block.

    Args:
        options: encoder options.
        self_attn: self-attention, such as :class:`luna_fairseq.modules.LunaAttention`.
        normalize_packed: in a post-norm layer, normalize the updated P. False in the last layer if the
            encoder normalizes the last P itself (default: True).
        builders: functions that build dropout and layer norms, and wrap linear layers (default: torch's).

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import EncoderOptions, LunaAttention, Source
        >>> options = EncoderOptions(embed_dim=64, ffn_embed_dim=128, num_layers=1, num_heads=8)
        >>> layer = LunaEncoderLayer(options, LunaAttention(64, 8))
        >>> x, packed, _ = layer(torch.randn(50, 4, 64), torch.randn(16, 4, 64), Source())
        >>> x.shape, packed.shape
        (torch.Size([50, 4, 64]), torch.Size([16, 4, 64]))
    """

    dropout_name = "LunaEncoderLayer"

    def __init__(
        self,
        options: StackOptions,
        self_attn: nn.Module,
        normalize_packed: bool = True,
        builders: Builders = TORCH,
    ):
        super().__init__(options, builders)
        self.self_attn = self_attn
        self.self_attn_layer_norm: nn.Module = builders.norm(options.embed_dim)
        update_packed = not options.non_contextual_packed
        has_norm = (update_packed and normalize_packed) or options.normalize_before
        self.build_feed_forward(options, builders)
        self.build_packed_update(options.embed_dim, update_packed, has_norm, builders)

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        source: Source,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
        num_outputs: Optional[int] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Apply self-attention and the feed-forward block.

        Args:
            x: tokens X [S, B, C].
            packed: packed sequence P [L, B, C].
            source: padding masks of X and of P.
            geometry: token positions, if attention weights depend on distance.
            need_weights: also return the self-attention weights, the products of unpack and pack weights.
            num_outputs: number T of leading tokens whose output X is computed (default: None, all S). P is
                always computed from all tokens.

        Returns:
            Output X [T, B, C], P [L, B, C] for the next layer (None if the layer does not update P), and
            weights [H, B, T, S] (None if ``need_weights`` is False).
        """
        context = self.block_input(self.self_attn_layer_norm, x)
        p = self.block_input(self.packed_layer_norm, packed)
        # A geometry describes all tokens as queries, so an attention that needs it computes all outputs.
        all_queries = num_outputs is None or self.self_attn.needs_geometry
        query = context if all_queries else context[:num_outputs]
        y, packed_context, weights = self.self_attn(
            query, p, context, source=source, geometry=geometry, need_weights=need_weights
        )
        if num_outputs is not None:
            x, y = x[:num_outputs], y[:num_outputs]
            weights = None if weights is None else weights[:, :, :num_outputs]
        x = self.add_residual(self.self_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights


class Shared(NamedTuple):
    """Masks, positions and token counts that all layers share in one call of a decoder.

    Attributes:
        source: padding masks of the encoder output and of P.
        padding_mask: boolean mask [B * n, T], True at padding of the target.
        geometry: target positions, if attention weights depend on distance.
        counts: numbers of target tokens before and after this call. None if no layer has to return a state.
    """

    source: Source = NO_PADDING
    padding_mask: Optional[Tensor] = None
    geometry: Optional[Geometry] = None
    counts: Optional[TokenCounts] = None


NOTHING_SHARED = Shared()


class CausalLayer(LunaLayer):
    """Base class of decoder layers and language model layers, with causal self-attention."""

    dropout_name = "LunaDecoderLayer"  # also in a language model, which is a decoder for fairseq

    def __init__(self, options: StackOptions, self_attn: nn.Module, builders: Builders = TORCH):
        super().__init__(options, builders)
        self.self_attn = self_attn
        self.self_attn_layer_norm: nn.Module = builders.norm(options.embed_dim)

    def attend_to_target(
        self, x: Tensor, memory: LayerMemory, state: Any, shared: Shared
    ) -> Tuple[Tensor, Any]:
        """Apply causal self-attention and its residual connection to the target tokens X [T, B * n, C].

        Return the new X, and the state after the last position of X (None unless ``shared.counts`` is given).
        """
        y = self.block_input(self.self_attn_layer_norm, x)
        keep_state = shared.counts is not None
        y, state = self.self_attn(y, memory.causal, state, shared.padding_mask, keep_state, shared.counts)
        return self.add_residual(self.self_attn_layer_norm, x, y), state


class LunaDecoderLayer(CausalLayer):
    """Decoder layer with causal self-attention, cross-attention and a feed-forward block.

    Luna's self-attention and cross-attention go through a packed sequence P of fixed length, which summarizes
    the source.

    Args:
        options: decoder options.
        self_attn: causal self-attention, such as :class:`luna_fairseq.modules.LunaCausalAttention`.
        encoder_attn: cross-attention to the source, such as :class:`luna_fairseq.modules.LunaAttention`.
        update_packed: return an updated P for the next layer. False if no later layer uses it.
        builders: functions that build dropout and layer norms, and wrap linear layers (default: torch's).

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions, LunaAttention, LunaCausalAttention
        >>> options = DecoderOptions(embed_dim=64, ffn_embed_dim=128, num_layers=1, num_heads=8)
        >>> layer = LunaDecoderLayer(options, LunaCausalAttention(64, 8), LunaAttention(64, 8), True)
        >>> x, packed, context = torch.randn(20, 4, 64), torch.randn(16, 4, 64), torch.randn(50, 4, 64)
        >>> packed, memory = layer.read(packed, context)
        >>> x, _, _ = layer(x, memory)
        >>> x.shape, packed.shape
        (torch.Size([20, 4, 64]), torch.Size([16, 4, 64]))
    """

    def __init__(
        self,
        options: StackOptions,
        self_attn: nn.Module,
        encoder_attn: nn.Module,
        update_packed: bool,
        builders: Builders = TORCH,
    ):
        super().__init__(options, self_attn, builders)
        self.encoder_attn = encoder_attn
        self.encoder_attn_layer_norm: nn.Module = builders.norm(options.embed_dim)
        packs = encoder_attn.packs
        has_norm = packs and (update_packed or self.normalize_before)
        self.build_feed_forward(options, builders)
        self.build_packed_update(options.embed_dim, update_packed and packs, has_norm, builders)

    def read(
        self,
        packed: Tensor,
        context: Tensor,
        source: Source = NO_PADDING,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
        for_decoding: bool = False,
    ) -> Tuple[Optional[Tensor], LayerMemory]:
        """Pack the encoder's output into P, and return the tensors of the source that :meth:`forward` uses.

        Args:
            packed: P [L, B, C] of this layer.
            context: encoder output [S, B, C].
            source: padding masks of the encoder output and of P.
            geometry: source positions, if attention weights depend on distance.
            need_weights: also cache the pack weights, so that :meth:`forward` can return weights over the
                source.
            for_decoding: optimize the cached tensors for decoding single tokens. Ignored with
                ``need_weights``.

        Returns:
            P [L, B, C] for the next layer (None if the layer does not update P), and the tensors of the
            source.
        """
        # P enters causal attention without a layer norm even in a pre-norm layer, as in the authors' code.
        causal = self.self_attn.read(packed, source.packed_padding_mask)
        p = self.block_input(self.packed_layer_norm, packed)
        packed_context, cross = self.encoder_attn.pack(p, context, source, geometry, need_weights)
        if for_decoding and not need_weights:
            cross = self.encoder_attn.prepare(cross, source)
        return self.next_packed(packed, packed_context), LayerMemory(causal, cross)

    def forward(
        self,
        x: Tensor,
        memory: LayerMemory,
        state: Any = None,
        shared: Shared = NOTHING_SHARED,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Any, Optional[Tensor]]:
        """Apply causal self-attention, cross-attention and the feed-forward block.

        Args:
            x: hidden states X [T, B * n, C] of the target.
            memory: tensors of the B source sentences, returned by :meth:`read`.
            state: state of self-attention after the earlier positions, or None at the beginning.
            shared: padding masks and other values that are the same for all layers.
            need_weights: also return the weights over the source. Requires ``need_weights`` in :meth:`read`.

        Returns:
            Output X [T, B * n, C], the state after these positions (None unless ``shared.counts`` is given),
            and the weights over the source [H, B * n, T, S] (None if ``need_weights`` is False).
        """
        x, state = self.attend_to_target(x, memory, state, shared)
        y = self.block_input(self.encoder_attn_layer_norm, x)
        y, weights = self.encoder_attn.unpack(y, memory.cross, shared.source, shared.geometry, need_weights)
        x = self.add_residual(self.encoder_attn_layer_norm, x, y)
        return self.feed_forward(x), state, weights


class LanguageModelLayer(CausalLayer):
    """Layer of a causal language model, which has a learned packed sequence P in place of a source.

    Args:
        options: decoder options.
        self_attn: causal self-attention, which attends through P.
        packed_embedding: embedding of the learned P.
        builders: functions that build dropout and layer norms, and wrap linear layers (default: torch's).
    """

    def __init__(
        self,
        options: StackOptions,
        self_attn: nn.Module,
        packed_embedding: PackedEmbedding,
        builders: Builders = TORCH,
    ):
        super().__init__(options, self_attn, builders)
        self.packed_embedding = packed_embedding
        self.build_feed_forward(options, builders)
        self.build_packed_update(options.embed_dim, update_packed=False, has_norm=False, builders=builders)

    def read(self) -> LayerMemory:
        """Project the learned packed sequence P once, for use with all sequences in :meth:`forward`."""
        one_sequence = self.packed_embedding.weight.new_ones(1)  # P is the same for all sequences
        packed, _ = self.packed_embedding(one_sequence)
        return LayerMemory(self.self_attn.read(packed))

    def forward(
        self,
        x: Tensor,
        memory: LayerMemory,
        state: Any = None,
        shared: Shared = NOTHING_SHARED,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Any, None]:
        """Apply causal self-attention and the feed-forward block, as in :meth:`LunaDecoderLayer.forward`.

        Without a source, ``need_weights`` has no effect, and the third result is None.
        """
        x, state = self.attend_to_target(x, memory, state, shared)
        return self.feed_forward(x), state, None
