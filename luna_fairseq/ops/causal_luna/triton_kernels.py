"""Triton kernels of causal Luna attention: what forward and backward share, the sums of segments, the forward
pass.

A sequence of T positions is cut into chunks of BLOCK_T positions and into segments of one or more chunks. A
program owns one segment of one head. Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a
masked matrix product; what came before the chunk enters through two states [K, L], ``sum k_j^T a_j`` and
``sum v_j^T a_j``, of which there is one where keys are values (SIDES = 1). A program begins by adding up the
sums of the segments before its own. STATES is off where there is one chunk only. The packed length is taken
BLOCK_L rows at a time, with a running softmax. Where that is all of it, states are carried in registers from
chunk to chunk; otherwise they lie in ``scratch``, memory that is the program's own.

With ``ages`` what is added at j counts exp(age_j - age_t) at t: a state is that of the end of what it is the
sum of, what reads it and what is added to it are scaled by their ages from there, as in the chunkwise form.
Without, all ages are a constant 0, and the compiler drops them.

What a user gives or gets has T positions, K and L columns. All other memory is whole blocks, and so needs no
mask: of states [BLOCK_K, WIDTH], of rows [BLOCK_T, WIDTH], WIDTH being L up to the next block's end.

What keeps registers few: inputs are read again for every product, from the cache; the two sides of an
attention, queries with keys and weights (or the output's gradient) with values, go through one loop; and
results [T, K] are computed transposed, for Triton gives all products of a kernel the warps of one of them,
side by side in rows only if no result is wider than high.

Products of half-precision inputs among themselves run in their type, all others in float32 operands at
PRECISION; every sum is float32. Names in capitals are constants of compilation.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.inputs import BLOCK_L as ROWS_AT_A_TIME

# A real logit never comes near it, and unlike -inf it leaves no NaN where every row of P is left out.
EXCLUDED = tl.constexpr(-1e30)
# Arguments that differ from batch to batch: a kernel compiled anew for each of their properties would cost
# seconds.
LENGTHS = ["T", "segments", "chunks"]
# Philox with 7 rounds passes the same batteries of tests as with 10.
PHILOX_ROUNDS = tl.constexpr(7)
BLOCK_L = tl.constexpr(ROWS_AT_A_TIME)
# Of a chunk's reads. By one policy the compiler would make one read of all, and hold what it gave.
FIRST, AGAIN, LAST = tl.constexpr("evict_last"), tl.constexpr(""), tl.constexpr("evict_first")


@triton.jit
def operand(x, PRECISION):
    """x in float32, half a unit of tf32's last place added: the tensor cores cut the rest off, always towards
    zero. Half precision is exact in tf32."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


# Whether Triton's interpreter runs the kernels: it multiplies bfloat16 numbers as if they were integers.
INTERPRETED = tl.constexpr(not isinstance(operand, triton.JITFunction))


