"""Decoder state for incremental decoding, with a size independent of the number of decoded tokens.

A state has one entry per hypothesis, a candidate translation in beam search. What the hypotheses of a
sentence share is in the memory (``memory.py``). States are named tuples, whose methods return new states.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.causal_luna import CausalLunaState, TokenCounts


class LunaCausalState(NamedTuple):
    """State of Luna causal attention after t tokens: sums over all t tokens.

    In causal attention, each token attends to the L rows of a packed sequence P, which summarize the tokens
    up to it. The rows are weighted sums of keys and values, so two sums replace a growing cache.

    Attributes:
        key_sum: sum [B, H, K, L] over all earlier tokens of the outer products of key [K] and pack weights
            [L], for batch size B and H heads of dimension K.
        value_sum: sum [B, H, L, K] of the outer products of pack weights and value. None if keys and values
            share a projection: it is then the transpose of ``key_sum``.
        steps: number of earlier tokens [B]. None in a decoder, which stores this number once for all layers
            as ``DecoderState.count``.
    """

    key_sum: Tensor
    value_sum: Optional[Tensor] = None
    steps: Optional[Tensor] = None

    def sums(self, counts: Optional[TokenCounts] = None) -> CausalLunaState:
        """Convert the state to the input of the functions in ``ops``.

        counts: token counts of the decoder, required if ``steps`` is None.
        """
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        before = self.steps if counts is None else counts.before
        if before is None:
            raise InputError("the state of a decoder's layer has no token counts. Pass the decoder's counts")
        return CausalLunaState(self.key_sum, value_sum, before)


class DecoderState(NamedTuple):
    """State of a decoder for incremental decoding, returned by one call and passed to the next.

    Attributes:
        layers: state of the causal self-attention of each layer, such as :class:`LunaCausalState`.
        count: number of tokens decoded so far per hypothesis, not counting padding, a vector.
        position: length of the decoded sequences so far, including padding.
        target: target positions for attention modules whose weights depend on distance, a named tuple of
            tensors.

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions, LunaDecoder
        >>> sizes = {"embed_dim": 64, "ffn_embed_dim": 128, "num_layers": 2, "num_heads": 8}
        >>> decoder = LunaDecoder(DecoderOptions(**sizes, has_encoder=False), torch.nn.Embedding(9, 64, 1))
        >>> _, state = decoder(torch.randint(2, 9, (3, 5)), decoder.read(), keep_state=True)
        >>> state.reorder(torch.tensor([2, 2, 0])).count
        tensor([5, 5, 5])
    """

    layers: Tuple[Any, ...]
    count: Tensor
    position: int
    target: Any = None

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Return the state for beam search: hypothesis i of the result continues hypothesis ``rows[i]``."""
        return self.map(lambda x: x.index_select(0, rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "DecoderState":
        """Return the state with a function applied to every tensor."""
        return map_tensors(function, self)

    def to(self, device: torch.device) -> "DecoderState":
        """Copy the state to a device."""
        return self.map(lambda x: x.to(device))

    def detach(self) -> "DecoderState":
        """Return the state detached from the autograd graph, so that no gradient flows into earlier calls."""
        return self.map(Tensor.detach)
