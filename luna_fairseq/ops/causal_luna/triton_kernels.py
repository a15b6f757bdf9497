"""Triton kernels of causal Luna attention: shared helpers, the sums of segments, and the forward pass.

A sequence of T positions is cut into chunks of BLOCK_T positions, and into segments of one or more chunks.
Each program processes one segment of one head, chunk by chunk.

Within a chunk, ``x_t sum_j y_j^T z_j`` is computed as the masked matrix product ``sum_j (x_t . y_j) z_j``.
Earlier chunks enter through two states [K, L], ``sum k_j^T a_j`` and ``sum v_j^T a_j``. If the values are the
keys (SIDES = 1), there is one state. A program first adds up the sums of all segments before its own. If the
sequence has one chunk only, there are no states (STATES is False).

The rows of P are processed in blocks of BLOCK_L rows with a running softmax. With a single block, the states
stay in registers from chunk to chunk. Otherwise they lie in ``scratch``, memory that belongs to the program.

With decay, every position has an age, and a term of position j has the weight exp(age_j - age_t) at position
t. A state holds sums as seen at the end of the last chunk. Factors that multiply a state, and terms that are
added to a state, are scaled by their ages relative to that point. Without decay all ages are the constant 0,
and the compiler removes them.

Inputs and outputs have T positions and K or L columns. All other memory consists of whole blocks and needs no
masks. States are [BLOCK_K, WIDTH], and rows are [BLOCK_T, WIDTH], where WIDTH is L rounded up to a multiple
of BLOCK_L.

Three measures keep the number of registers small. Inputs are loaded again, from the cache, for every product.
One loop processes both sides of the attention: queries with keys, and weights (or the gradient of the output)
with values. Results [T, K] are computed transposed, because Triton places the warps of all products of a
kernel side by side along the rows, unless one result is wider than it is high.

Products of two half-precision inputs are computed in half precision, and all other products in float32 at
PRECISION. All sums are float32. Names in capital letters are compile-time constants.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.inputs import BLOCK_L as ROWS_AT_A_TIME

# Logit of masked rows of P. Real logits are far from this number, and unlike -inf it causes no NaN if all
# rows are masked.
MASKED_LOGIT = tl.constexpr(-1e30)
# Arguments that differ from batch to batch. Specialising a kernel for their values would take seconds of
# compilation.
LENGTHS = ["T", "segments", "chunks"]
# Philox passes the same statistical tests with 7 rounds as with 10.
PHILOX_ROUNDS = tl.constexpr(7)
BLOCK_L = tl.constexpr(ROWS_AT_A_TIME)
# Cache policies of the first load of an input, of further loads, and of the last load. With a single policy,
# the compiler would merge the loads into one and keep the result in registers.
FIRST, AGAIN, LAST = tl.constexpr("evict_last"), tl.constexpr(""), tl.constexpr("evict_first")


@triton.jit
def operand(x, PRECISION):
    """Convert a factor of a product to float32, rounded to nearest if the product uses tf32.

    Tensor cores truncate float32 to tf32. Adding half a unit in tf32's last place first turns this into
    rounding. Half-precision numbers are exact in tf32.

    Args:
        x: factor of any floating-point dtype.
        PRECISION: precision of the product, "tf32" or "tf32x3".
    """
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


# True if Triton's interpreter runs the kernels. It would multiply bfloat16 numbers as if they were integers.
INTERPRETED = tl.constexpr(not isinstance(operand, triton.JITFunction))


@triton.jit
def product(x, y, PRECISION):
    """Compute x @ y in float32, or in half precision if both factors have the same half-precision dtype.

    Args:
        x: left factor [M, N].
        y: right factor [N, O].
        PRECISION: precision of products in float32, "tf32" or "tf32x3".
    """
    # Triton 3.0 does not support three conditions in a row, hence the parentheses.
    if (INTERPRETED or x.dtype != y.dtype) or x.dtype == tl.float32:
        x, y = operand(x, PRECISION), operand(y, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def block_offsets(stride, first, HEIGHT, BLOCK):
    """Return the memory offsets of the elements of a block [HEIGHT, BLOCK].

    Args:
        stride: distance between two rows in memory.
        first: first column of the block.
        HEIGHT: number of rows of the block.
        BLOCK: number of columns of the block.
    """
    return tl.arange(0, HEIGHT)[:, None] * stride + first + tl.arange(0, BLOCK)[None, :]


@triton.jit
def load_rows(x, stride, exists, first, L, BLOCK_L):
    """Load a block [BLOCK_T, BLOCK_L] of a matrix and convert the block to float32.

    Masked rows and columns beyond the end of the matrix become zeros.

    Args:
        x: pointer to the first row of the block.
        stride: distance between two rows in memory.
        exists: mask [BLOCK_T], False at rows that become zeros, such as padded positions.
        first: first column of the block.
        L: number of columns of the matrix.
        BLOCK_L: number of columns of the block.
    """
    inside = exists[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
    at = block_offsets(stride, first, exists.shape[0], BLOCK_L)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def read(x, at, inside, POLICY):
    """Load a chunk of an input with a cache policy.

    Args:
        x: pointer to the chunk.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements.
        inside: mask [BLOCK_T, BLOCK_K], False at elements that become zeros.
        POLICY: cache policy, FIRST, AGAIN or LAST.
    """
    return tl.load(x + at, mask=inside, other=0.0, eviction_policy=POLICY)


@triton.jit
def locate_chunk(i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K):
    """Compute the position of a chunk in the sequence and in memory.

    The grid of programs is B H x segments, with segments changing fastest.

    Args:
        i: index of the chunk in the program's segment.
        chunks: number of chunks of a segment.
        segments: number of segments of a head.
        H: number of heads.
        T: sequence length.
        x_b: distance between two examples in inputs of width K.
        x_h: distance between two heads in inputs of width K.
        x_t: distance between two positions in inputs of width K.
        a_b: distance between two examples in inputs of width L.
        a_h: distance between two heads in inputs of width L.
        a_t: distance between two positions in inputs of width L.
        padding: pointer to the mask of padded positions [B, T], or None without padding.
        K: head width.
        BLOCK_T: number of positions of a chunk.
        BLOCK_K: K rounded up to a power of two.

    Returns:
        row: index of the chunk's first row among the rows of all heads.
        b: index of the example.
        start: first position of the chunk.
        x_place: offset of the chunk in inputs of width K.
        a_place: offset of the chunk in inputs of width L.
        exists: mask [BLOCK_T], True at positions before T.
        real: mask [BLOCK_T], True at positions before T that are not padding.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements in inputs of width K, relative to x_place.
        inside: mask [BLOCK_T, BLOCK_K], True at elements that exist.
    """
    bh = (tl.program_id(0) // segments).to(tl.int64)
    b, h = bh // H, bh % H
    start = (tl.program_id(0) % segments * chunks + i) * BLOCK_T
    exists = start + tl.arange(0, BLOCK_T) < T
    real = exists
    if padding is not None:
        real = exists & (tl.load(padding + b * T + start + tl.arange(0, BLOCK_T), mask=exists, other=1) == 0)
    inside = exists[:, None] & (tl.arange(0, BLOCK_K) < K)[None, :]
    long = start.to(tl.int64)
    x_place, a_place = b * x_b + h * x_h + long * x_t, b * a_b + h * a_h + long * a_t
    row = bh * segments * chunks * BLOCK_T + start
    return row, b, start, x_place, a_place, exists, real, block_offsets(x_t, 0, BLOCK_T, BLOCK_K), inside


@triton.jit
def load_times(row, start, reciprocal, ages, BLOCK_T):
    """Load the divisors and the ages of a chunk's positions.

    The divisor of position t is 1/t of Luna, equation 7. The age of a position is its negative cumulative log
    decay.

    Args:
        row: index of the chunk's first row among the rows of all heads.
        start: first position of the chunk.
        reciprocal: pointer to 1/t, or None without padding and decay.
        ages: pointer to the ages since the beginning of the chunk, or None without decay.
        BLOCK_T: number of positions of a chunk.

    Returns:
        The reciprocals 1/t [BLOCK_T], the ages [BLOCK_T], and the age at the end of the chunk.
    """
    at = row + tl.arange(0, BLOCK_T)
    inverse = 1.0 / (start + 1 + tl.arange(0, BLOCK_T)).to(tl.float32)
    age, end = tl.zeros((BLOCK_T,), dtype=tl.float32), 0.0
    if reciprocal is not None:
        inverse = tl.load(reciprocal + at)
    if ages is not None:
        age, end = tl.load(ages + at), tl.load(ages + row + BLOCK_T - 1)
    return inverse, age, end


@triton.jit
def apply_decay(x, age, J):
    """Multiply the products of positions t and j by the decay from j to t, and mask j after t.

    Args:
        x: products [BLOCK_T, BLOCK_T].
        age: ages [BLOCK_T] of the positions.
        J: 0 if rows are t and columns are j, and 1 if rows are j and columns are t.
    """
    i = tl.arange(0, x.shape[0])
    x *= tl.exp(tl.minimum(tl.expand_dims(age, J) - tl.expand_dims(age, 1 - J), 0.0))
    return tl.where(tl.expand_dims(i, J) <= tl.expand_dims(i, 1 - J), x, 0.0)


@triton.jit
def initial_states(sums, memory, spans, segments, STEP, SIDES, STATES, WIDTH, BLOCK_K):
    """Compute the two states at the start of a segment, by adding up the sums of other segments.

    Args:
        sums: pointer to the sums of all segments [B H, segments, SIDES, BLOCK_K, WIDTH].
        memory: pointer to memory for the states of all programs.
        spans: pointer to the age that passes in each segment [B H, segments], or None without decay.
        segments: number of segments.
        STEP: -1 for the sums of the segments before this one, 1 for those after it.
        SIDES: number of sums of each segment, 1 if the values are the keys.
        STATES: True if the sequence has more than one chunk.
        WIDTH: number of columns of a state.
        BLOCK_K: number of rows of a state.

    Returns:
        Both states [BLOCK_K, BLOCK_L], and a pointer to the program's part of ``memory``. If WIDTH is larger
        than BLOCK_L, the states are stored there instead.
    """
    own = tl.program_id(0).to(tl.int64)
    before = tl.program_id(0) % segments
    count = before if STEP < 0 else segments - 1 - before
    memory += own * (2 * BLOCK_K * WIDTH)
    state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    other = state
    for side in range(2 if STATES else 0):
        for first in range(0, WIDTH, BLOCK_L):
            state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
            at = side * ((SIDES - 1) * BLOCK_K * WIDTH) + block_offsets(WIDTH, first, BLOCK_K, BLOCK_L)
            for i in range(count):
                one = own + STEP * (count - i)
                if spans is not None:
                    state *= tl.exp(-tl.load(spans + one))
                state += tl.load(sums + one * (SIDES * BLOCK_K * WIDTH) + at)
            if WIDTH > BLOCK_L:
                tl.store(memory + at, state)
        state, other = other, state
    return state, other, memory


@triton.jit
def read_state(state, memory, first, STATES, WIDTH):
    """Return a block of columns of a state, from registers or from memory.

    Args:
        state: block [BLOCK_K, BLOCK_L] in registers, returned if the state has a single block.
        memory: pointer to the state in memory.
        first: first column of the block.
        STATES: True if the sequence has more than one chunk.
        WIDTH: number of columns of the state.
    """
    if STATES and WIDTH > state.shape[1]:
        state = tl.load(memory + block_offsets(WIDTH, first, state.shape[0], state.shape[1]))
    return state


@triton.jit
def advance_states(
    state, other, memory, x, other_x, at, inside, y, other_y, stride, exists, factor, other_factor, end, L,
    SIDES, WIDTH, PRECISION,
):  # fmt: skip
    """Update both states after a chunk: decay each state, and add x^T y of the chunk.

    Args:
        state: first state [BLOCK_K, BLOCK_L].
        other: second state [BLOCK_K, BLOCK_L].
        memory: pointer to both states in memory, used if WIDTH is larger than BLOCK_L.
        x: pointer to the left factor of the first state.
        other_x: pointer to the left factor of the second state.
        at: offsets [BLOCK_T, BLOCK_K] of the elements of x.
        inside: mask [BLOCK_T, BLOCK_K], False at elements of x that do not exist.
        y: pointer to the right factor of the first state.
        other_y: pointer to the right factor of the second state.
        stride: distance between two rows of y in memory.
        exists: mask [BLOCK_T], False at rows of y that become zeros.
        factor: factors [BLOCK_T] of the rows of y.
        other_factor: factors [BLOCK_T] of the rows of other_y.
        end: age that passes in the chunk, by which the states decay.
        L: number of columns of y.
        SIDES: number of distinct states, 1 if the values are the keys.
        WIDTH: number of columns of a state.
        PRECISION: precision of products in float32.

    Returns:
        Both updated states.
    """
    for side in range(SIDES):
        own, one = memory + side * (state.shape[0] * WIDTH), tl.where(side == 0, x, other_x)
        for first in range(0, WIDTH, state.shape[1]):
            rows = load_rows(tl.where(side == 0, y, other_y), stride, exists, first, L, state.shape[1])
            rows *= tl.where(side == 0, factor, other_factor)[:, None]
            state = read_state(state, own, first, True, WIDTH) * tl.exp(-end)
            state += product(tl.trans(read(one, at, inside, AGAIN)), rows, PRECISION)
            if WIDTH > state.shape[1]:
                tl.store(own + block_offsets(WIDTH, first, state.shape[0], state.shape[1]), state)
        state, other = other, state
    return other if SIDES == 1 else state, other


@triton.jit
def causal_scores(x, y, at, inside, age, J, PRECISION):
    """Compute the products of all pairs of positions of a chunk, with decay and causal mask.

    Args:
        x: pointer to the chunk of the left factor.
        y: pointer to the chunk of the right factor.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements.
        inside: mask [BLOCK_T, BLOCK_K], False at elements that do not exist.
        age: ages [BLOCK_T] of the positions.
        J: dimension of the earlier position, see :func:`apply_decay`.
        PRECISION: precision of products in float32.

    Returns:
        The products [BLOCK_T, BLOCK_T].
    """
    scores = product(read(x, at, inside, FIRST), tl.trans(read(y, at, inside, FIRST)), PRECISION)
    return apply_decay(scores, age, J)


@triton.jit
def causal_sums(x, at, inside, scores, x_a, age, state, STATES, PRECISION):
    """Compute sum_{j<=t} (x_t . y_j) a_j over the positions j of this chunk and of all chunks in the state.

    Args:
        x: pointer to the chunk of x.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements.
        inside: mask [BLOCK_T, BLOCK_K], False at elements that do not exist.
        scores: products x_t . y_j within the chunk [BLOCK_T, BLOCK_T].
        x_a: rows a_j [BLOCK_T, BLOCK_L] of the chunk.
        age: ages [BLOCK_T] of the positions.
        state: sum [BLOCK_K, BLOCK_L] of y_j^T a_j over earlier chunks.
        STATES: True if the sequence has more than one chunk.
        PRECISION: precision of products in float32.

    Returns:
        The sums [BLOCK_T, BLOCK_L].
    """
    sums = product(scores, x_a, PRECISION)
    if STATES:
        sums += product(read(x, at, inside, AGAIN), state, PRECISION) * tl.exp(-age)[:, None]
    return sums


@triton.jit
def load_included(packed_padding, b, first, L, BLOCK_L):
    """Return a mask [1, BLOCK_L], True at rows of P that exist and are not masked.

    Args:
        packed_padding: pointer to the mask of rows of P [B, L], or None without padding.
        b: index of the example.
        first: first row of P of the block.
        L: number of rows of P.
        BLOCK_L: number of rows of P in the block.
    """
    column = first + tl.arange(0, BLOCK_L)[None, :]
    included = column < L
    if packed_padding is not None:
        included = included & (tl.load(packed_padding + b * L + column, mask=included, other=1) == 0)
    return included


@triton.jit
def dropout_factor(seed, dropout, boost, position, first, WIDTH, BLOCK_T, BLOCK_L):
    """Draw the factors of dropout for a block of unpack weights.

    The factors depend on the seed and on the place of a weight only. The backward pass therefore draws the
    same factors as the forward pass, whatever its block sizes.

    Args:
        seed: pointer to one int64, or None without dropout.
        dropout: dropout probability.
        boost: 1 / (1 - dropout).
        position: index of the block's first row among all rows of the batch, int64.
        first: first column of the block.
        WIDTH: number of columns of all blocks together.
        BLOCK_T: number of rows of the block.
        BLOCK_L: number of columns of the block.

    Returns:
        The factors [BLOCK_T, BLOCK_L], which are 0 or ``boost``, or 1 without dropout.
    """
    factor = tl.full((BLOCK_T, BLOCK_L), 1.0, dtype=tl.float32)
    if seed is not None:
        at = position * WIDTH + block_offsets(WIDTH, first, BLOCK_T, BLOCK_L)
        factor = tl.where(tl.rand(tl.load(seed), at, n_rounds=PHILOX_ROUNDS) >= dropout, boost, 0.0)
    return factor


@triton.jit(do_not_specialize=LENGTHS)
def segment_sums_kernel(
    k, v, a, sums, reciprocal, ages, padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the sums sum k_j^T a_j and sum v_j^T a_j of each segment, decayed to the end of the segment.

    The grid is B H x segments, times the blocks of COLUMNS columns of both sums.

    Kernel arguments:
        k, v, a: pointers to keys, values and pack weights.
        sums: pointer to the result [B H, segments, SIDES, BLOCK_K, WIDTH].
        reciprocal, ages: pointers to the reciprocals 1/t and to the ages, or None; see :func:`load_times`.
        padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K, BLOCK_T, BLOCK_K: arguments of
            :func:`locate_chunk`.
        L: number of rows of P.
        SIDES: number of sums of each segment, 1 if the values are the keys.
        COLUMNS: number of columns that one program computes.
        WIDTH: number of columns of a state, L rounded up.
        PRECISION: precision of products in float32.
    """
    side, first = tl.program_id(1) % SIDES, tl.program_id(1) // SIDES * COLUMNS
    state = tl.zeros((BLOCK_K, COLUMNS), dtype=tl.float32)
    for i in range(chunks):
        row, b, start, x_place, a_place, exists, real, at, inside = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        x_a = load_rows(a + a_place, a_t, real, first, L, COLUMNS) * tl.exp(age - end)[:, None]
        x = read(tl.where(side == 0, k, v) + x_place, at, inside, AGAIN)
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
    """Compute the output, and the log-sum-exp of the softmax.

    The output is (tril(U' A^T) v + U' S_v) / t. The unpack weights are U = softmax((tril(q k^T) A + q S_k)
    scale / t), U' is U after dropout, and S_k and S_v are the states.

    Kernel arguments:
        q, k, v, a: pointers to queries, keys, values and pack weights.
        out: pointer to the output [B, H, T, K].
        lse: pointer to the log-sum-exp [B H, rows] of the softmax.
        sums, scratch, spans, STATES: arguments of :func:`initial_states`; ``scratch`` is its ``memory``.
        reciprocal, ages: pointers to the reciprocals 1/t and to the ages, or None; see :func:`load_times`.
        padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K, BLOCK_T, BLOCK_K: arguments of
            :func:`locate_chunk`.
        packed_padding: pointer to the mask [B, L] of masked rows of P, or None.
        seed: pointer to the seed of dropout, or None without dropout.
        dropout: dropout probability of the unpack weights.
        boost: factor 1 / (1 - dropout) of the weights that dropout keeps.
        L: number of rows of P.
        SIDES: 1 if the values are the keys, otherwise 2.
        WIDTH: number of columns of a state, L rounded up.
        PRECISION: precision of products in float32.
    """
    state, other, scratch = initial_states(sums, scratch, spans, segments, -1, SIDES, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_place, a_place, exists, real, at, inside = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        scores = causal_scores(q + x_place, k + x_place, at, inside, age, 0, PRECISION)
        top, total = tl.full((BLOCK_T,), MASKED_LOGIT, tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . U'_t
        y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(a + a_place, a_t, real, first, L, BLOCK_L)
            now = read_state(state, scratch, first, STATES, WIDTH)
            logits = causal_sums(q + x_place, at, inside, scores, x_a, age, now, STATES, PRECISION)
            included = load_included(packed_padding, b, first, L, BLOCK_L)
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
        y += product(tl.trans(read(v + x_place, at, inside, LAST)), apply_decay(mixed, age, 1), PRECISION)
        tl.store(out + x_place + at, tl.trans(y * (inverse / total)[None, :]), mask=inside)
        tl.store(lse + row + tl.arange(0, BLOCK_T), top + tl.log(total))
        if STATES:
            left = tl.exp(age - end)
            state, other = advance_states(
                state, other, scratch, k + x_place, v + x_place, at, inside, a + a_place, a + a_place, a_t,
                real, left, left, end, L, SIDES, WIDTH, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
