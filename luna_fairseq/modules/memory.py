"""Memory and state of a decoder, as named tuples. The first dimension of their tensors is the batch size.

The memory holds the cached tensors of the source that the decoder reads, with one entry per sentence. The
state has one entry per hypothesis, a candidate translation in beam search. Its size does not depend on the
number of decoded tokens. Methods of a state return new states.
"""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, TypeVar

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import NO_PADDING, Source
from luna_fairseq.ops.causal_luna import CausalLunaState

Nested = TypeVar("Nested", bound=Tuple[Any, ...])


def map_tensors(function: Callable[[Tensor], Tensor], values: Nested) -> Nested:
    """Apply a function to every tensor of a nested tuple, in order, and return the resulting nested tuple.

    The function is called once for a tensor that occurs several times. Other values are unchanged.
    """
    return _map_tensors(function, values, {})


# A nested function that calls itself would keep all these tensors until Python's next garbage collection.
def _map_tensors(function: Callable[[Tensor], Tensor], x: Any, results: Dict[int, Tensor]) -> Any:
    if isinstance(x, Tensor):
        if id(x) not in results:
            results[id(x)] = function(x)
        return results[id(x)]
    if not isinstance(x, tuple):
        return x
    new = [_map_tensors(function, value, results) for value in x]
    return type(x)(*new) if hasattr(x, "_fields") else type(x)(new)


def flatten_tensors(values: Nested) -> Tuple[List[Tensor], Callable[[Iterable[Tensor]], Nested]]:
    """Return the distinct tensors of a nested tuple, and a function that rebuilds the tuple from new tensors.

    The function takes an iterable of equally many tensors, in the same order. It keeps no reference to the
    tensors of the tuple.
    """
    tensors: List[Tensor] = []

    def add(x: Tensor) -> Tensor:
        tensors.append(x)
        return torch.empty(0)

    def rebuild(others: Iterable[Tensor]) -> Nested:
        remaining = iter(others)
        return map_tensors(lambda _: next(remaining), structure)

    structure = map_tensors(add, values)
    return tensors, rebuild


def call_with_tensors(run: Callable[..., Any], function: Callable[..., Nested], *inputs: Any) -> Nested:
    """Call ``function(*inputs)`` through ``run``, where inputs and result are nested tuples of tensors.

    ``run(f, *tensors)`` calls a function f of plain tensors. An example is activation checkpointing, which
    computes no gradients of tensors within tuples. If gradients are disabled or no input requires a gradient,
    ``run`` is skipped: without such an input, checkpointing computes no gradients of parameters either.
    """
    tensors, rebuild = flatten_tensors(inputs)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return function(*inputs)
    restore: Any = None

    def call(*given: Tensor) -> Tuple[Tensor, ...]:
        nonlocal restore
        results, restore = flatten_tensors(function(*rebuild(given)))
        return tuple(results)

    results = run(call, *tensors)
    return restore(results)


class CausalMemory(NamedTuple):
    """Packed sequence P, projected for causal attention.

    Attributes:
        pack_q: projected P [B, H, L, K] for B sentences, H heads of dimension K and L rows. [1, H, L, K] if P
            is the same for all sentences.
        padding_mask: mask [B, L], True at padded rows of P, also if the sentences share P. None without
            padding.
    """

    pack_q: Tensor
    padding_mask: Optional[Tensor] = None


class ReadWeights(NamedTuple):
    """Attention weights of T queries and H heads over the rows of P, the context's tokens, or both.

    Attributes:
        rows: weights [B, H, T, L] over the L rows of P. None if the queries do not attend to P.
        tokens: weights [B, H, T, S] over the S tokens of the context, to which queries attend directly. None
            if queries attend only to P.
    """

    rows: Optional[Tensor]
    tokens: Optional[Tensor] = None

    def total(self, memory: Any) -> Any:
        """Return the weights [B, H, T, S] over the context, the sum of direct weights and weights through P.

        ``memory`` holds the pack weights. They are not needed if ``rows`` is None.
        """
        if self.rows is None:
            return self.tokens
        require_pack_weights(memory)
        through_rows = self.rows @ memory.mean_pack_weights.unsqueeze(1)
        return through_rows if self.tokens is None else through_rows + self.tokens


class PackedMemory(NamedTuple):
    """Keys and values of a packed context, computed once and reused at every decoding step.

    A packed context Y_P has L rows and summarizes a context of S tokens.

    Attributes:
        key: keys [B, H, L, K] projected from Y_P, for batch size B and H heads of dimension K.
        value: values [B, H, L, K] projected from Y_P. The same tensor as ``key`` if keys and values share a
            projection.
        mean_pack_weights: attention weights [B, L, S] from rows to context tokens, averaged over heads. None
            if the weights were not requested.
    """

    key: Tensor
    value: Tensor
    mean_pack_weights: Optional[Tensor] = None


def require_pack_weights(memory: Any) -> None:
    """Raise an InputError if ``memory``, a result of ``LunaAttention.pack``, has no pack weights."""
    if memory.mean_pack_weights is None:
        raise InputError(
            "Expected a memory with pack weights, got a memory without weights. Pass need_weights=True "
            "from the first decoding step on"
        )


class LayerMemory(NamedTuple):
    """Cached tensors of the source that one decoder layer uses for all target positions.

    Attributes:
        causal: projection of P for causal self-attention, such as :class:`CausalMemory`. None if the
            self-attention does not use P.
        cross: keys and values for cross-attention to the source, such as :class:`PackedMemory`. None in a
            language model.
    """

    causal: Any
    cross: Any = None


class DecoderMemory(NamedTuple):
    """Cached tensors of a batch of source sentences that a decoder uses for all target positions.

    :meth:`LunaDecoder.read` computes them once. They do not depend on the target, so there is one entry for
    all hypotheses of a sentence.

    Attributes:
        layers: memory of each layer, from first to last. None for a layer that LayerDrop skips.
        source: padding masks of the encoder output and of P.
        is_shared: True if all sequences share a memory of batch size 1, as in a language model.
    """

    layers: Tuple[Optional[LayerMemory], ...]
    source: Source = NO_PADDING
    is_shared: bool = False

    def select_sources(self, sentences: Tensor) -> "DecoderMemory":
        """Return the memory of the sentences with the given indices, in this order.

        A memory that all sequences share is returned unchanged.
        """
        if self.is_shared:
            return self
        return map_tensors(lambda x: x.index_select(0, sentences), self)


# The public name of the state that ``ops.causal_luna`` defines.
LunaCausalState = CausalLunaState


class DecoderState(NamedTuple):
    """State of a decoder for incremental decoding, returned by one call and passed to the next.

    Attributes:
        layers: state of the causal self-attention of each layer, such as :class:`LunaCausalState`.
        count: vector with the number of tokens of each hypothesis so far, not counting padding.
        position: length of the decoded sequences so far, including padding.
        target: named tuple with the target positions, if attention depends on distance, otherwise None.

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
        """Reorder the state for beam search: hypothesis i of the result continues hypothesis ``rows[i]``."""
        return self.map(lambda x: x.index_select(0, rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "DecoderState":
        """Return a new state with a function applied to every tensor."""
        return map_tensors(function, self)

    def to(self, device: torch.device) -> "DecoderState":
        """Return the state with all tensors on the given device."""
        return self.map(lambda x: x.to(device))

    def detach(self) -> "DecoderState":
        """Return the state detached from the autograd graph, so that no gradient flows into earlier calls."""
        return self.map(Tensor.detach)
