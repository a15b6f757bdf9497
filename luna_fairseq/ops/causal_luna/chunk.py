"""Chunkwise causal Luna attention, with memory linear in the sequence length.

The two sums over positions of the definition (``naive.py``) are computed in chunks of c positions. Within a
chunk, they are masked matrix products. Earlier chunks are accumulated in a state, the sums of the outer
products ``a_j^T k_j`` and ``a_j^T v_j``, each a matrix [L, K] for each head. The backward pass is written by
hand. It recomputes the products and the states from the saved inputs and the saved softmax.

Shapes: N = B x H heads in the batch, T positions, c positions in a chunk, head width K, L rows of P. A [N, c,
L] are the pack weights, one vector a_t for each position. Attention is tied if keys and values are the same
tensor.
"""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from luna_fairseq.ops.attention import disable_autocast, fast_softmax
from luna_fairseq.ops.causal_luna.decay import (
    ChunkDecay,
    chunk_decay,
    decay_totals,
    scale,
    scale_,
    sum_over_examples,
)
from luna_fairseq.ops.causal_luna.inputs import DERIVE_TWICE, CausalLunaState, count_positions, mask_padding
from luna_fairseq.ops.chunks import chunk_size, chunk_slices, write_chunk
from luna_fairseq.ops.second_derivatives import refuse_second_derivatives


class KeysValues(NamedTuple):
    """Pair of tensors, one for the keys and one for the values of causal Luna attention.

    The pair holds the keys and values [N, c, K] of N heads at the c positions of a chunk, or a state. A state
    consists of the sums [N, L, K] of ``a_j^T k_j`` and ``a_j^T v_j`` over earlier positions j, where a_j are
    the pack weights [L]. A pair may also hold the gradients of a chunk or a state.

    In tied attention, keys and values are the same tensor. ``values`` is then None, and a pair of gradients
    holds the sum of both gradients in ``keys``.
    """

    keys: Tensor
    values: Optional[Tensor]

    def values_or_keys(self) -> Tensor:
        """Return the values, which are the keys in tied attention."""
        return self.keys if self.values is None else self.values

    def distinct(self) -> List[Tensor]:
        """Return the list of different tensors: keys and values, or only keys in tied attention."""
        return [self.keys] if self.values is None else [self.keys, self.values]


def map_pairs(function: Callable[..., Tensor], *pairs: KeysValues) -> KeysValues:
    """Return ``KeysValues(function(*keys), function(*values))`` of several pairs. None stays None."""
    keys = function(*[pair.keys for pair in pairs])
    if pairs[0].values is None:
        return KeysValues(keys, None)
    return KeysValues(keys, function(*[pair.values for pair in pairs]))


