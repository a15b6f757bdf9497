"""Luna causal attention: decoder self-attention (Luna, section 3.3)."""

from typing import Callable, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.heads import (
    check_choice,
    check_heads,
    dropout_probability,
    fold_rows,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    rows_per_sentence,
    split_heads,
    unfold_rows,
)
from luna_fairseq.modules.state import LunaCausalState
from luna_fairseq.ops.causal_luna import (
    BACKENDS,
    PACK_ACTIVATIONS,
    causal_luna,
    naive_causal_luna,
    pack_weights,
    recurrent_causal_luna,
    why_not_triton_here,
)


def check_triton() -> None:
    """Raise InputError if the Triton form cannot run here, before a model is built and data loaded for it."""
    reason = why_not_triton_here(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise InputError(f"--luna-backend triton cannot be used here: {reason}; use auto")


class LunaCausalAttention(nn.Module):
    """Attention of every position to itself and what came before it, through P. P is an input only.

    Args:
        embed_dim: C, width of everything
        num_heads: heads, of pack and unpack alike
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for the keys and values of unpack attention (default: False)
        pack_activation: omega, "softplus" or "elu" (default: softplus)
        backend: form of the attention over whole sequences, see :func:`luna_fairseq.ops.causal_luna`
            (default: auto)

    Raises:
        InputError: the width is not divisible by the number of heads; an unknown activation or backend, or
            one that this machine does not have

    Attributes:
        watcher: function that gets (attention, query, packed, key_padding_mask, packed_padding_mask) of every
            call of :meth:`forward`, for reports that ask for :meth:`weights` (default: None)
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
        self.watcher: Optional[Callable[..., None]] = None
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
        """Attend over whole sequences.

        Args:
            query: X [T, B, C]
            packed: P [L, B, C], or [L, 1, C] if all sequences share it
            key_padding_mask: [B, T], True at padding, left or right: it adds nothing and is not counted
                (default: None, no padding)
            packed_padding_mask: [B, L], True at rows of P that are padding (default: None, none is)

        Returns:
            output, shaped as X
        """
        if self.watcher is not None:
            self.watcher(self, query, packed, key_padding_mask, packed_padding_mask)
        pack_k, q, k, v = self._heads(query)
        weights = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), pack_k)
        output = causal_luna(
            *(q, k, v, weights, packed_padding_mask, key_padding_mask),
            dropout=dropout_probability(self.dropout_module),
            backend=self.backend,
            log_decay=self.log_decay(),
        )
        return self.out_proj(merge_heads(output))

    def step(
        self,
        query: Tensor,
        packed: Optional[Tensor] = None,
        state: Optional[LunaCausalState] = None,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, LunaCausalState]:
        """Attend from the positions after those in ``state``: one while decoding, several for a prefix.

        Args:
            query: X [T, B n, C]; n rows that follow one another share one of the B sentences of P
            packed: P [L, B, C]; not read if ``state`` has its projection
            state: what the call before this one has returned (default: None, the sequences begin)
            key_padding_mask: [B n, T], True at padding (default: None, no padding)
            packed_padding_mask: [B, L], True at rows of P that are padding (default: None, none is)

        Returns:
            output, shaped as X, and the state after these positions

        Raises:
            InputError: the rows cannot be divided among the sentences of P; neither P nor a state was given
        """
        pack_q, sums = (None, None) if state is None else (state.pack_q, state.sums())
        if pack_q is None:
            if packed is None:
                raise InputError("no packed sequence was given, and no earlier step has kept its projection")
            pack_q = packed_heads(self.pack_q_proj, packed, self.num_heads)
        n = rows_per_sentence(query.size(1), pack_q.size(0))
        if packed_padding_mask is not None:
            packed_padding_mask = packed_padding_mask.repeat_interleave(n, dim=0)
        pack_k, q, k, v = self._heads(query)
        weights = self._pack_weights(pack_q, pack_k)
        output, sums = recurrent_causal_luna(
            *(q, k, v, weights, sums, packed_padding_mask, key_padding_mask),
            dropout=dropout_probability(self.dropout_module),
            log_decay=self.log_decay(),
        )
        value_sum = sums.value_sum if self.untie_kv else None
        state = LunaCausalState(pack_q, sums.key_sum, sums.steps, value_sum)
        return self.out_proj(merge_heads(output)), state

    def weights(
        self,
        query: Tensor,
        packed: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        """Return A_pack and A_unpack over whole sequences, both [B, H, T, L], by the definition. Arguments as
        in :meth:`forward`."""
        pack_k, q, k, v = self._heads(query)
        pack = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), pack_k)
        inputs = q, k, v, pack, packed_padding_mask, key_padding_mask
        return pack, naive_causal_luna(*inputs, log_decay=self.log_decay())[1]

    def log_decay(self) -> Optional[Tensor]:
        """Return the logarithm of the decay over one position for each head [H], or None without decay.

        The logarithm is negative: a position counts ``exp(n * log_decay)`` times as much n positions later.
        """
        return None

    def _pack_weights(self, pack_q: Tensor, pack_k: Tensor) -> Tensor:
        n = rows_per_sentence(pack_k.size(0), pack_q.size(0))
        weights = self.dropout_module(pack_weights(pack_q, fold_rows(pack_k, n), self.pack_activation))
        return unfold_rows(weights, n)

    def _heads(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project X [T, B, C] to the keys of pack attention and the queries, keys and values of unpack
        attention, [B, H, T, K] each. Tied keys and values are one tensor."""
        if self.in_one is None:
            parts = [getattr(self, f"{name}_proj")(x) for name in self.read_of_x]
        else:
            parts = self.in_one(x).chunk(len(self.read_of_x), dim=-1)
        pack_k, q, *keys = (split_heads(part, self.num_heads) for part in parts)
        return pack_k, q, keys[0], keys[-1]
