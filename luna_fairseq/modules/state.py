"""State of a decoder between two calls: immutable values of constant size, however long the text.

A state belongs to rows, the hypotheses that are decoded side by side. What belongs to a source (the packed
source, the projected P) may have fewer sentences: with n times as many rows as sentences, n rows that follow
one another share a sentence. Beam search then packs and keeps every source once.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.causal_luna import CausalLunaState


class LunaCausalState(NamedTuple):
    """Sums over all earlier positions, which Luna causal attention goes on from.

    Attributes:
        pack_q: projected P [B, H, L, K], or [1, H, L, K] if all rows share it; None if each call projects P
            again
        key_sum: [B n, H, K, L], see :class:`luna_fairseq.ops.CausalLunaState`
        steps: number of earlier tokens [B n]
        value_sum: [B n, H, L, K]; None if keys and values are tied, because it is then ``key_sum`` transposed
    """

    pack_q: Optional[Tensor]
    key_sum: Tensor
    steps: Tensor
    value_sum: Optional[Tensor] = None

    def sums(self) -> CausalLunaState:
        """Return the sums in the form that the op takes."""
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        return CausalLunaState(self.key_sum, value_sum, self.steps)

    def reorder(self, rows: Tensor) -> "LunaCausalState":
        """Return the state in which row i goes on from row ``rows[i]`` [B' n]. P stays as it is."""
        sums = self._replace(pack_q=None)
        return map_tensors(lambda x: x.index_select(0, rows), sums)._replace(pack_q=self.pack_q)

    def select(self, sentences: Tensor) -> "LunaCausalState":
        """Return the state with the projected P of ``sentences`` [B'] only, in the given order.

        A P that all rows share is kept as it is.
        """
        if self.pack_q is None or self.pack_q.size(0) == 1:
            return self
        return self._replace(pack_q=self.pack_q.index_select(0, sentences))


class LayerState(NamedTuple):
    """State of one decoder layer.

    Attributes:
        causal: state of self-attention, which belongs to rows, such as :class:`LunaCausalState`
        memory: the packed source, which belongs to sentences, such as :class:`PackedMemory`; None without an
            encoder
    """

    causal: Any
    memory: Any = None

    def reorder(self, rows: Tensor) -> "LayerState":
        """Return the state in which row i goes on from row ``rows[i]``."""
        return self._replace(causal=self.causal.reorder(rows))

    def select(self, sentences: Tensor) -> "LayerState":
        """Return the state with P and memory of ``sentences`` [B'] only, in the given order."""
        memory = None if self.memory is None else self.memory.select(sentences)
        return LayerState(self.causal.select(sentences), memory)


class DecoderState(NamedTuple):
    """State of a decoder after some positions.

    Attributes:
        layers: one :class:`LayerState` a layer
        count: number of tokens of each row so far [B n]; padding is not counted
        position: number of positions so far, padding included
        target: what the geometry of the extension remembers of the target (default: None, nothing)
    """

    layers: Tuple[LayerState, ...]
    count: Tensor
    position: int
    target: Any = None

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Return the state in which row i goes on from row ``rows[i]`` [B' n]. Sources stay as they are."""
        return self._replace(
            layers=tuple(layer.reorder(rows) for layer in self.layers),
            count=self.count.index_select(0, rows),
            target=None if self.target is None else self.target.select(rows),
        )

    def select_sources(self, sentences: Tensor) -> "DecoderState":
        """Return the state with the sources ``sentences`` [B'], in their order. Rows stay as they are."""
        return self._replace(layers=tuple(layer.select(sentences) for layer in self.layers))

    def select(self, rows: Tensor) -> "DecoderState":
        """Return the state of ``rows`` [B'], in their order, if every row has a source of its own."""
        return self.reorder(rows).select_sources(rows)

    def map(self, change: Callable[[Tensor], Tensor]) -> "DecoderState":
        """Return the state with ``change`` applied to every tensor."""
        return map_tensors(change, self)

    def to(self, device: torch.device) -> "DecoderState":
        """Return the state on ``device``."""
        return self.map(lambda x: x.to(device))

    def detach(self) -> "DecoderState":
        """Return the state without its history: no gradient flows into earlier calls."""
        return self.map(Tensor.detach)