@triton.jit
def product(x, y, PRECISION):
    """x @ y: of two inputs in their own half precision, otherwise with float32 operands."""
    if (INTERPRETED or x.dtype != y.dtype) or x.dtype == tl.float32:  # in pairs: Triton 3.0 takes no three
        x, y = operand(x, PRECISION), operand(y, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def places(stride, first, HEIGHT, BLOCK):
    """Where the numbers of a block [HEIGHT, BLOCK] lie, from the column ``first`` on."""
    return tl.arange(0, HEIGHT)[:, None] * stride + first + tl.arange(0, BLOCK)[None, :]


@triton.jit
def load_rows(x, stride, there, first, L, BLOCK_L):
    """Columns of rows [.., L] in float32, zeros where there is no column, or no row: padded positions of A,
    which is a factor of every sum over time."""
    inside = there[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
    at = places(stride, first, there.shape[0], BLOCK_L)
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def read(x, at, inside, POLICY):
    """A chunk of an input: FIRST, AGAIN or LAST."""
    return tl.load(x + at, mask=inside, other=0.0, eviction_policy=POLICY)


@triton.jit
def chunk_of(i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K):
    """Of a program's chunk ``i``: its first row among those of all heads; b, and its first position; where it
    begins in what is K and what is L wide; [BLOCK_T] whether its positions are there, whether they are real;
    [BLOCK_T, BLOCK_K] where the numbers of an input lie, which of them are there. Grid: B H x segments, the
    last fastest."""
    bh = (tl.program_id(0) // segments).to(tl.int64)
    b, h = bh // H, bh % H
    start = (tl.program_id(0) % segments * chunks + i) * BLOCK_T
    there = start + tl.arange(0, BLOCK_T) < T
    real = there
    if padding is not None:
        real = there & (tl.load(padding + b * T + start + tl.arange(0, BLOCK_T), mask=there, other=1) == 0)
    inside = there[:, None] & (tl.arange(0, BLOCK_K) < K)[None, :]
    long = start.to(tl.int64)
    x_place, a_place = b * x_b + h * x_h + long * x_t, b * a_b + h * a_h + long * a_t
    row = bh * segments * chunks * BLOCK_T + start
    return row, b, start, x_place, a_place, there, real, places(x_t, 0, BLOCK_T, BLOCK_K), inside


@triton.jit
def times_of(row, start, reciprocal, ages, BLOCK_T):
    """Of a chunk's positions [BLOCK_T]: 1/t of equation 7, ages since the chunk's beginning; and that of its
    end."""
    at = row + tl.arange(0, BLOCK_T)
    inverse = 1.0 / (start + 1 + tl.arange(0, BLOCK_T)).to(tl.float32)
    age, end = tl.zeros((BLOCK_T,), dtype=tl.float32), 0.0
    if reciprocal is not None:
        inverse = tl.load(reciprocal + at)
    if ages is not None:
        age, end = tl.load(ages + at), tl.load(ages + row + BLOCK_T - 1)
    return inverse, age, end


@triton.jit
def causal(x, age, J):
    """x where j <= t, as much as is left of j there, zero elsewhere. Its rows are t and its columns j where J
    is 0, the other way round where it is 1."""
    i = tl.arange(0, x.shape[0])
    x *= tl.exp(tl.minimum(tl.expand_dims(age, J) - tl.expand_dims(age, 1 - J), 0.0))
    return tl.where(tl.expand_dims(i, J) <= tl.expand_dims(i, 1 - J), x, 0.0)


@triton.jit
def first_states(sums, memory, spans, segments, STEP, SIDES, STATES, WIDTH, BLOCK_K):
    """The two states that a segment starts from, in registers, or all of them in the program's part of
    ``memory``, which comes third: sums of the segments before (STEP -1) or after it (1), which fade by
    ``spans`` [B H, segments]."""
    own = tl.program_id(0).to(tl.int64)
    before = tl.program_id(0) % segments
    count = before if STEP < 0 else segments - 1 - before
    memory += own * (2 * BLOCK_K * WIDTH)
    state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    other = state
    for side in range(2 if STATES else 0):
        for first in range(0, WIDTH, BLOCK_L):
            state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
            at = side * ((SIDES - 1) * BLOCK_K * WIDTH) + places(WIDTH, first, BLOCK_K, BLOCK_L)
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
    """Columns of a state from ``first`` on: itself where it is carried, otherwise from memory."""
    if STATES and WIDTH > state.shape[1]:
        state = tl.load(memory + places(WIDTH, first, state.shape[0], state.shape[1]))
    return state


@triton.jit
def grow(
    state, other, memory, x, other_x, at, inside, y, other_y, stride, there, factor, other_factor, end, L,
    SIDES, WIDTH, PRECISION,
):  # fmt: skip
    """Both states a chunk of the age ``end`` further on, x^T y of the chunk added, whose rows y count
    ``factor`` [BLOCK_T]."""
    for side in range(SIDES):
        own, one = memory + side * (state.shape[0] * WIDTH), tl.where(side == 0, x, other_x)
        for first in range(0, WIDTH, state.shape[1]):
            rows = load_rows(tl.where(side == 0, y, other_y), stride, there, first, L, state.shape[1])
            rows *= tl.where(side == 0, factor, other_factor)[:, None]
            state = read_state(state, own, first, True, WIDTH) * tl.exp(-end)
            state += product(tl.trans(read(one, at, inside, AGAIN)), rows, PRECISION)
            if WIDTH > state.shape[1]:
                tl.store(own + places(WIDTH, first, state.shape[0], state.shape[1]), state)
        state, other = other, state
    return other if SIDES == 1 else state, other


@triton.jit
def scores_of(x, y, at, inside, age, J, PRECISION):
    """Products of a chunk's positions, :func:`causal`."""
    found = product(read(x, at, inside, FIRST), tl.trans(read(y, at, inside, FIRST)), PRECISION)
    return causal(found, age, J)


@triton.jit
def attended(x, at, inside, scores, x_a, age, state, STATES, PRECISION):
    """sum_{j<=t} (x_t . y_j) a_j [BLOCK_T, BLOCK_L], with what the state holds of the chunks before."""
    found = product(scores, x_a, PRECISION)
    if STATES:
        found += product(read(x, at, inside, AGAIN), state, PRECISION) * tl.exp(-age)[:, None]
    return found


@triton.jit
def load_included(packed_padding, b, first, L, BLOCK_L):
    """[1, BLOCK_L], true at rows of P that exist and are not left out."""
    column = first + tl.arange(0, BLOCK_L)[None, :]
    included = column < L
    if packed_padding is not None:
        included = included & (tl.load(packed_padding + b * L + column, mask=included, other=1) == 0)
    return included


@triton.jit
def dropout_factor(seed, dropout, boost, position, first, WIDTH, BLOCK_T, BLOCK_L):
    """0 or ``boost``, which is 1 / (1 - dropout), for every unpack weight of a block; 1 without a seed. A
    function of seed and place alone, so that the backward pass draws again what the forward pass drew,
    whatever blocks it works in.

    ``seed``: pointer to one int64; ``position``: index of the block's first row among all rows of the batch,
    int64.
    """
    factor = tl.full((BLOCK_T, BLOCK_L), 1.0, dtype=tl.float32)
    if seed is not None:
        at = position * WIDTH + places(WIDTH, first, BLOCK_T, BLOCK_L)
        factor = tl.where(tl.rand(tl.load(seed), at, n_rounds=PHILOX_ROUNDS) >= dropout, boost, 0.0)
    return factor


@triton.jit(do_not_specialize=LENGTHS)
def segment_sums_kernel(
    k, v, a, sums, reciprocal, ages, padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums [B H, segments, SIDES, BLOCK_K, WIDTH]: sum k_j^T a_j and sum v_j^T a_j of each segment, at its
    end. Grid: B H x segments, blocks of COLUMNS of L x SIDES."""
    side, first = tl.program_id(1) % SIDES, tl.program_id(1) // SIDES * COLUMNS
    state = tl.zeros((BLOCK_K, COLUMNS), dtype=tl.float32)
    for i in range(chunks):
        row, b, start, x_place, a_place, there, real, at, inside = chunk_of(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = times_of(row, start, reciprocal, ages, BLOCK_T)
        x_a = load_rows(a + a_place, a_t, real, first, L, COLUMNS) * tl.exp(age - end)[:, None]
        x = read(tl.where(side == 0, k, v) + x_place, at, inside, AGAIN)
        state = state * tl.exp(-end) + product(tl.trans(x), x_a, PRECISION)
    place = (tl.program_id(0).to(tl.int64) * SIDES + side) * (BLOCK_K * WIDTH)
    tl.store(sums + place + places(WIDTH, first, BLOCK_K, COLUMNS), state)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q, k, v, a, out, lse, sums, scratch, reciprocal, ages, spans, padding, packed_padding, seed, dropout,
    boost, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K: tl.constexpr, L: tl.constexpr,
    SIDES: tl.constexpr, STATES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = (tril(U' A^T) v + U' S_v) / t with U = softmax((tril(q k^T) A + q S_k) scale / t), U' after
    dropout; and the logarithm of the softmax's denominator, ``lse`` [B H, rows]."""
    state, other, scratch = first_states(sums, scratch, spans, segments, -1, SIDES, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_place, a_place, there, real, at, inside = chunk_of(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = times_of(row, start, reciprocal, ages, BLOCK_T)
        scores = scores_of(q + x_place, k + x_place, at, inside, age, 0, PRECISION)
        top, total = tl.full((BLOCK_T,), EXCLUDED, tl.float32), tl.zeros((BLOCK_T,), tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . U'_t
        y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(a + a_place, a_t, real, first, L, BLOCK_L)
            now = read_state(state, scratch, first, STATES, WIDTH)
            logits = attended(q + x_place, at, inside, scores, x_a, age, now, STATES, PRECISION)
            included = load_included(packed_padding, b, first, L, BLOCK_L)
            logits = tl.where(included, logits * (inverse * K**-0.5)[:, None], EXCLUDED)
            new_top = tl.maximum(top, tl.max(logits, 1))
            shrink, top = tl.exp(top - new_top), new_top
            weights = tl.where(included, tl.exp(logits - top[:, None]), 0.0)
            total = total * shrink + tl.sum(weights, 1)
            weights *= dropout_factor(seed, dropout, boost, row, first, WIDTH, BLOCK_T, BLOCK_L)
            mixed = mixed * shrink[None, :] + product(x_a, tl.trans(weights), PRECISION)
            if STATES:
                s = read_state(other, scratch + (SIDES - 1) * BLOCK_K * WIDTH, first, STATES, WIDTH)
                y = y * shrink[None, :] + product(s, tl.trans(weights * tl.exp(-age)[:, None]), PRECISION)
        total = tl.where(total > 0.0, total, 1.0)  # zeros where no row of P is left
        y += product(tl.trans(read(v + x_place, at, inside, LAST)), causal(mixed, age, 1), PRECISION)
        tl.store(out + x_place + at, tl.trans(y * (inverse / total)[None, :]), mask=inside)
        tl.store(lse + row + tl.arange(0, BLOCK_T), top + tl.log(total))
        if STATES:
            left = tl.exp(age - end)
            state, other = grow(
                state, other, scratch, k + x_place, v + x_place, at, inside, a + a_place, a + a_place, a_t,
                real, left, left, end, L, SIDES, WIDTH, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
