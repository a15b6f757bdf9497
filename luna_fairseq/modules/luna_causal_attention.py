"""Luna causal attention: decoder self-attention (Luna, section 3.3)."""

from typing import Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.causal_state import StepwiseCausalAttention
from luna_fairseq.modules.heads import (
    beams_to_positions,
    check_choice,
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    packed_heads,
    positions_to_beams,
    projection,
    split_heads,
)
from luna_fairseq.ops.causal_luna import (
    BACKENDS,
    PACK_ACTIVATIONS,
    causal_luna,
    naive_causal_luna,
    pack_weights,
    why_not_triton_here,
)


def check_triton() -> None:
    """Raise InputError where the Triton form cannot run, before a model is built and data loaded for it."""
    reason = why_not_triton_here(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise InputError(f"--luna-backend triton cannot be used here: {reason}; use auto")


class LunaCausalAttention(StepwiseCausalAttention):
    """Attention of every position to itself and what came before it, through P. P is an input only.

    Args:
        embed_dim: C, width of everything
        num_heads: heads, of pack and unpack alike
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for the keys and values of unpack attention (default: False)
        pack_activation: omega, ``softplus`` or ``elu`` (default: softplus)
        backend: form of the attention over whole sequences, see :func:`luna_fairseq.ops.causal_luna`
            (default: auto)

    Raises:
        InputError: the width is not divisible by the number of heads; an unknown activation or backend, or
            one that this machine does not have
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        untie_kv: bool = False,
        pack_activation: str = "softplus",
        backend: str = "auto",
    ):
        super().__init__()
        check_heads(embed_dim, num_heads, "attention heads")
        check_choice("pack activation", pack_activation, PACK_ACTIVATIONS)
        check_choice("Luna backend", backend, BACKENDS)
        if backend == "triton":
            check_triton()
        self.num_heads = num_heads
        self.untie_kv = untie_kv
        self.pack_activation = pack_activation
        self.backend = backend
        self.dropout_module: nn.Module = nn.Dropout(dropout)

        of_keys = ("unpack_k", "unpack_v") if untie_kv else ("unpack_kv",)
        self.read_of_x = "pack_k", "unpack_q", *of_keys
        for name in ("pack_q", *self.read_of_x):
            self.add_module(f"{name}_proj", projection(embed_dim))
        self.in_one: Optional[nn.Module] = None  # the projections of X as one, where that is faster
        self.out_proj = output_projection(embed_dim)

    def forward(
        self,
        query: Tensor,
        packed: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """
        Args:
            query: X [T, B, C], whole sequences
            packed: P [L, B, C]
            key_padding_mask: [B, T], True at padding, left or right: it adds nothing and is not counted
            packed_padding_mask: [B, L], True at rows of P that are left out

        Returns:
            output, shaped as X
        """
        pack_k, q, k, v = self._heads(query)
        weights = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), pack_k)
        output = causal_luna(
            *(q, k, v, weights, packed_padding_mask, key_padding_mask),
            dropout=dropout_probability(self.dropout_module),
            backend=self.backend,
            log_decay=self.log_decay(),
        )
        return self.out_proj(merge_heads(output))

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        """A_pack and A_unpack over whole sequences, both [B, H, T, L], by the definition; arguments as in
        :meth:`forward`."""
        pack_k, q, k, v = self._heads(query)
        pack = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), pack_k)
        inputs = q, k, v, pack, packed_padding_mask, key_padding_mask
        return pack, naive_causal_luna(*inputs, log_decay=self.log_decay())[1]

    def log_decay(self) -> Optional[Tensor]:
        """The logarithm of what is left of a position at the next, by heads [H], below 0; None: all is."""
        return None

    def _pack_weights(self, pack_q: Tensor, pack_k: Tensor, beams: int = 1) -> Tensor:
        pack_k = beams_to_positions(pack_k, beams)
        weights = self.dropout_module(pack_weights(pack_q, pack_k, self.pack_activation))
        return positions_to_beams(weights, beams)

    def _heads(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of pack attention's keys, and of unpack attention's queries, keys and values: one tensor where
        these are tied."""
        if self.in_one is None:
            parts = [getattr(self, f"{name}_proj")(x) for name in self.read_of_x]
        else:
            parts = self.in_one(x).chunk(len(self.read_of_x), dim=-1)
        pack_k, q, *keys = (split_heads(part, self.num_heads) for part in parts)
        return pack_k, q, keys[0], keys[-1]
