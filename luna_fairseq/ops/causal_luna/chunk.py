"""Chunkwise causal Luna attention, with memory linear in the sequence length.

Position t of a head has a query q_t, a key k_t, a value v_t and pack weights a_t, one weight for each of the
L rows of the packed sequence P. Causal Luna attention computes::

    u_t = softmax((K^-0.5 / t) sum_{j<=t} (q_t . k_j) a_j)       unpack weights [L]
    y_t = (1 / t) sum_{j<=t} (u_t . a_j) v_j                     output [K]

Both sums are computed in chunks of c positions. Within a chunk, they are masked matrix products. Earlier
chunks are accumulated in a state, the sums of the outer products ``a_j^T k_j`` and ``a_j^T v_j``. Each is a
matrix of L rows and K columns for each head. The result matches the naive implementation up to rounding.

The backward pass is hand-written. It recomputes the products and the states from the saved inputs and the
saved softmax.

In the shapes of this file, N = B x H is batch size times number of heads. T is the sequence length, c the
number of positions in a chunk, K the head width, and L the number of rows of P. A is the matrix of pack
weights, with one row a_t per position. Attention is called tied if keys and values are the same tensor.
"""

from typing import Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.decay import (
    ChunkDecay,
    chunk_decay,
    cumulative_log_decay,
    decayed_counts,
    scale,
    scale_,
    sum_over_examples,
)
from luna_fairseq.ops.causal_luna.inputs import count_steps, mask_padding
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.chunks import chunk_size, chunk_slices, write_chunk


class KeysValues(NamedTuple):
    """Pair of tensors: one for the keys, and one for the values.

    The pair holds keys and values, or the two sums of a recurrent state, or the gradients of either. In tied
    attention, keys and values are the same tensor, and ``values`` is None. A pair of gradients then holds the
    sum of both gradients in ``keys``.

    Shapes: N heads in the batch, c positions in a chunk, head width K, and L rows of the packed sequence P.

    Attributes:
        keys: keys [N, c, K], or the sum [N, L, K] of a_j^T k_j over positions j. k_j is the key of position
            j, and a_j [L] are its pack weights.
        values: values [N, c, K], or the sum [N, L, K] of a_j^T v_j over positions j, where v_j is the value
            of position j (None if tied).
    """

    keys: Tensor
    values: Optional[Tensor]

    def values_or_keys(self) -> Tensor:
        """Return the values, or the keys if they are the same tensor as the values (tied attention)."""
        return self.keys if self.values is None else self.values

    def distinct(self) -> List[Tensor]:
        """Return ``[keys, values]``, or ``[keys]`` if both are the same tensor (tied attention)."""
        return [self.keys] if self.values is None else [self.keys, self.values]


def map_pairs(function: Callable[..., Tensor], *pairs: KeysValues) -> KeysValues:
    """Apply a function to the keys of all pairs, and then to the values of all pairs.

    ``map_pairs(f, a, b)`` is ``KeysValues(f(a.keys, b.keys), f(a.values, b.values))``. If keys and values are
    the same tensor (tied), the values of the result are None.

    Args:
        function: function with one tensor argument per pair.
        *pairs: pairs of keys and values, all tied or all untied.

    Returns:
        The pair of results.
    """
    keys = function(*[pair.keys for pair in pairs])
    if pairs[0].values is None:
        return KeysValues(keys, None)
    return KeysValues(keys, function(*[pair.values for pair in pairs]))


