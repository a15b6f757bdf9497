"""Luna encoder layer, and the base class that it shares with the decoder layer.

A Luna layer is a Transformer layer with two residual streams: the tokens X and the packed sequence P.
"""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.options import StackOptions


class LunaLayer(nn.Module):
    """Base class of the Luna layers, with residual connections, layer norms and a feed-forward block.

    A layer consists of blocks: attention blocks and a feed-forward block. A pre-norm layer normalizes the
    input of each block. A post-norm layer normalizes the sum of a block's input and output.

    Subclasses build their attention modules, then call :meth:`build_feed_forward`. The order of construction
    is the order of the parameters in a checkpoint.

    Args:
        options: encoder or decoder options.
        builders: functions that build dropout, layer norms and linear layers (default: torch's).
    """

    dropout_name: str  # owner of the dropout modules

    def __init__(self, options: StackOptions, builders: Builders = TORCH):
        super().__init__()
        self.normalize_before = options.normalize_before
        self.dropout_module = builders.dropout(options.dropout, self.dropout_name)

    def build_feed_forward(
        self, options: StackOptions, update_packed: bool, normalize_packed: bool, builders: Builders = TORCH
    ) -> None:
        """Build the feed-forward block and, with ``normalize_packed``, the layer norm of P.

        With ``update_packed``, the layer returns an updated P. A norm whose output is not used must not be
        built, because parameters without a gradient break distributed training.
        """
        C = options.embed_dim
        self.activation_fn = options.activation_fn
        self.activation_dropout_module = builders.dropout(options.activation_dropout, self.dropout_name)
        self.fc1 = builders.linear(nn.Linear(C, options.ffn_embed_dim))
        self.fc2 = builders.linear(nn.Linear(options.ffn_embed_dim, C))
        self.final_layer_norm: nn.Module = builders.norm(C)
        self.update_packed = update_packed
        self.packed_layer_norm: Optional[nn.Module] = builders.norm(C) if normalize_packed else None

    def normalize_input(self, norm: Optional[nn.Module], x: Tensor) -> Tensor:
        """Normalize the input of a block in a pre-norm layer, or return it unchanged in a post-norm layer."""
        return norm(x) if self.normalize_before and norm is not None else x

    def add_residual(self, norm: Optional[nn.Module], residual: Tensor, x: Tensor) -> Tensor:
        """Add the output x of a block to its input, with dropout. A post-norm layer normalizes the sum."""
        x = residual + self.dropout_module(x)
        return x if self.normalize_before or norm is None else norm(x)

    def next_packed(self, packed: Tensor, packed_context: Optional[Tensor]) -> Optional[Tensor]:
        """Return P for the next layer, the residual sum of P and the packed context Y_P (both [L, B, C]).

        Return None if the layer does not update P.
        """
        if packed_context is None or not self.update_packed:
            return None
        return self.add_residual(self.packed_layer_norm, packed, packed_context)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward block with its residual connection to the tokens [T, B, C], and not to P."""
        y = self.activation_fn(self.fc1(self.normalize_input(self.final_layer_norm, x)))
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

    The layer updates the tokens X and the packed sequence P.

    Args:
        options: encoder options.
        self_attn: self-attention, such as :class:`luna_fairseq.modules.LunaAttention`.
        normalize_packed: in a post-norm layer, normalize the updated P. False in the last layer if the
            encoder normalizes the last P itself (default: True).
        builders: functions that build dropout, layer norms and linear layers (default: torch's).

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
        self.build_feed_forward(options, update_packed, has_norm, builders)

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        source: Source,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Apply self-attention and the feed-forward block.

        Shapes: S tokens, L rows of the packed sequence P, batch size B, width C, H heads.

        Args:
            x: tokens X [S, B, C].
            packed: packed sequence P [L, B, C].
            source: padding masks of X and of P.
            geometry: token positions, if attention weights depend on distance.
            need_weights: also return the self-attention weights.

        Returns:
            Output X [S, B, C], P [L, B, C] for the next layer (None if the layer does not update P), and
            weights [H, B, S, S] (None if ``need_weights`` is False).
        """
        y = self.normalize_input(self.self_attn_layer_norm, x)
        p = self.normalize_input(self.packed_layer_norm, packed)
        y, packed_context, weights = self.self_attn(
            y, p, y, source=source, geometry=geometry, need_weights=need_weights
        )
        x = self.add_residual(self.self_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights
