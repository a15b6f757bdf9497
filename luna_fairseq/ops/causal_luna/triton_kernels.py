"""Triton kernels of causal Luna attention: helper functions, the sums over segments, and the forward pass.

Position t of a head has a query q_t, a key k_t and a value v_t of width K. It also has the pack weights a_t,
one for each of the L rows of the packed sequence P. The forward pass computes::

    u_t = softmax((K^-0.5 / t) sum_{j<=t} D_tj (q_t . k_j) a_j)        unpack weights [L]
    y_t = (1 / t) sum_{j<=t} D_tj (u_t . a_j) v_j                      output [K]

D_tj is the decay from position j to position t, or 1 if there is no decay.

A sequence of T positions is split into chunks of BLOCK_T positions, and into segments of one or more chunks.
Each program processes one segment of one head, chunk by chunk. Both sums have the form
``x_t sum_j y_j^T z_j``. Within a chunk, they are the masked matrix product ``sum_j (x_t . y_j) z_j``. Earlier
chunks are accumulated in two states [K, L]: the key sum ``sum k_j^T a_j`` and the value sum
``sum v_j^T a_j``. If keys and values are the same tensor (SIDES = 1), there is one state. A program first
adds up the sums over all preceding segments. If the sequence has only one chunk, there are no states (STATES
is False).

The rows of P are processed in blocks of BLOCK_L rows with a running softmax. With a single block, the states
stay in registers from chunk to chunk. Otherwise they are stored in ``scratch``, a part of the GPU memory that
belongs to the program.

With decay, every position has an age: the negative log decay accumulated since the start of its chunk. Within
a chunk, D_tj is exp(age_j - age_t). A state holds the sums as seen from the end of the last chunk. Terms that
are added to a state, and factors that multiply a state, are scaled by their decay relative to that point.
Without decay all ages are the constant 0, and the compiler removes them.

Inputs and outputs have T positions and K or L columns. All other memory consists of whole blocks and needs no
masks. A state has BLOCK_K rows and WIDTH columns, where WIDTH is L rounded up to a multiple of BLOCK_L.

Three measures keep the number of registers small. Inputs are reloaded from the cache for every product. One
loop processes two sides in turn: queries with keys, then weights (or the gradient of the output) with values.
Results [T, K] are computed transposed. Otherwise Triton would place the warps of all products of a kernel
side by side along the rows.

Products of two half-precision inputs are computed in half precision, and all other products in float32 at
PRECISION. All sums are float32. Names in capital letters are compile-time constants.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.inputs import BLOCK_L as ROWS_AT_A_TIME

# Logit of masked rows of P. Real logits never reach this value, and unlike -inf it causes no NaN if all
# rows are masked.
MASKED_LOGIT = tl.constexpr(-1e30)
# Arguments that differ from batch to batch. Specializing a kernel on their values would take seconds of
# compilation.
LENGTHS = ["T", "segments", "chunks"]
# Philox passes the same statistical tests with 7 rounds as with 10.
PHILOX_ROUNDS = tl.constexpr(7)
BLOCK_L = tl.constexpr(ROWS_AT_A_TIME)
# Initial value of a variable that changes places with one that begins as 0. If both began as 0, Triton 3.6
# and 3.9 would take the first of them for a constant and drop what the loop assigns to it.
SWAPPED = tl.constexpr(1.0)
# Cache policies for the first load of an input, subsequent loads, and the last load. With a single policy,
# the compiler would merge the loads into one and keep the result in registers.
FIRST, AGAIN, LAST = tl.constexpr("evict_last"), tl.constexpr(""), tl.constexpr("evict_first")


@triton.jit
def round_operand(x, PRECISION):
    """Convert an operand of a matrix product to float32, rounded to tf32 if the product uses tf32."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        rounded = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
        # A GPU's NaN is 0x7fffffff, which would become -0.
        x = tl.where(x == x, rounded, x)
    return x.to(tl.float32)


# True if Triton's interpreter runs the kernels. It would multiply bfloat16 numbers as if they were integers.
INTERPRETED = tl.constexpr(not isinstance(round_operand, triton.JITFunction))


