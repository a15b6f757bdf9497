"""Two residual streams through a layer: X, and beside it the packed sequence P."""

from typing import Any, Callable, Optional, Tuple

from torch import Tensor, nn


class TwoStreamLayer(nn.Module):
    """Dropout, residual and norm around Luna attention and the feed-forward block, before (pre-norm) or after
    them.

    A layer builds its attentions and their norms, then the rest by the two methods that build.
    """

    def build_feed_forward(
        self,
        embed_dim: int,
        ffn_embed_dim: int,
        activation_fn: Callable[[Tensor], Tensor],
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        normalize_before: bool = False,
    ) -> None:
        """What follows the attentions.

        Args:
            embed_dim: C
            ffn_embed_dim: inner width of the feed-forward block
            activation_fn: its activation
            dropout: on what every block adds to its stream (default: 0)
            activation_dropout: after the activation (default: 0)
            normalize_before: pre-norm (default: False)
        """
        self.normalize_before = normalize_before
        self.dropout_module: nn.Module = nn.Dropout(dropout)
        self.activation_fn = activation_fn
        self.activation_dropout_module: nn.Module = nn.Dropout(activation_dropout)
        self.fc1 = nn.Linear(embed_dim, ffn_embed_dim)
        self.fc2 = nn.Linear(ffn_embed_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)

    def build_packed_layer_norm(
        self, embed_dim: int, update_packed: bool = True, normalize_packed: bool = True
    ) -> None:
        """The norm of Y_P + P, made only where something reads it: a parameter without gradient breaks DDP.

        Args:
            embed_dim: C
            update_packed: pass Y_P + P on as the next layer's P (default: True)
            normalize_packed: in a post-norm layer, normalise it; otherwise the caller does (default: True)
        """
        self.update_packed = update_packed
        self.packed_layer_norm: Any = None
        if (update_packed and normalize_packed) or self.normalize_before:
            self.packed_layer_norm = nn.LayerNorm(embed_dim)

    def attend(
        self,
        attention: Callable[..., Tuple[Tensor, Optional[Tensor], Optional[Tensor]]],
        layer_norm: Callable[[Tensor], Tensor],
        x: Tensor,
        packed: Optional[Tensor],
        context: Optional[Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """Luna attention with X [T, B, C] and P [L, B, C] as two residual streams; P' is None where Y_P is,
        or where nothing reads it. Without a context it is self-attention: X is packed as it is unpacked,
        after its norm."""
        residual, packed_residual = x, packed
        if self.normalize_before:
            x = layer_norm(x)
            if packed is not None and self.packed_layer_norm is not None:
                packed = self.packed_layer_norm(packed)
        x, packed_context, weights = attention(x, packed, x if context is None else context, *args, **kwargs)
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = layer_norm(x)
        if packed_context is None or not self.update_packed:
            return x, None, weights
        packed = packed_residual + self.dropout_module(packed_context)
        if not self.normalize_before and self.packed_layer_norm is not None:
            packed = self.packed_layer_norm(packed)
        return x, packed, weights

    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward block with its residual; x [T, B, C]. P does not pass through it."""
        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = residual + self.dropout_module(self.fc2(x))
        return x if self.normalize_before else self.final_layer_norm(x)
