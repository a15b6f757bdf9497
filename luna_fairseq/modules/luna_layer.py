"""A Luna layer: a Transformer layer with a second residual stream, the packed sequence P. The encoder's
layer."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.options import StackOptions


class LunaLayer(nn.Module):
    """Dropout, residual and norm around attentions and the feed-forward block, before (pre-norm) or after
    them.

    A layer builds its attentions and their norms, then calls :meth:`build_rest`.

    Args:
        options: options of the stack that the layer belongs to
    """

    def __init__(self, options: StackOptions):
        super().__init__()
        self.normalize_before = options.normalize_before
        self.dropout_module: nn.Module = nn.Dropout(options.dropout)

    def build_rest(self, options: StackOptions, update_packed: bool, normalize_packed: bool) -> None:
        """Build the feed-forward block and the norm of the next P.

        Args:
            options: options of the stack that the layer belongs to
            update_packed: pass Y_P + P on as the next layer's P
            normalize_packed: the layer has a norm of P. A norm that nothing reads would be a parameter
                without gradient, which breaks distributed training
        """
        C = options.embed_dim
        self.activation_fn = options.activation_fn
        self.activation_dropout_module: nn.Module = nn.Dropout(options.activation_dropout)
        self.fc1 = nn.Linear(C, options.ffn_embed_dim)
        self.fc2 = nn.Linear(options.ffn_embed_dim, C)
        self.final_layer_norm: nn.Module = nn.LayerNorm(C)
        self.update_packed = update_packed
        self.packed_layer_norm: Optional[nn.Module] = nn.LayerNorm(C) if normalize_packed else None

    def before(self, norm: Optional[nn.Module], x: Tensor) -> Tensor:
        """Return what a block reads of a stream ``x``: its norm in a pre-norm layer."""
        return norm(x) if self.normalize_before and norm is not None else x

    def after(self, norm: Optional[nn.Module], residual: Tensor, x: Tensor) -> Tensor:
        """Add the output ``x`` of a block to the stream ``residual``, and normalise in a post-norm layer."""
        x = residual + self.dropout_module(x)
        return x if self.normalize_before or norm is None else norm(x)

    def next_packed(self, packed: Optional[Tensor], packed_context: Optional[Tensor]) -> Optional[Tensor]:
        """Return the next layer's P [L, B, C], or None if the layer does not update P."""
        if packed is None or packed_context is None or not self.update_packed:
            return None
        return self.after(self.packed_layer_norm, packed, packed_context)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward block and its residual to x [T, B, C]. P does not pass through it."""
        y = self.activation_fn(self.fc1(self.before(self.final_layer_norm, x)))
        return self.after(self.final_layer_norm, x, self.fc2(self.activation_dropout_module(y)))

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
        options: options of the encoder
        self_attn: attention of the slot, such as :class:`luna_fairseq.modules.LunaAttention`
        normalize_packed: in a post-norm layer, normalise the next P; otherwise the encoder does (default:
            True)
    """

    def __init__(self, options: StackOptions, self_attn: nn.Module, normalize_packed: bool = True):
        super().__init__(options)
        self.self_attn = self_attn
        self.self_attn_layer_norm: nn.Module = nn.LayerNorm(options.embed_dim)
        update_packed = not options.non_contextual_packed
        has_norm = (update_packed and normalize_packed) or options.normalize_before
        self.build_rest(options, update_packed, has_norm)

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        source: Source,
        geometry: Optional[Geometry] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            x: [S, B, C]
            packed: P [L, B, C]
            source: masks of x and P
            geometry: what the encoder has computed of the batch (default: None, it has computed nothing)
            need_weights: also return the weights of self-attention (default: False)

        Returns:
            x [S, B, C]; the next P [L, B, C], or None if P is not updated; weights [H, B, S, S] or None
        """
        y, p = self.before(self.self_attn_layer_norm, x), self.before(self.packed_layer_norm, packed)
        y, packed_context, weights = self.self_attn(
            y, p, y, source=source, geometry=geometry, need_weights=need_weights
        )
        x = self.after(self.self_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights
