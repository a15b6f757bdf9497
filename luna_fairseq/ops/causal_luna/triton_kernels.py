"""Triton kernels of causal Luna attention: shared helpers, the sums of segments, and the forward pass.

A sequence of T positions is split into chunks of BLOCK_T positions, and into segments of one or more chunks.
Each program processes one segment of one head, chunk by chunk. K is the head width, L the number of rows of
the packed sequence P, and a_j the pack weights of position j, one per row of P.

Within a chunk, ``x_t sum_j y_j^T z_j`` is computed as the masked matrix product ``sum_j (x_t . y_j) z_j``.
Earlier chunks are accumulated in two states [K, L], ``sum k_j^T a_j`` and ``sum v_j^T a_j``. If keys and
values are the same tensor (SIDES = 1), there is one state. A program first adds up the sums of all preceding
segments. If the sequence has only one chunk, there are no states (STATES is False).

The rows of P are processed in blocks of BLOCK_L rows with a running softmax. With a single block, the states
stay in registers from chunk to chunk. Otherwise they are stored in ``scratch``, memory of the program.

With decay, every position has an age, its negative cumulative log decay. A term of position j has the weight
exp(age_j - age_t) at position t. A state holds the sums as seen from the end of the last chunk. Factors that
multiply a state, and terms that are added to a state, are scaled by their ages relative to that point.
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
# Cache policies for the first load of an input, subsequent loads, and the last load. With a single policy,
# the compiler would merge the loads into one and keep the result in registers.
FIRST, AGAIN, LAST = tl.constexpr("evict_last"), tl.constexpr(""), tl.constexpr("evict_first")


@triton.jit
def round_operand(x, PRECISION):
    """Convert a factor of a product to float32, and round it to tf32 if the product uses tf32.

    Tensor cores truncate float32 to tf32. Adding half a unit in the last place of tf32 turns truncation into
    rounding to nearest. Half-precision numbers are exact in tf32.

    Args:
        x: factor of any floating-point dtype.
        PRECISION: precision of the product, "tf32" or "tf32x3".

    Returns:
        The factor in float32.
    """
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


# True if Triton's interpreter runs the kernels. It would multiply bfloat16 numbers as if they were integers.
INTERPRETED = tl.constexpr(not isinstance(round_operand, triton.JITFunction))


@triton.jit
def product(x, y, PRECISION):
    """Compute x @ y in float32, or in half precision if both factors have the same half-precision dtype.

    Args:
        x: left factor [M, N].
        y: right factor [N, O].
        PRECISION: input precision of float32 matrix products, "tf32" or "tf32x3".

    Returns:
        The product [M, O] in float32.
    """
    # Triton 3.0 does not support three conditions in a row, hence the parentheses.
    if (INTERPRETED or x.dtype != y.dtype) or x.dtype == tl.float32:
        x, y = round_operand(x, PRECISION), round_operand(y, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def block_offsets(stride, first, HEIGHT, BLOCK):
    """Return the memory offsets of the elements of a block of a matrix.

    Args:
        stride: distance between two rows of the matrix in memory.
        first: first column of the block.
        HEIGHT: number of rows of the block.
        BLOCK: number of columns of the block.

    Returns:
        Offsets [HEIGHT, BLOCK] from the first row of the block.
    """
    return tl.arange(0, HEIGHT)[:, None] * stride + first + tl.arange(0, BLOCK)[None, :]


@triton.jit
def load_rows(x, stride, exists, first, L, BLOCK_L):
    """Load a block of a matrix, and convert the block to float32.

    Masked rows and out-of-bounds columns are loaded as zeros.

    Args:
        x: pointer to the first row of the block.
        stride: distance between two rows in memory.
        exists: mask [BLOCK_T], False at rows that are loaded as zeros, such as padding.
        first: first column of the block.
        L: number of columns of the matrix.
        BLOCK_L: number of columns of the block.

    Returns:
        The block [BLOCK_T, BLOCK_L].
    """
    inside = exists[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
    at = block_offsets(stride, first, exists.shape[0], BLOCK_L)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_chunk(x, at, inside, POLICY):
    """Load a chunk of the queries, keys, values or output gradients with a cache policy.

    Args:
        x: pointer to the chunk.
        at: offsets [BLOCK_T, BLOCK_K] of the elements: BLOCK_T positions, and the head width rounded up.
        inside: mask [BLOCK_T, BLOCK_K], False at elements that are loaded as zeros.
        POLICY: cache policy for the first load (FIRST), a subsequent load (AGAIN) or the last load (LAST).

    Returns:
        The chunk [BLOCK_T, BLOCK_K].
    """
    return tl.load(x + at, mask=inside, other=0.0, eviction_policy=POLICY)


@triton.jit
def locate_chunk(i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K):
    """Compute the position of a chunk in the sequence and in memory.

    Each program processes one segment (a run of chunks) of one of the B H heads in the batch. The index of
    the segment changes fastest.

    Args:
        i: index of the chunk in the program's segment.
        chunks: number of chunks of a segment.
        segments: number of segments of a head.
        H: number of heads.
        T: sequence length.
        x_b: distance in memory between two examples of the queries, keys and values.
        x_h: distance in memory between two heads of the queries, keys and values.
        x_t: distance in memory between two positions of the queries, keys and values.
        a_b: distance in memory between two examples of the pack weights.
        a_h: distance in memory between two heads of the pack weights.
        a_t: distance in memory between two positions of the pack weights.
        padding: pointer to the padding mask [B, T], nonzero at padding (None if there is no padding).
        K: head width.
        BLOCK_T: number of positions of a chunk.
        BLOCK_K: K rounded up to a power of two.

    Returns:
        row: index of the chunk's first position in the flattened positions of all heads.
        b: index of the example.
        start: first position of the chunk.
        x_offset: offset of the chunk in the queries, keys and values.
        a_offset: offset of the chunk in the pack weights.
        exists: mask [BLOCK_T], True at positions before T.
        real: mask [BLOCK_T], True at non-padding positions before T.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements in the queries, relative to ``x_offset``.
        inside: mask [BLOCK_T, BLOCK_K], True at elements before position T and column K.
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
    x_offset, a_offset = b * x_b + h * x_h + long * x_t, b * a_b + h * a_h + long * a_t
    row = bh * segments * chunks * BLOCK_T + start
    return row, b, start, x_offset, a_offset, exists, real, block_offsets(x_t, 0, BLOCK_T, BLOCK_K), inside


@triton.jit
def load_times(row, start, reciprocal, ages, BLOCK_T):
    """Load the factors 1/t and the ages of a chunk's positions.

    The factor 1/t comes from equation 7 of the Luna paper. The age of a position is its negative cumulative
    log decay, counted from the beginning of the chunk.

    Args:
        row: index of the chunk's first position in the flattened positions of all heads.
        start: first position of the chunk in its sequence.
        reciprocal: pointer to the factors 1/t. If there is neither padding nor decay, this is None and the
            factors are computed.
        ages: pointer to the ages (None if there is no decay).
        BLOCK_T: number of positions of a chunk.

    Returns:
        The factors 1/t [BLOCK_T], the ages [BLOCK_T], and the age at the end of the chunk.
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
        x: products [BLOCK_T, BLOCK_T] of all pairs of positions in a chunk.
        age: ages [BLOCK_T] of the positions (negative cumulative log decay).
        J: 0 if rows of ``x`` are t and columns are j; 1 if rows are j and columns are t.

    Returns:
        The masked products [BLOCK_T, BLOCK_T].
    """
    i = tl.arange(0, x.shape[0])
    x *= tl.exp(tl.minimum(tl.expand_dims(age, J) - tl.expand_dims(age, 1 - J), 0.0))
    return tl.where(tl.expand_dims(i, J) <= tl.expand_dims(i, 1 - J), x, 0.0)