class Inputs(NamedTuple):
    """Inputs of chunkwise causal Luna attention, for a whole sequence.

    If there is a state (``key_sum`` and ``value_sum``), ``values`` must be given too, because attention with
    a state does not exploit tied keys and values.

    Shapes: batch size B, H heads, N = B x H heads in the batch, T positions, head width K, and L rows of the
    packed sequence P.

    Attributes:
        q: queries [N, T, K].
        pack_weights: pack weights A [N, T, L], one per position and row of P, zero at padding, in the dtype
            in which sums are accumulated.
        inverse_steps: factors 1 / t [1 or N, T, 1], where t is the number of non-padding positions up to and
            including this one. With decay, t is the sum of their decay factors.
        dropout_factors: factors [N, T, L] that are multiplied into the unpack weights: 0 for dropped weights,
            and 1 / (1 - dropout probability) for kept ones (None if there is no dropout).
        row_mask: mask [1 or N, 1, L], True at masked rows of P (None if no row is masked).
        log_decay: cumulative log decay [H or N, T, 1] (None if there is no decay).
        keys: keys [N, T, K].
        values: values [N, T, K] (None if keys and values are the same tensor, that is, tied).
        key_sum: sum A^T keys [N, L, K] over earlier positions (None if there are no earlier positions).
        value_sum: sum A^T values [N, L, K] over earlier positions (None if there are no earlier positions).
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
        """Return the state before the first chunk, or None if there are no earlier positions."""
        return None if self.key_sum is None else KeysValues(self.key_sum, self.value_sum)

    def chunk_slices(self) -> List[slice]:
        """Return the position slice of each chunk, in order."""
        return chunk_slices(self.q.size(1), chunk_size(self.q, self.pack_weights.size(-1)))


class Chunk(NamedTuple):
    """Inputs of chunkwise causal Luna attention for one chunk of c positions.

    All tensors are in the dtype in which sums are accumulated, float32 or float64.

    Shapes: N heads in the batch (batch size times number of heads), head width K, and L rows of the packed
    sequence P.

    Attributes:
        q: queries [N, c, K].
        pack_weights: pack weights A [N, c, L], one per position and row of P.
        inverse_steps: factors 1 / t [1 or N, c, 1], where t is the number of non-padding positions up to and
            including this one. With decay, t is the sum of their decay factors.
        dropout_factors: factors [N, c, L] that are multiplied into the unpack weights: 0 for dropped weights,
            and 1 / (1 - dropout probability) for kept ones (None if there is no dropout).
        row_mask: mask [1 or N, 1, L], True at masked rows of P (None if no row is masked).
        decay: decay factors between the positions of the chunk (None if there is no decay).
        inputs: keys and values of the chunk, each [N, c, K].
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    dropout_factors: Optional[Tensor]
    row_mask: Optional[Tensor]
    decay: Optional[ChunkDecay]
    inputs: KeysValues

    def causal_product(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the dot products x_t . y_j of all positions j <= t, multiplied by the decay from j to t.

        Args:
            x: vectors x_t [N, c, D]: N heads in the batch, and c positions of width D.
            y: vectors y_j, with the same shape as ``x``.

        Returns:
            The products [N, c, c], indexed by t and j, 0 for j > t.
        """
        product = torch.bmm(x, y.transpose(1, 2))
        return product.tril_() if self.decay is None else scale_(product, self.decay.between)

    def decay_from_start(self, x: Tensor) -> Tensor:
        """Multiply the vector of each position by the decay accumulated since the start of the chunk.

        Multiplying the result by the state before the chunk gives the contribution of earlier chunks.

        Args:
            x: vectors [N, c, D]: N heads in the batch, and c positions of width D.

        Returns:
            The decayed vectors, with the same shape as ``x``; ``x`` itself if there is no decay.
        """
        return x if self.decay is None else scale(x, self.decay.from_start)

    def decay_to_end(self, x: Tensor) -> Tensor:
        """Multiply the vector of each position by the decay from this position to the end of the chunk.

        The outer products of the result can be added to the state at the end of the chunk.

        Args:
            x: vectors [N, c, D]: N heads in the batch, and c positions of width D.

        Returns:
            The decayed vectors, with the same shape as ``x``; ``x`` itself if there is no decay.
        """
        return x if self.decay is None else scale(x, self.decay.to_end)

    def decay_state(self, state: KeysValues) -> KeysValues:
        """Multiply a state, or the gradient of a state, by the decay over the whole chunk.

        A state is the sum of outer products of pack weights with keys, and with values, over earlier
        positions.

        Args:
            state: state or gradient. Each tensor is [N, L, K]: N heads in the batch, L rows of the packed
                sequence P, and head width K.

        Returns:
            The decayed state, with the same shapes; ``state`` itself if there is no decay.
        """
        decay = self.decay
        return state if decay is None else map_pairs(lambda x: scale(x, decay.whole), state)

    def drop_and_divide(self, x: Tensor) -> Tensor:
        """Multiply a tensor by the dropout factors, and divide it by the number of positions t.

        In the forward pass, this function turns the softmax over the rows of the packed sequence P into the
        unpack weights. In the backward pass, it turns the gradient of the unpack weights into the gradient of
        the softmax.

        Args:
            x: softmax or gradient [N, c, L]: N heads in the batch, c positions, and L rows of P.

        Returns:
            The result, with the same shape as ``x``.
        """
        x = x * self.inverse_steps
        return x if self.dropout_factors is None else x.mul_(self.dropout_factors)

    def next_state(self, before: Optional[KeysValues]) -> KeysValues:
        """Compute the state after the chunk, ``decay * before + A^T inputs``.

        A are the pack weights of the chunk, decayed to its end. The state consists of two sums, one over the
        keys and one over the values.

        Args:
            before: state before the chunk (None at the beginning of the sequence). Each tensor is [N, L, K]:
                N heads in the batch, L rows of the packed sequence P, and head width K.

        Returns:
            The new state, with tensors of the same shape.
        """
        rows = self.decay_to_end(self.pack_weights).transpose(1, 2)
        if before is None:
            return map_pairs(lambda x: torch.bmm(rows, x), self.inputs)
        return map_pairs(
            lambda x, state: torch.baddbmm(state, rows, x), self.inputs, self.decay_state(before)
        )


class ChunkGradients(NamedTuple):
    """Gradients of the inputs of one chunk of causal Luna attention.

    Shapes: N heads in the batch, c positions in the chunk, head width K, and L rows of the packed sequence P.

    The last two fields are set only if there is decay. The decay from position j to position t is
    ``exp(G_t - G_j)``, where G is the cumulative log decay. It is split into two scales. Position j scales
    the terms that it adds to the sums by exp(-G_j), and position t scales the sums that it uses by exp(G_t) /
    t. The two fields are the derivatives of the loss with respect to the logs of these scales.

    Attributes:
        q: gradient [N, c, K] of the queries.
        pack_weights: gradient [N, c, L] of the pack weights.
        keys: gradient [N, c, K] of the keys. If keys and values are the same tensor (tied), it is the sum of
            both gradients.
        values: gradient [N, c, K] of the values (None if tied).
        read_scale: derivative [N, c, 1] with respect to log(exp(G_t) / t), or None.
        added_scale: derivative [N, c, 1] with respect to log(exp(-G_j)), or None.
    """

    q: Tensor
    pack_weights: Tensor
    keys: Tensor
    values: Optional[Tensor]
    read_scale: Optional[Tensor]
    added_scale: Optional[Tensor]


def chunk_forward(chunk: Chunk, before: Optional[KeysValues]) -> Tuple[Tensor, Tensor]:
    """Compute the output of causal Luna attention for one chunk.

    With queries q, keys k, values v and pack weights A of the chunk, and the state (S_k, S_v) before it::

        weights = softmax((tril(q k^T) A + q S_k^T) / (t sqrt(K)))
        U = dropout(weights) / t
        output = tril(U A^T) v + U S_v

    S_k and S_v are the sums of ``a_j^T k_j`` and of ``a_j^T v_j`` over earlier positions j. With decay, each
    product of two positions is also multiplied by the decay between them.

    Args:
        chunk: inputs of the chunk.
        before: state before the chunk, the sums S_k and S_v [N, L, K] (None at the beginning of the
            sequence).

    Returns:
        - output [N, c, K] of the chunk: N heads in the batch, c positions, and head width K.
        - softmax weights [N, c, L] over the L rows of the packed sequence P, needed by the backward pass.
    """
    q, A = chunk.q, chunk.pack_weights
    logits = torch.bmm(chunk.causal_product(q, chunk.inputs.keys), A)
    if before is not None:
        logits.baddbmm_(chunk.decay_from_start(q), before.keys.transpose(1, 2))
    logits.mul_(chunk.inverse_steps * q.size(-1) ** -0.5)
    if chunk.row_mask is None:
        softmax = logits.softmax(dim=-1)
    else:
        logits.masked_fill_(chunk.row_mask, torch.finfo(logits.dtype).min)
        softmax = logits.softmax(dim=-1).masked_fill_(chunk.row_mask, 0.0)
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
    """Compute the gradients of the inputs of one chunk, and of the state before the chunk.

    The state consists of two sums over positions j: the outer products of pack weights and keys, and those of
    pack weights and values.

    Shapes: N heads in the batch, c positions in the chunk, head width K, and L rows of the packed sequence P.

    Args:
        chunk: inputs of the chunk.
        softmax: softmax [N, c, L] over the rows of P, from the forward pass.
        grad: gradient [N, c, K] of the output.
        before: state before the chunk, each tensor [N, L, K] (None at the beginning of the sequence).
        grad_after: gradient of the state after the chunk, each tensor [N, L, K] (None at the end of the
            sequence).

    Returns:
        - gradients of the inputs of the chunk.
        - gradient of the state before the chunk, each tensor [N, L, K] (None at the beginning).
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
    """Compute the gradients ``start.keys + key_factor^T q`` and ``start.values + value_factor^T grad``.

    These are the gradients of a chunk's keys and values, or of the state before the chunk (the sums over
    earlier positions).

    Shapes: N heads in the batch, c positions in the chunk, and head width K. M is c for the gradients of keys
    and values. For the gradients of the state, M is the number of rows of the packed sequence P.

    Args:
        key_factor: matrices [N, c, M] by which the queries are multiplied.
        q: queries [N, c, K].
        value_factor: matrices [N, c, M] by which the gradient of the output is multiplied.
        grad: gradient [N, c, K] of the output.
        is_tied: True if keys and values are the same tensor.
        start: gradients [N, M, K] to which the products are added (default: None, zero).

    Returns:
        - ``keys``: gradient [N, M, K] of the keys, or the sum of the gradients of keys and values if tied.
        - ``values``: gradient [N, M, K] of the values (None if tied).
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
    """Compute causal Luna attention chunk by chunk, with memory linear in the sequence length.

    For the query q_t, keys k_j, values v_j and pack weights a_j, the output y_t at position t is::

        u_t = softmax(K^-0.5 (1 / t) sum_{j<=t} (q_t . k_j) a_j)     unpack weights [L]
        y_t = (1 / t) sum_{j<=t} (u_t . a_j) v_j                     output [K]

    With decay, a decayed mean replaces (1 / t) times the sum over positions.

    All sums are accumulated in float32 (float64 for float64 inputs). If ``v`` is the same tensor as ``k``
    (tied) and there is no state, their sums and gradients are computed once, which saves time.

    Shapes: batch size B, H heads, T positions, head width K, and L rows of the packed sequence P.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5.
        k: keys [B, H, T, K].
        v: values [B, H, T, K].
        pack_weights: pack weights [B, H, T, L], one per position and row of P.
        packed_padding_mask: mask [B, L], True at masked rows of P. If all rows are masked, the output is zero
            (default: None, no row is masked).
        key_padding_mask: mask [B, T], True at padding. Padding is excluded from the sums over positions and
            from the position counts (default: None, no padding).
        dropout: dropout probability of the unpack weights (default: 0).
        state: sums over earlier positions, from which the attention continues (default: None, no earlier
            positions).
        log_decay: log decay [H] per position of each head, negative (default: None, no decay).

    Returns:
        The output [B, H, T, K] in the dtype of ``q``.

    Example:
        >>> import torch
        >>> x, pack_weights = torch.randn(2, 8, 100, 64), torch.rand(2, 8, 100, 16)
        >>> chunk_causal_luna(x, x, x, pack_weights).shape
        torch.Size([2, 8, 100, 64])
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    B, H = q.shape[:2]
    with torch.autocast(q.device.type, enabled=False):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        steps = count_steps(q, key_padding_mask, None if state is None else state.steps)
        dropout_factors = F.dropout(torch.ones_like(pack_weights), dropout).flatten(0, 1) if dropout else None
        total_log_decay = None
        if log_decay is not None:
            log_decay = log_decay.to(dtype)
            steps = decayed_counts(log_decay, steps)
            total_log_decay = cumulative_log_decay(log_decay, q, key_padding_mask).flatten(0, 1)
        row_mask = None
        if packed_padding_mask is not None:
            row_mask = flatten_heads(packed_padding_mask[:, None, None, :], B, H)
        key_sum = value_sum = None
        if state is not None:
            key_sum = state.key_sum.transpose(-2, -1).flatten(0, 1)
            value_sum = state.value_sum.flatten(0, 1)
        is_tied = v is k and state is None
        inputs = Inputs(
            q=q.flatten(0, 1),
            pack_weights=pack_weights.flatten(0, 1),
            inverse_steps=flatten_heads(steps.to(dtype).reciprocal(), B, H),
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
    """Broadcast a tensor to B examples and H heads, and flatten both dimensions into one.

    A tensor that is the same for all examples and heads stays a batch of one, which costs no memory.

    Args:
        x: matrices [1 or B, 1 or H, R, S] with R rows and S columns.
        B: batch size.
        H: number of heads.

    Returns:
        The tensor [B H, R, S], or [1, R, S] if both first dimensions of ``x`` are 1.
    """
    return x[0] if x.shape[:2] == (1, 1) else x.expand(B, H, -1, -1).flatten(0, 1)


class _ChunkCausalLuna(Function):
    """Autograd function of chunkwise causal Luna attention, with a hand-written backward pass.

    The arguments of ``apply`` are the fields of :class:`Inputs`, in order. The inputs and the softmax over
    the rows of the packed sequence P are saved for the backward pass.
    """

    @staticmethod
    def forward(ctx: Function, *tensors: Optional[Tensor]) -> Tensor:
        """Compute causal Luna attention chunk by chunk.

        Args:
            ctx: autograd context, which saves tensors for the backward pass.
            *tensors: fields of :class:`Inputs`, in order.

        Returns:
            The output [N, T, K] in the dtype of the queries: N heads in the batch, T positions, and head
            width K.
        """
        inputs = Inputs(*tensors)
        T = inputs.q.size(1)
        results: List[Optional[Tensor]] = []
        state = inputs.initial_state()
        for span in inputs.chunk_slices():
            chunk = take_chunk(inputs, span)
            output, softmax = chunk_forward(chunk, state)
            results = write_chunk(results, [output.to(inputs.q.dtype), softmax], span, T)
            if span.stop < T:
                state = chunk.next_state(state)
        output, softmax = results
        ctx.save_for_backward(softmax, *tensors)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        """Compute the gradients of all inputs, chunk by chunk from the last to the first.

        Args:
            ctx: autograd context with the saved tensors.
            grad: gradient [N, T, K] of the output: N heads in the batch, T positions, and head width K.

        Returns:
            The gradient of each field of :class:`Inputs`, or None for fields without a gradient.
        """
        softmax, *tensors = ctx.saved_tensors
        inputs = Inputs(*tensors)
        T, log_decay = inputs.q.size(1), inputs.log_decay
        results: List[Optional[Tensor]] = []
        states = [inputs.initial_state()]  # the state before each chunk
        grad_state: Optional[KeysValues] = None
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with torch.autocast(grad.device.type, enabled=False):
            slices = inputs.chunk_slices()
            for span in slices[:-1]:
                states.append(take_chunk(inputs, span).next_state(states[-1]))
            for span in reversed(slices):
                chunk, grad_output = take_chunk(inputs, span), grad[:, span].to(softmax.dtype)
                gradients, grad_state = chunk_backward(
                    chunk, softmax[:, span], grad_output, states.pop(), grad_state
                )
                results = write_chunk(results, cast_gradients(gradients, inputs), span, T)
            grad_q, grad_A, grad_keys, grad_values, read_scale, added_scale = results
            grad_inverse_steps = grad_log_decay = None
            if log_decay is not None and read_scale is not None and added_scale is not None:
                grad_inverse_steps = read_scale / inputs.inverse_steps
                per_head = (read_scale - added_scale).to(log_decay.dtype)
                grad_log_decay = sum_over_examples(per_head, log_decay.size(0))
        grad_key_sum, grad_value_sum = (None, None) if grad_state is None else grad_state
        return (
            *(grad_q, grad_A, grad_inverse_steps, None, None, grad_log_decay),
            *(grad_keys, grad_values, grad_key_sum, grad_value_sum),
        )


def cast_gradients(gradients: ChunkGradients, inputs: Inputs) -> ChunkGradients:
    """Convert the gradients of queries, keys and values to the dtypes of the queries, keys and values.

    Args:
        gradients: gradients of one chunk.
        inputs: inputs of the whole sequence, used for their dtype.

    Returns:
        The gradients. All other fields are unchanged.
    """
    values = gradients.values
    if values is not None and inputs.values is not None:
        values = values.to(inputs.values.dtype)
    return gradients._replace(
        q=gradients.q.to(inputs.q.dtype), keys=gradients.keys.to(inputs.keys.dtype), values=values
    )


def take_chunk(inputs: Inputs, span: slice) -> Chunk:
    """Slice one chunk from the inputs of the whole sequence, and compute the decay within the chunk.

    Args:
        inputs: inputs of the whole sequence.
        span: positions of the chunk, as a slice of the sequence.

    Returns:
        The inputs of the chunk, in the dtype in which sums are accumulated (float32 or float64).
    """
    dtype = inputs.pack_weights.dtype
    dropout_factors, log_decay, values = inputs.dropout_factors, inputs.log_decay, inputs.values
    return Chunk(
        q=inputs.q[:, span].to(dtype),
        pack_weights=inputs.pack_weights[:, span],
        inverse_steps=inputs.inverse_steps[:, span],
        dropout_factors=None if dropout_factors is None else dropout_factors[:, span],
        row_mask=inputs.row_mask,
        decay=None if log_decay is None else chunk_decay(log_decay, span, dtype),
        inputs=KeysValues(
            inputs.keys[:, span].to(dtype), None if values is None else values[:, span].to(dtype)
        ),
    )
