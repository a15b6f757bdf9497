"""Luna causal attention: decoder self-attention (Luna, section 3.3)."""

from typing import Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.causal_state import LunaCausalState
from luna_fairseq.modules.heads import (
    beams_to_positions,
    check_choice,
    check_heads,
    dropout_probability,
    hypotheses_each,
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
    recurrent_causal_luna,
    why_not_triton_here,
)


def check_triton() -> None:
    """Raise InputError where the Triton form cannot run, before a model is built and data loaded for it."""
    reason = why_not_triton_here(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise InputError(f"--luna-backend triton cannot be used here: {reason}; use auto")


class LunaCausalAttention(nn.Module):
    """Attention of every position to itself and what came before it, through P. P is an input only.

    Modules are time-first:

    >>> import torch
    >>> from luna_fairseq.modules import LunaCausalAttention
    >>> T, L, B, C = 50, 16, 4, 64  # positions, rows of P, sentences, width
    >>> attention = LunaCausalAttention(C, num_heads=8)
    >>> query, packed = torch.randn(T, B, C), torch.randn(L, B, C)
    >>> lengths = torch.tensor([50, 31, 12, 44])
    >>> left_out = torch.arange(T) >= lengths[:, None]  # [B, T], True: padding, to which nobody attends
    >>> output = attention(query, packed, key_padding_mask=left_out)
    >>> output.shape == query.shape
    True

    Decoding takes some positions at a time, with a state that does not grow:

    >>> prefix, state = attention.step(query[:10], packed)
    >>> eleventh, state = attention.step(query[10:11], state=state)
    >>> torch.allclose(eleventh, output[10:11], atol=1e-5)
    True

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
        for name in ("pack_q", "pack_k", "unpack_q", *of_keys):
            self.add_module(f"{name}_proj", projection(embed_dim))
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
        q, k, v = self._unpack_heads(query)
        weights = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), query)
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
        """The positions after those in ``state``: one while decoding, several for a prefix. Masks as in
        :meth:`forward`.

        Args:
            query: X [T, B, C], also of n hypotheses in a row for each sentence of P [T, B n, C]
            packed: P [L, B, C]; with a ``state`` that has its projection it is not read
            state: what the call before this one returned; None at the beginning

        Returns:
            output, shaped as X, and the state after these positions

        Raises:
            InputError: hypotheses that cannot belong to the sentences of P, as many to each; neither P nor a
                state
        """
        pack_q, sums = (None, None) if state is None else (state.pack_q, state.sums())
        if pack_q is None:
            if packed is None:
                raise InputError("no packed sequence was given, and no earlier step has kept its projection")
            pack_q = packed_heads(self.pack_q_proj, packed, self.num_heads)
        beams = hypotheses_each(query.size(1), pack_q.size(0))
        if packed_padding_mask is not None:
            packed_padding_mask = packed_padding_mask.repeat_interleave(beams, dim=0)
        q, k, v = self._unpack_heads(query)
        weights = self._pack_weights(pack_q, query, beams)
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
        """A_pack and A_unpack over whole sequences, both [B, H, T, L], by the definition; arguments as in
        :meth:`forward`."""
        q, k, v = self._unpack_heads(query)
        pack = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), query)
        inputs = q, k, v, pack, packed_padding_mask, key_padding_mask
        return pack, naive_causal_luna(*inputs, log_decay=self.log_decay())[1]

    def log_decay(self) -> Optional[Tensor]:
        """The logarithm of what is left of a position at the next, by heads [H], below 0; None: all is."""
        return None

    def _pack_weights(self, pack_q: Tensor, query: Tensor, beams: int = 1) -> Tensor:
        pack_k = beams_to_positions(self._heads("pack_k", query), beams)
        weights = self.dropout_module(pack_weights(pack_q, pack_k, self.pack_activation))
        return positions_to_beams(weights, beams)

    def _unpack_heads(self, query: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        q = self._heads("unpack_q", query)
        if self.untie_kv:
            return q, self._heads("unpack_k", query), self._heads("unpack_v", query)
        k = self._heads("unpack_kv", query)
        return q, k, k

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return split_heads(getattr(self, f"{name}_proj")(x), self.num_heads)