class Inputs(NamedTuple):
    """Inputs of causal Luna attention over a whole sequence.

    Shapes: N = B x H heads in the batch, T positions, head width K, L rows of the packed sequence P.

    Attributes:
        q: queries [N, T, K].
        pack_weights: pack weights a_t [N, T, L] of each position t, 0 at padding, in float32 or float64.
        inverse_steps: factor [N or 1, T, 1] that converts sums over positions to means: 1 / t at token t or,
            with decay, the reciprocal of the sum of the decay factors.
        dropout_factors: scaled dropout mask [N, T, L] of the unpack weights. None without dropout.
        row_mask: mask [N or 1, 1, L], True at masked rows of P. None masks no rows.
        log_decay: log decay [N or H, T, 1], accumulated since the start of the sequence. None without decay.
        keys: keys k_t [N, T, K].
        values: values v_t [N, T, K]. None if they are the same tensor as the keys.
        key_sum: sum [N, L, K] of a_j^T k_j over earlier positions j. None if there are none.
        value_sum: sum [N, L, K] of a_j^T v_j over earlier positions j. None if there are none.
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    dropout_factors: Optional[Tensor]
    row_mask: Optional[Tensor]
    log_decay: Optional[Tensor]
    keys: Tensor
    values: Optional[Tensor]
    key_sum: Optional[Tensor]
    value_sum: Optional[Tensor]

    def initial_state(self) -> Optional[KeysValues]:
        """Return the state before the first chunk. None if there are no earlier positions."""
        return None if self.key_sum is None else KeysValues(self.key_sum, self.value_sum)

    def spans(self) -> List[slice]:
        """Return the slice of positions of each chunk, in order."""
        return chunk_slices(self.q.size(1), chunk_size(self.q, self.pack_weights.size(-1)))


class Chunk(NamedTuple):
    """Slices of the tensors of :class:`Inputs` for one chunk of c positions.

    The tensors are converted to the accumulation dtype, float32 or float64. ``inputs`` holds the keys and
    values. ``decay`` holds the decay factors between the positions, or is None in attention without decay.
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    dropout_factors: Optional[Tensor]
    row_mask: Optional[Tensor]
    decay: Optional[ChunkDecay]
    inputs: KeysValues

    def causal_product(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the dot products x_t . y_j [N, c, c], with a causal mask: 0 for j > t.

        x and y are [N, c, M] of any width M. With decay, products are multiplied by the decay from j to t.
        """
        product = torch.bmm(x, y.transpose(1, 2))
        return product.tril_() if self.decay is None else scale_(product, self.decay.between)

    def decay_from_start(self, x: Tensor) -> Tensor:
        """Multiply x [N, c, M] of any width M by the decay from the chunk start to each position, if any."""
        return x if self.decay is None else scale(x, self.decay.from_start)

    def decay_to_end(self, x: Tensor) -> Tensor:
        """Multiply x [N, c, M] of any width M by the decay from each position to the chunk end, if any."""
        return x if self.decay is None else scale(x, self.decay.to_end)

    def decay_state(self, state: KeysValues) -> KeysValues:
        """Multiply a state, or the gradient of a state, by the decay over the chunk, if there is decay."""
        decay = self.decay
        return state if decay is None else map_pairs(lambda x: scale(x, decay.whole), state)

    def drop_and_divide(self, x: Tensor) -> Tensor:
        """Multiply weights, or their gradients, x [N, c, L] by the dropout mask and by ``inverse_steps``."""
        x = x * self.inverse_steps
        return x if self.dropout_factors is None else x.mul_(self.dropout_factors)

    def next_state(self, before: Optional[KeysValues]) -> KeysValues:
        """Compute the sums of ``a_j^T k_j`` and ``a_j^T v_j`` over positions j up to the end of the chunk.

        a_j are the pack weights, k_j the key and v_j the value. ``before`` holds the sums up to the start of
        the chunk, which are multiplied by the decay over the chunk, or is None without earlier positions.
        """
        rows = self.decay_to_end(self.pack_weights).transpose(1, 2)
        if before is None:
            return map_pairs(lambda x: torch.bmm(rows, x), self.inputs)
        return map_pairs(
            lambda x, state: torch.baddbmm(state, rows, x), self.inputs, self.decay_state(before)
        )


class ChunkResults(NamedTuple):
    """Output [N, c, K] and softmax weights [N, c, L] before dropout of the forward pass for one chunk.

    Shapes: N heads of width K, c positions, L rows of the packed sequence P.
    """

    output: Tensor
    softmax: Tensor


class ChunkGradients(NamedTuple):
    """Gradients of the queries, pack weights, keys and values of one chunk, with the shapes of these tensors.

    ``values`` is None in tied attention. With decay, position t multiplies the sums that it reads by a factor
    r_t, and the terms that it adds to the sums by a factor s_t. Without decay, both scale gradients are None.

    Attributes:
        read_scale: gradient [N, c, 1] of log r_t at each position t.
        added_scale: gradient [N, c, 1] of log s_t at each position t.
    """

    q: Tensor
    pack_weights: Tensor
    keys: Tensor
    values: Optional[Tensor]
    read_scale: Optional[Tensor]
    added_scale: Optional[Tensor]


def chunk_forward(chunk: Chunk, before: Optional[KeysValues]) -> Tuple[Tensor, Tensor]:
    """Compute the output [N, c, K] of one chunk, and its softmax weights [N, c, L] before dropout.

    ``before`` is the state before the chunk, or None if there are no earlier positions.
    """
    q, A = chunk.q, chunk.pack_weights
    logits = torch.bmm(chunk.causal_product(q, chunk.inputs.keys), A)
    if before is not None:
        logits.baddbmm_(chunk.decay_from_start(q), before.keys.transpose(1, 2))
    logits.mul_(chunk.inverse_steps * q.size(-1) ** -0.5)
    if chunk.row_mask is None:
        softmax = fast_softmax(logits)
    else:
        logits.masked_fill_(chunk.row_mask, torch.finfo(logits.dtype).min)
        softmax = fast_softmax(logits).masked_fill_(chunk.row_mask, 0.0)
    weights = chunk.drop_and_divide(softmax)
    output = torch.bmm(chunk.causal_product(weights, A), chunk.inputs.values_or_keys())
    if before is not None:
        output.baddbmm_(chunk.decay_from_start(weights), before.values_or_keys())
    return output, softmax


def chunk_backward(
    chunk: Chunk,
    softmax: Tensor,
    grad: Tensor,
    before: Optional[KeysValues],
    grad_after: Optional[KeysValues],
) -> Tuple[ChunkGradients, Optional[KeysValues]]:
    """Compute the gradients of the inputs of one chunk, and of ``before``, the state before the chunk.

    ``softmax`` [N, c, L] holds the weights from :func:`chunk_forward`, and ``grad`` [N, c, K] the gradient of
    the output. ``grad_after`` is the gradient of the state after the chunk, or None for the last chunk. If
    ``before`` is None, so is its gradient.
    """
    q, A, keys, values = chunk.q, chunk.pack_weights, chunk.inputs.keys, chunk.inputs.values_or_keys()
    is_tied = chunk.inputs.values is None
    weights = chunk.drop_and_divide(softmax)

    # From the output back to the logits
    grad_products = chunk.causal_product(grad, values)
    grad_softmax = torch.bmm(grad_products, A)
    if before is not None:
        grad_softmax.baddbmm_(chunk.decay_from_start(grad), before.values_or_keys().transpose(1, 2))
    grad_softmax = chunk.drop_and_divide(grad_softmax)
    mean_grad = (grad_softmax * softmax).sum(dim=-1, keepdim=True)
    grad_logits = grad_softmax.sub_(mean_grad).mul_(softmax)
    grad_logits.mul_(chunk.inverse_steps * q.size(-1) ** -0.5)

    # Products within the chunk
    key_products, value_products = chunk.causal_product(grad_logits, A), chunk.causal_product(weights, A)
    grad_q = torch.bmm(key_products, keys)
    grad_A = torch.bmm(grad_products.transpose(1, 2), weights)
    grad_A.baddbmm_(chunk.causal_product(q, keys).transpose(1, 2), grad_logits)
    grad_inputs = key_value_gradients(key_products, q, value_products, grad, is_tied)

    # Sums used by later chunks
    if grad_after is not None:
        rows = chunk.decay_to_end(A)
        for x, grad_x, grad_state in zip(
            chunk.inputs.distinct(), grad_inputs.distinct(), grad_after.distinct()
        ):
            grad_x.baddbmm_(rows, grad_state)
            grad_A.baddbmm_(chunk.decay_to_end(x), grad_state.transpose(1, 2))

    # Sums of earlier chunks
    grad_before = None
    if before is not None:
        decayed_grad_logits = chunk.decay_from_start(grad_logits)
        grad_q.baddbmm_(decayed_grad_logits, before.keys)
        grad_before = key_value_gradients(
            decayed_grad_logits,
            q,
            chunk.decay_from_start(weights),
            grad,
            is_tied,
            None if grad_after is None else chunk.decay_state(grad_after),
        )

    read_scale = added_scale = None
    if chunk.decay is not None:
        read_scale = mean_grad + (q * grad_q).sum(dim=-1, keepdim=True)
        added_scale = (keys * grad_inputs.keys).sum(dim=-1, keepdim=True)
        if not is_tied:
            added_scale = added_scale + (values * grad_inputs.values).sum(dim=-1, keepdim=True)
    return ChunkGradients(grad_q, grad_A, *grad_inputs, read_scale, added_scale), grad_before


def key_value_gradients(
    key_factor: Tensor,
    q: Tensor,
    value_factor: Tensor,
    grad: Tensor,
    is_tied: bool,
    start: Optional[KeysValues] = None,
) -> KeysValues:
    """Compute the gradients ``key_factor^T q`` of the keys and ``value_factor^T grad`` of the values.

    The factors are [N, c, R], q and ``grad`` [N, c, K], and the gradients [N, R, K], where R is c for a chunk
    and L for a state. If ``start`` is given, the results are added to it. If ``is_tied``, keys and values are
    the same tensor, and both products are added to the gradient of the keys.
    """
    to_keys, to_values = key_factor.transpose(1, 2), value_factor.transpose(1, 2)
    keys = torch.bmm(to_keys, q) if start is None else torch.baddbmm(start.keys, to_keys, q)
    if is_tied:
        return KeysValues(keys.baddbmm_(to_values, grad), None)
    values = torch.bmm(to_values, grad) if start is None else torch.baddbmm(start.values, to_values, grad)
    return KeysValues(keys, values)


def chunk_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    state: Optional[CausalLunaState] = None,
    log_decay: Optional[Tensor] = None,
) -> Tensor:
    """Compute causal Luna attention chunk by chunk, with the arguments of :func:`causal_luna`.

    ``state`` holds the sums over earlier positions. If it is given, keys and values are processed separately
    even if they are the same tensor.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    B, H = q.shape[:2]
    with disable_autocast(q.device):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        count = count_positions(q, key_padding_mask)
        earlier = None if state is None else state.steps
        steps = (count if earlier is None else count + earlier[:, None, None, None]).clamp(min=1)
        dropout_factors = F.dropout(torch.ones_like(pack_weights), dropout).flatten(0, 1) if dropout else None
        total_log_decay = None
        if log_decay is None:
            inverse_steps = steps.to(dtype).reciprocal()
        else:
            inverse_steps, total_log_decay = decay_totals(log_decay.to(dtype), count, steps)
            total_log_decay = total_log_decay.flatten(0, 1)
        row_mask = None
        if packed_padding_mask is not None:
            row_mask = flatten_heads(packed_padding_mask[:, None, None, :], B, H)
        key_sum = value_sum = None
        if state is not None:
            key_sum = state.key_sum.transpose(-2, -1).flatten(0, 1)
            value_sum = state.values().flatten(0, 1)
        is_tied = v is k and state is None
        inputs = Inputs(
            q=q.flatten(0, 1),
            pack_weights=pack_weights.flatten(0, 1),
            inverse_steps=flatten_heads(inverse_steps, B, H),
            dropout_factors=dropout_factors,
            row_mask=row_mask,
            log_decay=total_log_decay,
            keys=k.flatten(0, 1),
            values=None if is_tied else v.flatten(0, 1),
            key_sum=key_sum,
            value_sum=value_sum,
        )
        return _ChunkCausalLuna.apply(*inputs).unflatten(0, (B, H))


def flatten_heads(x: Tensor, B: int, H: int) -> Tensor:
    """Expand x [B or 1, H or 1, R, S] to B examples and H heads, and flatten both to [B * H, R, S].

    R and S are any sizes. If x is [1, 1, R, S], the result is [1, R, S], which broadcasts to all heads.
    """
    return x[0] if x.shape[:2] == (1, 1) else x.expand(B, H, -1, -1).flatten(0, 1)


class _ChunkCausalLuna(Function):
    """Autograd function of chunkwise causal Luna attention, with output [N, T, K] for N = B x H heads."""

    @staticmethod
    def forward(ctx: Function, *tensors: Optional[Tensor]) -> Tensor:
        inputs = Inputs(*tensors)
        T = inputs.q.size(1)
        results: Any = None
        state = inputs.initial_state()
        for span in inputs.spans():
            chunk = take_chunk(inputs, span)
            output, softmax = chunk_forward(chunk, state)
            results = write_chunk(results, ChunkResults(output.to(inputs.q.dtype), softmax), span, T)
            if span.stop < T:
                state = chunk.next_state(state)
        ctx.save_for_backward(results.softmax, *tensors)
        return results.output

    @staticmethod
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        refuse_second_derivatives("Causal Luna attention", DERIVE_TWICE)
        softmax, *tensors = ctx.saved_tensors
        inputs = Inputs(*tensors)
        T, log_decay = inputs.q.size(1), inputs.log_decay
        total: Any = None
        states = [inputs.initial_state()]  # the state before each chunk
        grad_state: Optional[KeysValues] = None
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with disable_autocast(grad.device):
            slices = inputs.spans()
            for span in slices[:-1]:
                states.append(take_chunk(inputs, span).next_state(states[-1]))
            for span in reversed(slices):
                chunk, grad_output = take_chunk(inputs, span), grad[:, span].to(softmax.dtype)
                gradients, grad_state = chunk_backward(
                    chunk, softmax[:, span], grad_output, states.pop(), grad_state
                )
                total = write_chunk(total, cast_gradients(gradients, inputs), span, T)
            results = dict(q=total.q, pack_weights=total.pack_weights, keys=total.keys, values=total.values)
            if log_decay is not None:
                results["inverse_steps"] = total.read_scale / inputs.inverse_steps
                per_head = (total.read_scale - total.added_scale).to(log_decay.dtype)
                results["log_decay"] = sum_over_examples(per_head, log_decay.size(0))
            if grad_state is not None:
                results.update(key_sum=grad_state.keys, value_sum=grad_state.values)
        return tuple(map(results.get, Inputs._fields))


def cast_gradients(gradients: ChunkGradients, inputs: Inputs) -> ChunkGradients:
    """Convert the gradients of queries, keys and values to the dtypes of the inputs."""
    values = gradients.values
    if values is not None and inputs.values is not None:
        values = values.to(inputs.values.dtype)
    return gradients._replace(
        q=gradients.q.to(inputs.q.dtype), keys=gradients.keys.to(inputs.keys.dtype), values=values
    )


def take_chunk(inputs: Inputs, span: slice) -> Chunk:
    """Select the positions ``span`` of the inputs, and compute the decay factors between them."""
    dtype = inputs.pack_weights.dtype
    is_whole = span.stop - span.start == inputs.q.size(1)

    def take(x: Tensor) -> Tensor:
        return x if is_whole else x[:, span]

    dropout_factors, log_decay, values = inputs.dropout_factors, inputs.log_decay, inputs.values
    decay = None
    if log_decay is not None:
        decay = chunk_decay(log_decay, span, dtype, is_only=is_whole and inputs.key_sum is None)
    return Chunk(
        q=take(inputs.q).to(dtype),
        pack_weights=take(inputs.pack_weights),
        inverse_steps=take(inputs.inverse_steps),
        dropout_factors=None if dropout_factors is None else take(dropout_factors),
        row_mask=inputs.row_mask,
        decay=decay,
        inputs=KeysValues(take(inputs.keys).to(dtype), None if values is None else take(values).to(dtype)),
    )