@triton.jit
def initial_states(sums, memory, spans, segments, STEP, SIDES, STATES, WIDTH, BLOCK_K):
    """Compute the two states at the start of a segment, as decayed sums over other segments.

    A segment is a run of chunks that one program processes. The first state is the sum of the outer products
    of keys and pack weights, the second that of values and pack weights.

    Args:
        sums: pointer to the sums [B H, segments, SIDES, BLOCK_K, WIDTH] over each segment.
        memory: pointer to memory for the states of all programs.
        spans: pointer to the increase in age [B H, segments] across each segment (None if there is no decay).
        segments: number of segments of a head.
        STEP: -1 to sum the segments before this one; 1 to sum those after it.
        SIDES: number of sums of each segment: 1 if keys and values are the same tensor, otherwise 2.
        STATES: True if the sequence spans several chunks. Otherwise the states are zero.
        WIDTH: number of columns of a state.
        BLOCK_K: number of rows of a state.

    Returns:
        Both states [BLOCK_K, BLOCK_L], and a pointer to the program's part of ``memory``. If WIDTH is larger
        than BLOCK_L, the states are stored in this memory instead.
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

    A state is a sum of outer products with BLOCK_K rows and WIDTH columns. A state with a single block of
    BLOCK_L columns stays in registers. A wider state is stored in memory.

    Args:
        state: block [BLOCK_K, BLOCK_L] in registers, returned if the state has a single block.
        memory: pointer to the state in memory.
        first: first column of the block.
        STATES: True if the sequence spans several chunks.
        WIDTH: number of columns of the state.

    Returns:
        The block [BLOCK_K, BLOCK_L].
    """
    if STATES and WIDTH > state.shape[1]:
        state = tl.load(memory + block_offsets(WIDTH, first, state.shape[0], state.shape[1]))
    return state


@triton.jit
def advance_states(
    state, other, memory, x, other_x, at, inside, y, other_y, stride, exists, factor, other_factor, end, L,
    SIDES, WIDTH, PRECISION,
):  # fmt: skip
    """Update the two states after a chunk: decay each state, and add the sum x^T y over the chunk.

    A chunk has BLOCK_T positions. x is BLOCK_K wide (the head width rounded up), and y is L wide. y and the
    states are processed in blocks of BLOCK_L columns.

    Args:
        state: first state [BLOCK_K, BLOCK_L].
        other: second state [BLOCK_K, BLOCK_L].
        memory: pointer to both states in memory, used if WIDTH is larger than BLOCK_L.
        x: pointer to the chunk of the left factor x of the first state.
        other_x: pointer to the chunk of the left factor of the second state.
        at: offsets [BLOCK_T, BLOCK_K] of the elements of both left factors.
        inside: mask [BLOCK_T, BLOCK_K], False at out-of-bounds elements of the left factors.
        y: pointer to the chunk of the right factor y of the first state.
        other_y: pointer to the chunk of the right factor of the second state.
        stride: distance in memory between two rows of the right factors.
        exists: mask [BLOCK_T], False at rows of the right factors that are loaded as zeros.
        factor: factors [BLOCK_T] by which the rows of ``y`` are multiplied.
        other_factor: factors [BLOCK_T] by which the rows of ``other_y`` are multiplied.
        end: increase in age across the chunk. Each state decays by exp(-end).
        L: number of columns of the right factors.
        SIDES: number of states that are updated: 1 if keys and values are the same tensor, otherwise 2.
        WIDTH: number of columns of a state, L rounded up.
        PRECISION: input precision of float32 matrix products.

    Returns:
        Both updated states.
    """
    for side in range(SIDES):
        own, one = memory + side * (state.shape[0] * WIDTH), tl.where(side == 0, x, other_x)
        for first in range(0, WIDTH, state.shape[1]):
            rows = load_rows(tl.where(side == 0, y, other_y), stride, exists, first, L, state.shape[1])
            rows *= tl.where(side == 0, factor, other_factor)[:, None]
            state = read_state(state, own, first, True, WIDTH) * tl.exp(-end)
            state += product(tl.trans(load_chunk(one, at, inside, AGAIN)), rows, PRECISION)
            if WIDTH > state.shape[1]:
                tl.store(own + block_offsets(WIDTH, first, state.shape[0], state.shape[1]), state)
        state, other = other, state
    return other if SIDES == 1 else state, other


