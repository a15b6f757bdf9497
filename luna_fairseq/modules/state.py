"""Decoder state passed from call to call, with a size independent of the number of decoded tokens.

A state consists of values per beam-search hypothesis and values per source sentence. The hypotheses of a
sentence are adjacent in the batch, so each source is packed and stored once. States are immutable: their
methods return new states.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.causal_luna import CausalLunaState, TokenCounts


class LunaCausalState(NamedTuple):
    """State of Luna causal attention: sums over all earlier positions.

    Shapes: B source sentences with n hypotheses each, H heads of width K, L rows of the packed sequence P.

    Attributes:
        pack_q: projected P [B, H, L, K], or [1, H, L, K] if all hypotheses share P. None if each call
            projects P again.
        key_sum: sum [B * n, H, K, L] of the outer products of keys and pack weights, see
            :class:`luna_fairseq.ops.causal_luna.CausalLunaState`.
        value_sum: sum [B * n, H, L, K] of the outer products of pack weights and values. None if keys and
            values share a projection, because the sum is then the transpose of ``key_sum`` (default: None).
        steps: number of earlier tokens [B * n]. None in a decoder, which counts the tokens once for all
            layers (``DecoderState.count``) (default: None).
    """

    pack_q: Optional[Tensor]
    key_sum: Tensor
    value_sum: Optional[Tensor] = None
    steps: Optional[Tensor] = None

    def sums(self, counts: Optional[TokenCounts] = None) -> CausalLunaState:
        """Return the two sums and the token counts as input for the causal attention functions.

        If keys and values share a projection, the value sum is the transpose of the key sum.

        Args:
            counts: token counts of a decoder, with the number of earlier tokens (default: None, the state
                contains this number).

        Returns:
            The state, as expected by the functions in ``luna_fairseq.ops.causal_luna``.

        Raises:
            InputError: Neither the state nor ``counts`` contains the number of earlier tokens.
        """
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        before = self.steps if counts is None else counts.before
        if before is None:
            raise InputError("the state of a decoder's layer has no token counts. Pass the decoder's counts")
        return CausalLunaState(self.key_sum, value_sum, before)

    def reorder(self, rows: Tensor) -> "LunaCausalState":
        """Reorder the hypotheses, as beam search does after each step.

        Hypothesis i of the returned state continues hypothesis ``rows[i]``. The projected packed sequence P
        is unchanged, because it belongs to the source sentences.

        Args:
            rows: indices of the hypotheses to continue.

        Returns:
            The state of these hypotheses.
        """
        sums = self._replace(pack_q=None)
        return map_tensors(lambda x: x.index_select(0, rows), sums)._replace(pack_q=self.pack_q)

    def select(self, sentences: Tensor) -> "LunaCausalState":
        """Return the state with the projected packed sequence P of selected source sentences.

        The values of the hypotheses are unchanged. A projected P shared by all hypotheses is also unchanged.

        Args:
            sentences: indices of the sentences to keep, in the order of the result.

        Returns:
            The state for these sentences.
        """
        if self.pack_q is None or self.pack_q.size(0) == 1:
            return self
        return self._replace(pack_q=self.pack_q.index_select(0, sentences))


class LayerState(NamedTuple):
    """State of one decoder layer for incremental decoding.

    Attributes:
        causal: state of self-attention for each hypothesis, such as :class:`LunaCausalState`.
        memory: cached keys and values of each source sentence, such as :class:`PackedMemory` (default: None,
            no encoder).
    """

    causal: Any
    memory: Any = None

    def reorder(self, rows: Tensor) -> "LayerState":
        """Reorder the hypotheses, as beam search does after each step.

        Hypothesis i of the returned state continues hypothesis ``rows[i]``.

        Args:
            rows: indices of the hypotheses to continue.

        Returns:
            The state of these hypotheses.
        """
        return self._replace(causal=self.causal.reorder(rows))

    def select(self, sentences: Tensor) -> "LayerState":
        """Return the state with the cached keys and values of selected source sentences.

        The values of the hypotheses are unchanged.

        Args:
            sentences: indices of the sentences to keep, in the order of the result.

        Returns:
            The state for these sentences.
        """
        memory = None if self.memory is None else self.memory.select(sentences)
        return LayerState(self.causal.select(sentences), memory)


class DecoderState(NamedTuple):
    """State of a decoder for incremental decoding, returned by one call and passed to the next.

    Attributes:
        layers: state of each layer.
        count: number of tokens per hypothesis so far, not counting padding.
        position: number of positions so far, including padding.
        target: token positions in the target, for attention weights that depend on distance. Must have a
            method ``select`` (default: None, no attention module needs positions).

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

        Hypothesis i of the returned state continues hypothesis ``rows[i]``. The values of the source
        sentences are unchanged.

        Args:
            rows: indices of the hypotheses to continue.

        Returns:
            The state of these hypotheses.
        """
        return self._replace(
            layers=tuple(layer.reorder(rows) for layer in self.layers),
            count=self.count.index_select(0, rows),
            target=None if self.target is None else self.target.select(rows),
        )

    def select_sources(self, sentences: Tensor) -> "DecoderState":
        """Select source sentences, for example after beam search has finished some of them.

        The values of the hypotheses are unchanged.

        Args:
            sentences: indices of the sentences to keep, in the order of the result.

        Returns:
            The state for these sentences.
        """
        return self._replace(layers=tuple(layer.select(sentences) for layer in self.layers))

    def select(self, rows: Tensor) -> "DecoderState":
        """Select hypotheses together with their source sentences.

        Each hypothesis must have its own source sentence, as is the case outside of beam search.

        Args:
            rows: indices of the hypotheses to keep, in the order of the result.

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
