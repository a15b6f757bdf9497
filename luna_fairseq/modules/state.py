"""Decoder state between two calls, whose size does not depend on the number of decoded tokens.

A state holds values of B n hypotheses and values of B source sentences (the packed source and the projected
P). Each n consecutive hypotheses share a sentence, so beam search packs and stores each source once. States
are immutable: their methods return new states.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.causal_luna import CausalLunaState


class LunaCausalState(NamedTuple):
    """State of Luna causal attention, with sums over all earlier positions.

    Attributes:
        pack_q: projected packed sequence P [B, H, L, K], or [1, H, L, K] if all hypotheses share P. None if
            each call projects P again.
        key_sum: sum [B n, H, K, L] of the outer products of keys and pack weights, see
            :class:`luna_fairseq.ops.causal_luna.CausalLunaState`.
        steps: number [B n] of earlier tokens.
        value_sum: sum [B n, H, L, K] of the outer products of pack weights and values. None if keys and
            values are tied, because the sum is then the transpose of ``key_sum`` (default: None).
    """

    pack_q: Optional[Tensor]
    key_sum: Tensor
    steps: Tensor
    value_sum: Optional[Tensor] = None

    def sums(self) -> CausalLunaState:
        """Return the sums as the state of the op, with the value sum of tied keys and values filled in."""
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        return CausalLunaState(self.key_sum, value_sum, self.steps)

    def reorder(self, rows: Tensor) -> "LunaCausalState":
        """Reorder the hypotheses, as beam search does after each step.

        Hypothesis i of the returned state continues hypothesis ``rows[i]``. P is unchanged.

        Args:
            rows: indices [B n] of the hypotheses to continue.
        """
        sums = self._replace(pack_q=None)
        return map_tensors(lambda x: x.index_select(0, rows), sums)._replace(pack_q=self.pack_q)

    def select(self, sentences: Tensor) -> "LunaCausalState":
        """Return the state with the projected packed sequence P of some sentences, in the given order.

        A projected P that all hypotheses share is unchanged.

        Args:
            sentences: indices [R] of the R sentences to keep.
        """
        if self.pack_q is None or self.pack_q.size(0) == 1:
            return self
        return self._replace(pack_q=self.pack_q.index_select(0, sentences))


class LayerState(NamedTuple):
    """State of one decoder layer for incremental decoding.

    Attributes:
        causal: state of self-attention for each hypothesis, such as :class:`LunaCausalState`.
        memory: packed source of each sentence, such as :class:`PackedMemory` (default: None, no encoder).
    """

    causal: Any
    memory: Any = None

    def reorder(self, rows: Tensor) -> "LayerState":
        """Reorder the hypotheses, as beam search does after each step.

        Hypothesis i of the returned state continues hypothesis ``rows[i]``.

        Args:
            rows: indices [B n] of the hypotheses to continue.
        """
        return self._replace(causal=self.causal.reorder(rows))

    def select(self, sentences: Tensor) -> "LayerState":
        """Return the state with P and the packed source of some sentences, in the given order.

        Args:
            sentences: indices [R] of the R sentences to keep.
        """
        memory = None if self.memory is None else self.memory.select(sentences)
        return LayerState(self.causal.select(sentences), memory)


class DecoderState(NamedTuple):
    """State of a decoder for incremental decoding, returned by one call and passed to the next.

    Attributes:
        layers: state of each layer.
        count: number [B n] of tokens of each hypothesis so far, not counting padding.
        position: number of positions so far, padding included.
        target: state of the target positions, with a method ``select``, for attentions that read positions
            (default: None, no attention reads positions).

    Example:
        >>> import torch
        >>> from luna_fairseq.modules import DecoderOptions, LunaDecoder
        >>> sizes = {"embed_dim": 64, "ffn_embed_dim": 128, "num_layers": 2, "num_heads": 8}
        >>> decoder = LunaDecoder(DecoderOptions(**sizes, has_encoder=False), torch.nn.Embedding(9, 64, 1))
        >>> _, state = decoder(torch.randint(2, 9, (3, 5)), keep_state=True)
        >>> state.reorder(torch.tensor([2, 2, 0])).count
        tensor([5, 5, 5])
    """

    layers: Tuple[LayerState, ...]
    count: Tensor
    position: int
    target: Any = None

    def reorder(self, rows: Tensor) -> "DecoderState":
        """Reorder the hypotheses, as beam search does after each step.

        Hypothesis i of the returned state continues hypothesis ``rows[i]``. Source sentences are unchanged.

        Args:
            rows: indices [B n] of the hypotheses to continue.
        """
        return self._replace(
            layers=tuple(layer.reorder(rows) for layer in self.layers),
            count=self.count.index_select(0, rows),
            target=None if self.target is None else self.target.select(rows),
        )

    def select_sources(self, sentences: Tensor) -> "DecoderState":
        """Return the state with some of the source sentences and all hypotheses.

        Args:
            sentences: indices [R] of the R sentences to keep, in the order of the result.
        """
        return self._replace(layers=tuple(layer.select(sentences) for layer in self.layers))

    def select(self, rows: Tensor) -> "DecoderState":
        """Return the state of some hypotheses with their sources, if each hypothesis has a separate source.

        Args:
            rows: indices [R] of the R hypotheses to keep, in the order of the result.
        """
        return self.reorder(rows).select_sources(rows)

    def map(self, change: Callable[[Tensor], Tensor]) -> "DecoderState":
        """Return the state with a function applied to every tensor.

        Args:
            change: function from a tensor to a tensor.
        """
        return map_tensors(change, self)

    def to(self, device: torch.device) -> "DecoderState":
        """Return the state on another device.

        Args:
            device: device of the returned tensors.
        """
        return self.map(lambda x: x.to(device))

    def detach(self) -> "DecoderState":
        """Return the state detached from the graph, so that no gradient flows into earlier calls."""
        return self.map(Tensor.detach)