@triton.jit
def causal_scores(x, y, at, inside, age, J, PRECISION):
    """Compute the dot products of all pairs of positions of a chunk, with decay and causal mask.

    A chunk has BLOCK_T positions, and BLOCK_K is the head width rounded up.

    Args:
        x: pointer to the chunk of the left factor, such as the queries.
        y: pointer to the chunk of the right factor, such as the keys.
        at: offsets [BLOCK_T, BLOCK_K] of the chunk's elements.
        inside: mask [BLOCK_T, BLOCK_K], False at out-of-bounds elements.
        age: ages [BLOCK_T] of the positions (negative cumulative log decay).
        J: 0 if ``y`` is the earlier position of a pair, 1 if ``x`` is; see :func:`apply_decay`.
        PRECISION: input precision of float32 matrix products.

    Returns:
        The products [BLOCK_T, BLOCK_T], where rows are positions of ``x`` and columns positions of ``y``.
    """
    scores = product(load_chunk(x, at, inside, FIRST), tl.trans(load_chunk(y, at, inside, FIRST)), PRECISION)
    return apply_decay(scores, age, J)


@triton.jit
def causal_sums(x, at, inside, scores, x_a, age, state, STATES, PRECISION):
    """Compute sum_{j<=t} (x_t . y_j) a_j over the positions j of this chunk and of the chunks in the state.

    A chunk has BLOCK_T positions. BLOCK_K is the head width rounded up, and a_j has BLOCK_L columns.

    Args:
        x: pointer to the vectors x_t of the chunk.
        at: offsets [BLOCK_T, BLOCK_K] of the elements of x.
        inside: mask [BLOCK_T, BLOCK_K], False at out-of-bounds elements of x.
        scores: products x_t . y_j [BLOCK_T, BLOCK_T] within the chunk, from :func:`causal_scores`.
        x_a: rows a_j [BLOCK_T, BLOCK_L] of the chunk.
        age: ages [BLOCK_T] of the positions (negative cumulative log decay).
        state: sum [BLOCK_K, BLOCK_L] of y_j^T a_j over earlier chunks.
        STATES: True if the sequence spans several chunks. Otherwise ``state`` is not used.
        PRECISION: input precision of float32 matrix products.

    Returns:
        The sums [BLOCK_T, BLOCK_L].
    """
    sums = product(scores, x_a, PRECISION)
    if STATES:
        sums += product(load_chunk(x, at, inside, AGAIN), state, PRECISION) * tl.exp(-age)[:, None]
    return sums


@triton.jit
def load_row_mask(packed_padding, b, first, L, BLOCK_L):
    """Return a mask for a block of rows of the packed sequence P, True at in-bounds rows that are not masked.

    Args:
        packed_padding: pointer to the mask [B, L] of rows of P, nonzero at masked rows, or None.
        b: index of the example.
        first: first row of P of the block.
        L: number of rows of P.
        BLOCK_L: number of rows of P in the block.

    Returns:
        The mask [1, BLOCK_L].
    """
    column = first + tl.arange(0, BLOCK_L)[None, :]
    included = column < L
    if packed_padding is not None:
        included = included & (tl.load(packed_padding + b * L + column, mask=included, other=1) == 0)
    return included