@triton.jit
def product(x, y, PRECISION):
    """Compute the matrix product x @ y with the given precision, accumulated in float32."""
    # Triton 3.0 does not support three conditions in a row, hence the parentheses.
    if (INTERPRETED or x.dtype != y.dtype) or x.dtype == tl.float32:
        x, y = round_operand(x, PRECISION), round_operand(y, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def block_offsets(stride, first, HEIGHT, BLOCK):
    """Compute the memory offsets [HEIGHT, BLOCK] of the elements of a block of a row-major matrix.

    The block has the first HEIGHT rows, ``stride`` elements apart, and BLOCK columns beginning at ``first``.
    """
    return tl.arange(0, HEIGHT)[:, None] * stride + first + tl.arange(0, BLOCK)[None, :]


@triton.jit
def load_rows(x, stride, row_mask, first, L, BLOCK_L):
    """Load a float32 block [BLOCK_T, BLOCK_L] of a matrix x with L columns, from the column ``first`` on.

    Rows are ``stride`` elements apart. Rows where ``row_mask`` is False, and columns beyond L, are 0.
    """
    mask = row_mask[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
    offsets = block_offsets(stride, first, row_mask.shape[0], BLOCK_L)
    return tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_chunk(x, offsets, mask, POLICY):
    """Load a chunk [BLOCK_T, BLOCK_K] of elements at the addresses x + ``offsets``, or 0 outside ``mask``.

    Offsets and mask have the same shape as the chunk. POLICY is the cache eviction policy.
    """
    return tl.load(x + offsets, mask=mask, other=0.0, eviction_policy=POLICY)


@triton.jit
def locate_chunk(i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K):
    """Compute the memory offsets and masks for loading chunk i of this program's segment.

    A segment has ``chunks`` chunks. x_b, x_h and x_t are the strides of q, k and v for examples, heads and
    positions; a_b, a_h and a_t are the strides of the pack weights.

    Returns:
        - index of the chunk's first position in the concatenated segments of all heads.
        - index of the example.
        - index of the chunk's first position in the sequence.
        - offsets of the chunk in q, k and v, and in the pack weights.
        - masks [BLOCK_T], True at positions before T, and at positions before T that are not padding.
        - offsets and mask [BLOCK_T, BLOCK_K] of the elements of the chunk, for :func:`load_chunk`.
    """
    bh = (tl.program_id(0) // segments).to(tl.int64)
    b, h = bh // H, bh % H
    start = (tl.program_id(0) % segments * chunks + i) * BLOCK_T
    exists = start + tl.arange(0, BLOCK_T) < T
    real = exists
    if padding is not None:
        real = exists & (tl.load(padding + b * T + start + tl.arange(0, BLOCK_T), mask=exists, other=1) == 0)
    mask = exists[:, None] & (tl.arange(0, BLOCK_K) < K)[None, :]
    long = start.to(tl.int64)
    x_offset, a_offset = b * x_b + h * x_h + long * x_t, b * a_b + h * a_h + long * a_t
    row = bh * segments * chunks * BLOCK_T + start
    return row, b, start, x_offset, a_offset, exists, real, block_offsets(x_t, 0, BLOCK_T, BLOCK_K), mask


@triton.jit
def load_times(row, start, reciprocal, ages, BLOCK_T):
    """Load the factors 1/t and the cumulative decay of the BLOCK_T positions t of a chunk.

    Return the factors [BLOCK_T], the ages [BLOCK_T], which are negative log decays since the start of the
    chunk, and the age of the last position. ``row`` and ``start`` are the indices of the first position from
    :func:`locate_chunk`. 1/t is computed if ``reciprocal`` is None. Without ``ages``, all ages are 0.
    """
    offsets = row + tl.arange(0, BLOCK_T)
    inverse = 1.0 / (start + 1 + tl.arange(0, BLOCK_T)).to(tl.float32)
    age, end = tl.zeros((BLOCK_T,), dtype=tl.float32), 0.0
    if reciprocal is not None:
        inverse = tl.load(reciprocal + offsets)
    if ages is not None:
        age, end = tl.load(ages + offsets), tl.load(ages + row + BLOCK_T - 1)
    return inverse, age, end


@triton.jit
def apply_decay(x, age, J):
    """Multiply dot products x_tj of a chunk by the decay exp(age_j - age_t) if j <= t, otherwise by 0.

    ``age`` [BLOCK_T] holds negative log decays. x is indexed by (t, j), or by (j, t) if J is 1.
    """
    i = tl.arange(0, x.shape[0])
    x *= tl.exp(tl.minimum(tl.expand_dims(age, J) - tl.expand_dims(age, 1 - J), 0.0))
    return tl.where(tl.expand_dims(i, J) <= tl.expand_dims(i, 1 - J), x, 0.0)


@triton.jit
def initial_states(sums, memory, spans, segments, STEP, SIDES, STATES, WIDTH, BLOCK_K):
    """Compute two states: sums over all segments before (STEP = -1) or after (STEP = 1) a program's segment.

    A segment is the part of a sequence that one program processes. A state is a sum [BLOCK_K, WIDTH] of outer
    products over positions. In the forward pass, the two states are the sums of ``k_j^T a_j`` and of
    ``v_j^T a_j`` over earlier positions j, where k_j is a key, v_j a value and a_j the pack weights. The
    segments are added from the farthest to the nearest::

        state = exp(-span) * state + sum over the segment

    ``sums`` holds the sum over each segment, and ``spans`` the negative log decay over each segment (None
    without decay). A head has ``segments`` segments. SIDES is 1 if keys and values are the same tensor, so
    that both states are equal, and otherwise 2. Return the two states, and the address in ``memory`` at which
    the states of this program are stored if they do not fit into registers.
    """
    own = tl.program_id(0).to(tl.int64)
    before = tl.program_id(0) % segments
    count = before if STEP < 0 else segments - 1 - before
    memory += own * (2 * BLOCK_K * WIDTH)
    state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    other = tl.full((BLOCK_K, BLOCK_L), SWAPPED, dtype=tl.float32)
    for side in range(2 if STATES else 0):
        for first in range(0, WIDTH, BLOCK_L):
            state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
            offsets = side * ((SIDES - 1) * BLOCK_K * WIDTH) + block_offsets(WIDTH, first, BLOCK_K, BLOCK_L)
            for i in range(count):
                one = own + STEP * (count - i)
                if spans is not None:
                    state *= tl.exp(-tl.load(spans + one))
                state += tl.load(sums + one * (SIDES * BLOCK_K * WIDTH) + offsets)
            if WIDTH > BLOCK_L:
                tl.store(memory + offsets, state)
        state, other = other, state
    if STATES and WIDTH > BLOCK_L:
        tl.debug_barrier()  # other threads load what this thread has stored
    return state, other, memory


@triton.jit
def read_state(state, memory, first, STATES, WIDTH):
    """Return columns ``first`` to ``first + BLOCK_L`` of a state [BLOCK_K, WIDTH] of earlier chunks.

    A state of more than BLOCK_L columns is too wide for registers. Its columns are loaded from the address
    ``memory``. STATES is False if the sequence has only one chunk, and ``state`` is then returned unchanged.
    """
    if STATES and WIDTH > state.shape[1]:
        state = tl.load(memory + block_offsets(WIDTH, first, state.shape[0], state.shape[1]))
    return state


@triton.jit
def advance_states(
    state, other, memory, x, other_x, offsets, mask, y, other_y, stride, row_mask, factor, other_factor, end,
    L, SIDES, WIDTH, PRECISION,
):  # fmt: skip
    """Decay both states, and add the outer products of one chunk of BLOCK_T positions to them.

    The states are [BLOCK_K, WIDTH] matrices. Return their new values, after the update::

        state = exp(-end) * state + x^T (factor * y)
        other = exp(-end) * other + other_x^T (other_factor * other_y)

    ``end`` is the negative log decay over the chunk, and both factors are vectors [BLOCK_T]. x and other_x
    are addresses of chunks [BLOCK_T, BLOCK_K], and ``offsets`` and ``mask`` select their elements as in
    :func:`load_chunk`. y and other_y are addresses of matrices with BLOCK_T rows and L columns, with the row
    stride ``stride``. Rows where ``row_mask`` is False count as 0. If SIDES is 1, only ``state`` is updated.
    If WIDTH is larger than BLOCK_L, both states are stored in scratch memory at the address ``memory``, and
    updated in blocks of BLOCK_L columns.
    """
    for side in range(SIDES):
        own, one = memory + side * (state.shape[0] * WIDTH), tl.where(side == 0, x, other_x)
        for first in range(0, WIDTH, state.shape[1]):
            rows = load_rows(tl.where(side == 0, y, other_y), stride, row_mask, first, L, state.shape[1])
            rows *= tl.where(side == 0, factor, other_factor)[:, None]
            state = read_state(state, own, first, True, WIDTH) * tl.exp(-end)
            state += product(tl.trans(load_chunk(one, offsets, mask, AGAIN)), rows, PRECISION)
            if WIDTH > state.shape[1]:
                tl.store(own + block_offsets(WIDTH, first, state.shape[0], state.shape[1]), state)
        state, other = other, state
    return other if SIDES == 1 else state, other


@triton.jit
def causal_scores(x, y, offsets, mask, age, J, PRECISION):
    """Compute dot products x_t . y_j between all positions t and j of a chunk, with decay and causal mask.

    x, y, ``offsets`` and ``mask`` are arguments of :func:`load_chunk`, ``age`` and J of :func:`apply_decay`.
    """
    scores = product(
        load_chunk(x, offsets, mask, FIRST), tl.trans(load_chunk(y, offsets, mask, FIRST)), PRECISION
    )
    return apply_decay(scores, age, J)


@triton.jit
def causal_sums(x, offsets, mask, scores, x_a, age, state, STATES, PRECISION):
    """Compute ``sum_j scores_tj a_j + exp(-age_t) x_t state``, the sums over this chunk and earlier chunks.

    ``scores`` are from :func:`causal_scores`, ``x_a`` holds the a_j, and ``age`` the negative log decay of t
    since the chunk's start. :func:`load_chunk` loads x_t. Without STATES, the second term is omitted.
    """
    sums = product(scores, x_a, PRECISION)
    if STATES:
        sums += product(load_chunk(x, offsets, mask, AGAIN), state, PRECISION) * tl.exp(-age)[:, None]
    return sums


@triton.jit
def load_row_mask(packed_padding, b, first, L, BLOCK_L):
    """Load a mask [1, BLOCK_L] of rows of the packed sequence P, for the example with index b.

    The rows begin with index ``first``. The mask is True at rows below L that are not padding.
    """
    column = first + tl.arange(0, BLOCK_L)[None, :]
    included = column < L
    if packed_padding is not None:
        included = included & (tl.load(packed_padding + b * L + column, mask=included, other=1) == 0)
    return included


@triton.jit
def dropout_factor(seed, dropout, boost, position, first, WIDTH, BLOCK_T, BLOCK_L):
    """Draw dropout factors [BLOCK_T, BLOCK_L] for attention weights over rows of the packed sequence P.

    A factor is 0 with probability ``dropout``, otherwise ``boost`` = 1 / (1 - dropout). All factors are 1 if
    there is no seed. A factor depends only on the seed and on the index of its weight, so the backward pass
    draws the same factors. The block begins with row ``first`` of P and with ``position``, the first index
    that :func:`locate_chunk` returns.
    """
    factor = tl.full((BLOCK_T, BLOCK_L), 1.0, dtype=tl.float32)
    if seed is not None:
        offsets = position * WIDTH + block_offsets(WIDTH, first, BLOCK_T, BLOCK_L)
        factor = tl.where(tl.rand(tl.load(seed), offsets, n_rounds=PHILOX_ROUNDS) >= dropout, boost, 0.0)
    return factor


@triton.jit(do_not_specialize=LENGTHS)
def segment_sums_kernel(
    k, v, a, sums, reciprocal, ages, padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the decayed sums of ``k_j^T a_j`` and of ``v_j^T a_j`` over the positions j of each segment.

    k_j, v_j and a_j are the key, the value and the pack weights of position j. A head has ``segments``
    segments of ``chunks`` chunks of BLOCK_T positions. Each program computes COLUMNS columns of one sum over
    one segment. It goes through the chunks in order, and computes for x = k or v::

        state = exp(-end) * state + x^T (exp(age - end) * a)

    ``age`` is the negative log decay of a position since the start of its chunk, loaded from ``ages`` (0 if
    ``ages`` is None), and ``end`` is the age of the last position. Positions where ``padding`` [B, T] is True
    are omitted. The strides x_* belong to ``k`` and ``v`` [B, H, T, K], and a_* to ``a`` [B, H, T, L]. The
    results are stored in ``sums``.
    """
    side, first = tl.program_id(1) % SIDES, tl.program_id(1) // SIDES * COLUMNS
    state = tl.zeros((BLOCK_K, COLUMNS), dtype=tl.float32)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, offsets, mask = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        x_a = load_rows(a + a_offset, a_t, real, first, L, COLUMNS) * tl.exp(age - end)[:, None]
        x = load_chunk(tl.where(side == 0, k, v) + x_offset, offsets, mask, AGAIN)
        state = state * tl.exp(-end) + product(tl.trans(x), x_a, PRECISION)
    place = (tl.program_id(0).to(tl.int64) * SIDES + side) * (BLOCK_K * WIDTH)
    tl.store(sums + place + block_offsets(WIDTH, first, BLOCK_K, COLUMNS), state)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q, k, v, a, out, lse, sums, scratch, reciprocal, ages, spans, padding, packed_padding, seed, dropout,
    boost, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K: tl.constexpr, L: tl.constexpr,
    SIDES: tl.constexpr, STATES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output of causal Luna attention, and the log-sum-exp of its softmax.

    For the query q_t, the keys k_j, the values v_j and the pack weights a_j, the kernel computes::

        logits_t = (K^-0.5 / t) sum_{j<=t} D_tj (q_t . k_j) a_j        [L]
        u_t = dropout(softmax(logits_t))                             unpack weights [L]
        out_t = (1 / t) sum_{j<=t} D_tj (u_t . a_j) v_j                [K]

    D_tj is the decay from position j to position t (1 without decay), and L the number of rows of the packed
    sequence P. The results are stored in ``out`` and ``lse``.

    The strides x_* belong to ``q``, ``k`` and ``v`` [B, H, T, K], and a_* to ``a`` [B, H, T, L]. ``sums``
    holds the sums over each segment, ``spans`` the negative log decay over each segment, and ``ages`` the
    negative log decay since the start of each chunk. ``reciprocal`` holds the factors 1 / t. A head has
    ``segments`` segments of ``chunks`` chunks. The masks ``padding`` [B, T] and ``packed_padding`` [B, L] are
    True at padding. :func:`dropout_factor` explains ``seed``, ``dropout`` and ``boost``.
    """
    state, other, scratch = initial_states(sums, scratch, spans, segments, -1, SIDES, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, offsets, mask = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        scores = causal_scores(q + x_offset, k + x_offset, offsets, mask, age, 0, PRECISION)
        top, total = tl.full((BLOCK_T,), MASKED_LOGIT, tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . U'_t
        y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(a + a_offset, a_t, real, first, L, BLOCK_L)
            now = read_state(state, scratch, first, STATES, WIDTH)
            logits = causal_sums(q + x_offset, offsets, mask, scores, x_a, age, now, STATES, PRECISION)
            included = load_row_mask(packed_padding, b, first, L, BLOCK_L)
            logits = tl.where(included, logits * (inverse * K**-0.5)[:, None], MASKED_LOGIT)
            new_top = tl.maximum(top, tl.max(logits, 1))
            shrink, top = tl.exp(top - new_top), new_top
            weights = tl.where(included, tl.exp(logits - top[:, None]), 0.0)
            total = total * shrink + tl.sum(weights, 1)
            weights *= dropout_factor(seed, dropout, boost, row, first, WIDTH, BLOCK_T, BLOCK_L)
            mixed = mixed * shrink[None, :] + product(x_a, tl.trans(weights), PRECISION)
            if STATES:
                s = read_state(other, scratch + (SIDES - 1) * BLOCK_K * WIDTH, first, STATES, WIDTH)
                y = y * shrink[None, :] + product(s, tl.trans(weights * tl.exp(-age)[:, None]), PRECISION)
        total = tl.where(total > 0.0, total, 1.0)  # if all rows of P are masked, the output is zero
        y += product(
            tl.trans(load_chunk(v + x_offset, offsets, mask, LAST)), apply_decay(mixed, age, 1), PRECISION
        )
        tl.store(out + x_offset + offsets, tl.trans(y * (inverse / total)[None, :]), mask=mask)
        tl.store(lse + row + tl.arange(0, BLOCK_T), top + tl.log(total))
        if STATES:
            left = tl.exp(age - end)
            state, other = advance_states(
                state, other, scratch, k + x_offset, v + x_offset, offsets, mask, a + a_offset,
                a + a_offset, a_t, real, left, left, end, L, SIDES, WIDTH, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
