"""Decoder state for incremental decoding, with a size independent of the number of decoded tokens.

A hypothesis is one candidate translation in beam search. A state contains tensors with one entry per
hypothesis, and tensors with one entry per source sentence, which its hypotheses share. The hypotheses of a
sentence are adjacent in the batch. States are immutable: their methods return new states.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.causal_luna import CausalLunaState, TokenCounts


class LunaCausalState(NamedTuple):
    """State of Luna causal attention after t tokens: sums over all t tokens, per hypothesis.

    In causal attention, each token t attends to the L rows of a packed sequence P, which summarize the tokens
    up to t. The rows are weighted sums of keys and values, so two sums replace a growing cache.

    Shapes: B source sentences with n hypotheses each, H heads of dimension K, L rows of P.

    Attributes:
        pack_q: projected P [B, H, L, K], or [1, H, L, K] if all hypotheses share P. None if each call
            projects P again.
        key_sum: sum [B * n, H, K, L] over all earlier tokens of the outer products of key [K] and pack
            weights [L].
        value_sum: sum [B * n, H, L, K] over all earlier tokens of the outer products of pack weights [L] and
            value [K]. None if keys and values share a projection, because the sum is then the transpose of
            ``key_sum`` (default: None).
        steps: number of earlier tokens [B * n]. None in a decoder, which stores this number once for all
            layers as ``DecoderState.count`` (default: None).
    """

    pack_q: Optional[Tensor]
    key_sum: Tensor
    value_sum: Optional[Tensor] = None
    steps: Optional[Tensor] = None

    def sums(self, counts: Optional[TokenCounts] = None) -> CausalLunaState:
        """Convert the state to the input of the functions that compute causal attention.

        Args:
            counts: token counts of a decoder, including the number of earlier tokens per hypothesis (default:
                None, the number is in ``steps``).

        Returns:
            The key sum [B * n, H, K, L], the value sum [B * n, H, L, K] and the number of earlier tokens
            [B * n], for B source sentences with n hypotheses each, H heads of dimension K and L rows of P.

        Raises:
            InputError: Neither the state nor ``counts`` contains the number of earlier tokens.
        """
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        before = self.steps if counts is None else counts.before
        if before is None:
            raise InputError("the state of a decoder's layer has no token counts. Pass the decoder's counts")
        return CausalLunaState(self.key_sum, value_sum, before)

    def reorder(self, rows: Tensor) -> "LunaCausalState":
        """Return the state with the hypotheses in a new order, as needed after each step of beam search.

        Entry i of the returned state is a copy of entry ``rows[i]`` of this state. The projected packed
        sequence P is not reordered, because it has one entry per source sentence.

        Args:
            rows: for each new hypothesis, the index of the old hypothesis that it continues, a vector.

        Returns:
            The state of the new hypotheses.
        """
        sums = self._replace(pack_q=None)
        return map_tensors(lambda x: x.index_select(0, rows), sums)._replace(pack_q=self.pack_q)

    def select(self, sentences: Tensor) -> "LunaCausalState":
        """Keep only the projected packed sequences P of the given source sentences.

        ``pack_q`` is indexed along its first dimension, unless all sentences share P. Per-hypothesis tensors,
        such as ``key_sum``, are unchanged; :meth:`reorder` selects them.

        Args:
            sentences: indices of the source sentences to keep, in the order of the result, a vector.

        Returns:
            The state with P of these sentences.
        """
        if self.pack_q is None or self.pack_q.size(0) == 1:
            return self
        return self._replace(pack_q=self.pack_q.index_select(0, sentences))


class LayerState(NamedTuple):
    """State of one decoder layer for incremental decoding.

    A hypothesis is one candidate translation in beam search.

    Attributes:
        causal: state of causal self-attention, with one entry per hypothesis, such as
            :class:`LunaCausalState`.
        memory: cached keys and values of cross-attention, with one entry per source sentence, such as
            :class:`PackedMemory` (default: None, the model has no encoder).
    """

    causal: Any
    memory: Any = None

    def reorder(self, rows: Tensor) -> "LayerState":
        """Return the state with the hypotheses in a new order, as needed after each step of beam search.

        Entry i of the returned self-attention state is a copy of entry ``rows[i]``. The cached keys and
        values of the source sentences are unchanged.

        Args:
            rows: for each new hypothesis, the index of the old hypothesis that it continues, a vector.

        Returns:
            The state of the new hypotheses.
        """
        return self._replace(causal=self.causal.reorder(rows))

    def select(self, sentences: Tensor) -> "LayerState":
        """Keep only the cached keys and values of the given source sentences.

        Per-hypothesis tensors are unchanged; :meth:`reorder` selects them.

        Args:
            sentences: indices of the source sentences to keep, in the order of the result, a vector.

        Returns:
            The state with the keys and values of these sentences.
        """
        memory = None if self.memory is None else self.memory.select(sentences)
        return LayerState(self.causal.select(sentences), memory)


class DecoderState(NamedTuple):
    """State of a decoder for incremental decoding, returned by one call and passed to the next.

    A hypothesis is one candidate translation in beam search.

    Attributes:
        layers: state of each layer, from first to last.
        count: number of tokens decoded so far per hypothesis, not counting padding, a vector.
        position: length of the decoded sequences so far, including padding.
        target: target positions for attention modules whose weights depend on distance. Must have a method
            ``select`` that selects hypotheses (default: None, no module needs positions).

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
        """Return the state with the hypotheses in a new order, as needed after each step of beam search.

        Entry i of each per-hypothesis tensor is a copy of entry ``rows[i]``. The keys and values of the
        source sentences are unchanged.

        Args:
            rows: for each new hypothesis, the index of the old hypothesis that it continues, a vector.

        Returns:
            The state of the new hypotheses.
        """
        return self._replace(
            layers=tuple(layer.reorder(rows) for layer in self.layers),
            count=self.count.index_select(0, rows),
            target=None if self.target is None else self.target.select(rows),
        )

    def select_sources(self, sentences: Tensor) -> "DecoderState":
        """Keep only the given source sentences, for example after beam search has finished some of them.

        The cached keys and values and the projected packed sequence P of every layer are indexed.
        Per-hypothesis tensors are unchanged; :meth:`reorder` selects them.

        Args:
            sentences: indices of the source sentences to keep, in the order of the result, a vector.

        Returns:
            The state with the values of these sentences.
        """
        return self._replace(layers=tuple(layer.select(sentences) for layer in self.layers))

    def select(self, rows: Tensor) -> "DecoderState":
        """Keep only the given hypotheses and their source sentences.

        Each hypothesis must have its own source sentence, as is the case outside of beam search.

        Args:
            rows: indices of the hypotheses to keep, in the order of the result, a vector.

        Returns:
            The state of these hypotheses.
        """
        return self.reorder(rows).select_sources(rows)

    def map(self, function: Callable[[Tensor], Tensor]) -> "DecoderState":
        """Return the state with a function applied to every tensor.

        Args:
            function: function that maps a tensor to a tensor.

        Returns:
            The new state.
        """
        return map_tensors(function, self)

    def to(self, device: torch.device) -> "DecoderState":
        """Copy the state to another device.

        Args:
            device: device of the returned tensors.

        Returns:
            The state on this device.
        """
        return self.map(lambda x: x.to(device))

    def detach(self) -> "DecoderState":
        """Return the state detached from the autograd graph, so that no gradient flows into earlier calls."""
        return self.map(Tensor.detach)