@triton.jit
def dropout_factor(seed, dropout, boost, position, first, WIDTH, BLOCK_T, BLOCK_L):
    """Draw the dropout factors of a block of unpack weights.

    A factor depends only on the seed and on the position of its weight. The backward pass therefore draws the
    same factors as the forward pass, even with other block sizes.

    Args:
        seed: pointer to one int64 (None if there is no dropout).
        dropout: dropout probability.
        boost: factor 1 / (1 - dropout) of the kept weights.
        position: index of the block's first row in the flattened positions of all heads, int64.
        first: first column of the block.
        WIDTH: number of columns of all blocks together.
        BLOCK_T: number of rows of the block.
        BLOCK_L: number of columns of the block.

    Returns:
        The factors [BLOCK_T, BLOCK_L], each 0 or ``boost``; 1 without dropout.
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
    """Compute the sums of k_j^T a_j and of v_j^T a_j over each segment, decayed to the end of the segment.

    k_j, v_j and a_j are the key, the value and the pack weights of position j. A segment is a run of chunks
    that one program processes. The grid is B H x segments, times the blocks of COLUMNS columns of both sums.

    Kernel arguments:
        k, v, a: pointers to keys, values and pack weights.
        sums: pointer to the result [B H, segments, SIDES, BLOCK_K, WIDTH].
        reciprocal, ages: pointers to the factors 1/t and to the ages, or None; see :func:`load_times`.
        padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K, BLOCK_T, BLOCK_K: arguments of
            :func:`locate_chunk`.
        L: number of rows of the packed sequence P.
        SIDES: number of sums of each segment: 1 if keys and values are the same tensor, otherwise 2.
        COLUMNS: number of columns that one program computes.
        WIDTH: number of columns of a state, L rounded up.
        PRECISION: input precision of float32 matrix products.
    """
    side, first = tl.program_id(1) % SIDES, tl.program_id(1) // SIDES * COLUMNS
    state = tl.zeros((BLOCK_K, COLUMNS), dtype=tl.float32)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, at, inside = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        x_a = load_rows(a + a_offset, a_t, real, first, L, COLUMNS) * tl.exp(age - end)[:, None]
        x = load_chunk(tl.where(side == 0, k, v) + x_offset, at, inside, AGAIN)
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

    With pack weights A, the unpack weights are U = softmax((tril(q k^T) A + q S_k) scale / t). The output is
    (tril(U' A^T) v + U' S_v) / t, where U' is U after dropout. The states S_k and S_v are the sums of k_j^T
    a_j and of v_j^T a_j over earlier chunks.

    Kernel arguments:
        q, k, v, a: pointers to queries, keys, values and pack weights.
        out: pointer to the output [B, H, T, K] (written).
        lse: pointer to the log-sum-exp [B H, rows] of the softmax (written). ``rows`` is T rounded up to a
            multiple of BLOCK_T.
        sums, scratch, spans, STATES: arguments of :func:`initial_states`; ``scratch`` is its ``memory``.
        reciprocal, ages: pointers to the factors 1/t and to the ages, or None; see :func:`load_times`.
        padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K, BLOCK_T, BLOCK_K: arguments of
            :func:`locate_chunk`.
        packed_padding: pointer to the mask [B, L], nonzero at masked rows of the packed sequence P, or None.
        seed: pointer to the seed of dropout (None if there is no dropout).
        dropout: dropout probability of the unpack weights.
        boost: factor 1 / (1 - dropout) of the kept weights.
        L: number of rows of P.
        SIDES: 1 if keys and values are the same tensor, otherwise 2.
        WIDTH: number of columns of a state, L rounded up.
        PRECISION: input precision of float32 matrix products.
    """
    state, other, scratch = initial_states(sums, scratch, spans, segments, -1, SIDES, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, at, inside = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        scores = causal_scores(q + x_offset, k + x_offset, at, inside, age, 0, PRECISION)
        top, total = tl.full((BLOCK_T,), MASKED_LOGIT, tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . U'_t
        y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(a + a_offset, a_t, real, first, L, BLOCK_L)
            now = read_state(state, scratch, first, STATES, WIDTH)
            logits = causal_sums(q + x_offset, at, inside, scores, x_a, age, now, STATES, PRECISION)
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
            tl.trans(load_chunk(v + x_offset, at, inside, LAST)), apply_decay(mixed, age, 1), PRECISION
        )
        tl.store(out + x_offset + at, tl.trans(y * (inverse / total)[None, :]), mask=inside)
        tl.store(lse + row + tl.arange(0, BLOCK_T), top + tl.log(total))
        if STATES:
            left = tl.exp(age - end)
            state, other = advance_states(
                state, other, scratch, k + x_offset, v + x_offset, at, inside, a + a_offset,
                a + a_offset, a_t, real, left, left, end, L, SIDES, WIDTH, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
