"""A Luna layer: a Transformer layer with a second residual stream, the packed sequence P. Plain torch."""

from typing import Any, Callable, Dict, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.sentences import Sentences


class LunaLayer(nn.Module):
    """Dropout, residual and norm around attentions and the feed-forward block, before (pre-norm) or after
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
        self.update_packed = False
        self.packed_layer_norm: Optional[nn.Module] = None

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
        if (update_packed and normalize_packed) or self.normalize_before:
            self.packed_layer_norm = nn.LayerNorm(embed_dim)

    def before(self, norm: Optional[nn.Module], x: Tensor) -> Tensor:
        """What a block reads of a stream ``x``."""
        return norm(x) if self.normalize_before and norm is not None else x

    def after(self, norm: Optional[nn.Module], residual: Tensor, x: Tensor) -> Tensor:
        """The stream ``residual`` after a block that gives ``x``."""
        x = residual + self.dropout_module(x)
        return x if self.normalize_before or norm is None else norm(x)

    def next_packed(self, packed: Tensor, packed_context: Optional[Tensor]) -> Optional[Tensor]:
        """The next P [L, B, C]; None where nothing reads it."""
        if packed_context is None or not self.update_packed:
            return None
        return self.after(self.packed_layer_norm, packed, packed_context)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward block with its residual; x [T, B, C]. P does not pass through it."""
        y = self.activation_fn(self.fc1(self.before(self.final_layer_norm, x)))
        return self.after(self.final_layer_norm, x, self.fc2(self.activation_dropout_module(y)))

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> None:
        """fairseq's encoder calls this; names are translated for the whole model at once."""

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any) -> None:
        # A last layer that was an inner one before layers were pruned has a norm of P that nothing reads any
        # more.
        if self.packed_layer_norm is None:
            for name in ("weight", "bias"):
                state_dict.pop(f"{prefix}packed_layer_norm.{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *args)


class LunaEncoderLayer(LunaLayer):
    """Luna attention of X and P to X, then the feed-forward block on X.

    Args:
        self_attn: :class:`luna_fairseq.modules.LunaAttention`
        embed_dim: C
    """

    def __init__(self, self_attn: nn.Module, embed_dim: int):
        super().__init__()
        self.self_attn = self_attn
        self.self_attn_layer_norm: nn.Module = nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor, packed: Tensor, sentences: Sentences) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Args:
            x: [S, B, C]
            packed: P [L, B, C]
            sentences: what all layers know of the batch

        Returns:
            x [S, B, C] and the next P [L, B, C], or None when P is not updated
        """
        y, p = self.before(self.self_attn_layer_norm, x), self.before(self.packed_layer_norm, packed)
        y, packed_context, _ = self.self_attn(y, p, y, sentences)
        x = self.after(self.self_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed
