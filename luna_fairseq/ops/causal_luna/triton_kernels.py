"""Triton kernels of causal Luna attention: what forward and backward share, the sums of segments, the forward
pass.

A sequence of T positions is cut into chunks of BLOCK_T positions and into segments of one or more chunks. A
program owns one segment of one head. Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a
masked matrix product; what came before the chunk enters through two states [K, L], ``sum k_j^T a_j`` and
``sum v_j^T a_j``, which are one where keys are values (TIED). A program begins by adding up the sums of the
segments before its own. The packed length is taken BLOCK_L rows at a time, with a running softmax. CARRY
keeps the states in registers from chunk to chunk, where BLOCK_L is all of L; otherwise they lie in memory
that is the program's own. STATES is off where there is one chunk only.

With FADES what is added at j counts exp(age_j - age_t) at t: a state is that of the end of what it is the sum
of, what reads it and what is added to it are scaled by their ages from there, as in the chunkwise form.

What keeps registers few: inputs are read again for every product, from the cache; the two sides of an
attention, queries with keys and weights (or the output's gradient) with values, go through one loop; and
results [T, K] are computed transposed, for Triton gives all products of a kernel the warps of one of them,
side by side in rows only if no result is wider than high.

Products of half-precision inputs among themselves run in their type, all others in float32 operands at
PRECISION; every sum is float32.
"""

import os

import triton
import triton.language as tl

# A real logit never comes near it, and unlike -inf it leaves no NaN where every row of P is left out.
EXCLUDED = tl.constexpr(-1e30)
# Arguments that differ from batch to batch: a kernel compiled anew for each of their properties would cost
# seconds.
LENGTHS = ["T", "segments", "chunks"]
# Philox with 7 rounds passes the same batteries of tests as with 10.
PHILOX_ROUNDS = tl.constexpr(7)
# The interpreter multiplies bfloat16 numbers as if their bits were integers.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def segment_of_head(segments, H, x_b, x_h, a_b, a_h):
    """Segment, B H and B of a program, and where its head begins in what is K and what is L wide; grid: B H x
    segments, the last fastest."""
    program = tl.program_id(0)
    bh = (program // segments).to(tl.int64)
    b, h = bh // H, bh % H
    return program % segments, bh, b, b * x_b + h * x_h, b * a_b + h * a_h


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """x @ y: of two inputs in their own half precision, otherwise with float32 operands."""
    if INTERPRETED or x.dtype != y.dtype or x.dtype == tl.float32:
        x, y = operand(x, PRECISION), operand(y, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def operand(x, PRECISION: tl.constexpr):
    """x in float32, half a unit of tf32's last place added: the tensor cores cut the rest off, always towards
    zero. Half precision is exact in tf32."""
    if PRECISION == "tf32" and x.dtype == tl.float32:
        x = (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def load_block(base, stride, rows, first, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """Columns ``first`` .. first + BLOCK of a matrix of ``rows`` rows and WIDTH columns [HEIGHT, BLOCK],
    zeros outside."""
    row = tl.arange(0, HEIGHT)[:, None]
    column = first + tl.arange(0, BLOCK)[None, :]
    return tl.load(base + row * stride + column, mask=(row < rows) & (column < WIDTH), other=0.0)


@triton.jit
def store_block(base, stride, rows, first, x, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """The reverse of ``load_block``, in the type of the memory."""
    row = tl.arange(0, HEIGHT)[:, None]
    column = first + tl.arange(0, BLOCK)[None, :]
    tl.store(base + row * stride + column, x.to(base.dtype.element_ty), mask=(row < rows) & (column < WIDTH))


@triton.jit
def input_block(stride, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr):
    """Where the numbers of a chunk of an input [BLOCK_T, BLOCK_K] lie, and which columns there are."""
    column = tl.arange(0, BLOCK_K)[None, :]
    return tl.arange(0, BLOCK_T)[:, None] * stride + column, column < K


@triton.jit
def rows_inside(column, rows, BLOCK_T: tl.constexpr):
    """Which numbers of a chunk of an input there are, of those columns and so many rows."""
    return (tl.arange(0, BLOCK_T)[:, None] < rows) & column


@triton.jit
def first_read(x, at, inside):
    """A chunk of an input. Held from its first use to its last it would take registers, so it is read again,
    from the cache: by another policy, or the compiler makes one of both."""
    return tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_last")


@triton.jit
def read_again(x, at, inside):
    """The same for a later product."""
    return tl.load(x + at, mask=inside, other=0.0)


@triton.jit
def last_read(x, at, inside):
    """The same, after which nobody needs it."""
    return tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def load_pack_weights(a, stride, real, rows, first, L: tl.constexpr, BLOCK_L: tl.constexpr):
    """Columns of A_pack in float32, zeros at padded positions: it is a factor of every sum over time."""
    x = load_block(a, stride, rows, first, L, real.shape[0], BLOCK_L).to(tl.float32)
    return tl.where(real[:, None], x, 0.0)


@triton.jit
def chunk_of(
    chunk, reciprocal, ages, padding, T, HAS_PADDING: tl.constexpr, FADES: tl.constexpr, BLOCK_T: tl.constexpr
):
    """What is known of a chunk's positions: the first one as int64, how many there are from there on,
    [BLOCK_T] whether each is real, 1/t of equation 7, its age since the chunk's beginning, and the age of the
    chunk's end."""
    start = tl.minimum(chunk * BLOCK_T, T)
    row = tl.arange(0, BLOCK_T)
    position = start + row
    real = position < T
    if HAS_PADDING or FADES:
        inverse = tl.load(reciprocal + position, mask=real, other=0.0)
    else:
        inverse = 1.0 / (position + 1).to(tl.float32)
    age, end = tl.zeros((BLOCK_T,), dtype=tl.float32), 0.0
    if FADES:
        age = tl.load(ages + position, mask=real, other=0.0)
        end = tl.load(ages + tl.minimum(start + BLOCK_T, T) - 1)
    if HAS_PADDING:
        real = real & (tl.load(padding + position, mask=real, other=1) == 0)
    return start.to(tl.int64), T - start, real, inverse, age, end


@triton.jit
def aged(x, age, FADES: tl.constexpr):
    """Rows of x times exp(age), of one age for each row."""
    if FADES:
        x = x * tl.exp(age)[:, None]
    return x


@triton.jit
def later(x, age, FADES: tl.constexpr):
    """x [j, t] where j <= t, as much as is left of j there, zero elsewhere."""
    j, t = tl.arange(0, x.shape[0])[:, None], tl.arange(0, x.shape[0])[None, :]
    if FADES:
        x *= tl.exp(tl.minimum(age[:, None] - age[None, :], 0.0))
    return tl.where(j <= t, x, 0.0)


@triton.jit
def earlier(x, age, FADES: tl.constexpr):
    """Likewise x [t, j]."""
    t, j = tl.arange(0, x.shape[0])[:, None], tl.arange(0, x.shape[0])[None, :]
    if FADES:
        x *= tl.exp(tl.minimum(age[None, :] - age[:, None], 0.0))
    return tl.where(j <= t, x, 0.0)


@triton.jit
def sum_of_segments(
    sums, spans, segment, segments, first,
    K: tl.constexpr, L: tl.constexpr, SIZE: tl.constexpr, REVERSE: tl.constexpr, FADES: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The sum [BLOCK_K, BLOCK_L] of the segments before (REVERSE: after) a head's ``segment``, of SIZE
    numbers each, which fade by ``spans`` [segments]."""
    total = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    for i in range(segments - 1 - segment if REVERSE else segment):
        one = segments - 1 - i if REVERSE else i
        if FADES:
            total *= tl.exp(-tl.load(spans + one))
        total += load_block(sums + one * SIZE, L, K, first, L, BLOCK_K, BLOCK_L)
    return total


@triton.jit
def first_state(
    sums, memory, spans, segment, segments,
    K: tl.constexpr, L: tl.constexpr, SIZE: tl.constexpr, REVERSE: tl.constexpr, FADES: tl.constexpr,
    CARRY: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The state that a segment starts from: in registers, or all of it in memory."""
    state = sum_of_segments(sums, spans, segment, segments, 0, K, L, SIZE, REVERSE, FADES, BLOCK_K, BLOCK_L)
    if not CARRY:
        store_block(memory, L, K, 0, state, L, BLOCK_K, BLOCK_L)
        for first in range(BLOCK_L, L, BLOCK_L):
            x = sum_of_segments(
                sums, spans, segment, segments, first, K, L, SIZE, REVERSE, FADES, BLOCK_K, BLOCK_L
            )
            store_block(memory, L, K, first, x, L, BLOCK_K, BLOCK_L)
    return state


@triton.jit
def read_state(state, memory, first, K: tl.constexpr, L: tl.constexpr, CARRY: tl.constexpr):
    """Columns of a state from ``first`` on: itself where it is carried, otherwise from memory."""
    if not CARRY:
        state = load_block(memory, L, K, first, L, state.shape[0], state.shape[1])
    return state


@triton.jit
def grown(
    state, memory, first, end, x, at, inside, y, K: tl.constexpr, L: tl.constexpr, FADES: tl.constexpr,
    CARRY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns of a state a chunk of the age ``end`` further on, x^T y of the chunk added; where it is not
    carried, in memory likewise."""
    state = read_state(state, memory, first, K, L, CARRY)
    if FADES:
        state *= tl.exp(-end)
    state += product(tl.trans(read_again(x, at, inside)), y, PRECISION)
    if not CARRY:
        store_block(memory, L, K, first, state, L, state.shape[0], state.shape[1])
    return state


@triton.jit
def load_row(base, rows, BLOCK_T: tl.constexpr):
    """A number of each of a chunk's positions."""
    row = tl.arange(0, BLOCK_T)
    return tl.load(base + row, mask=row < rows, other=0.0)


@triton.jit
def store_row(base, rows, x, BLOCK_T: tl.constexpr):
    """The reverse of ``load_row``."""
    row = tl.arange(0, BLOCK_T)
    tl.store(base + row, x, mask=row < rows)


@triton.jit
def load_included(
    packed_padding, first, L: tl.constexpr, HAS_PACKED_PADDING: tl.constexpr, BLOCK_L: tl.constexpr
):
    """[1, BLOCK_L], true at rows of P that exist and are not left out."""
    column = first + tl.arange(0, BLOCK_L)[None, :]
    included = column < L
    if HAS_PACKED_PADDING:
        included = included & (tl.load(packed_padding + column, mask=included, other=1) == 0)
    return included


@triton.jit
def dropout_factor(
    seed, dropout, boost, position, first, L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_L: tl.constexpr
):
    """0 or ``boost``, which is 1 / (1 - dropout), for every unpack weight of a block. A function of seed and
    place alone, so that the backward pass draws again what the forward pass drew, whatever blocks it works
    in.

    ``seed``: pointer to one int64; ``position``: index of the block's first row among all rows of the batch,
    int64.
    """
    row = position + tl.arange(0, BLOCK_T)[:, None]
    column = first + tl.arange(0, BLOCK_L)[None, :]
    kept = tl.rand(tl.load(seed), row * L + column, n_rounds=PHILOX_ROUNDS) >= dropout
    return tl.where(kept, boost, 0.0)


@triton.jit(do_not_specialize=LENGTHS)
def segment_sums_kernel(
    k, v, a, sums, reciprocal, ages, padding, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, TIED: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sums [B H, segments, 1 or 2, K, L]: sum k_j^T a_j and sum v_j^T a_j of each segment, at its end.

    Grid: B H x segments, blocks of L.
    """
    segment, bh, b, x_start, a_start = segment_of_head(segments, H, x_b, x_h, a_b, a_h)
    first = tl.program_id(1) * BLOCK_L
    OTHER: tl.constexpr = 0 if TIED else K * L
    sums += (bh * segments + segment) * (OTHER + K * L)
    at, column = input_block(x_t, K, BLOCK_T, BLOCK_K)
    key_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    value_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    for chunk in range(segment * chunks, (segment + 1) * chunks):
        start, rows, real, inverse, age, end = chunk_of(
            chunk, reciprocal + bh * T, ages + bh * T, padding + b * T, T, HAS_PADDING, FADES, BLOCK_T
        )
        inside = rows_inside(column, rows, BLOCK_T)
        x_place, a_place = x_start + start * x_t, a_start + start * a_t
        x_a = load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L)
        x_a = aged(x_a, age - end, FADES)
        key_sum = grown(key_sum, sums, first, end, k + x_place, at, inside, x_a, K, L, FADES, True, PRECISION)
        if not TIED:
            value_sum = grown(
                value_sum, sums, first, end, v + x_place, at, inside, x_a, K, L, FADES, True, PRECISION
            )
    store_block(sums, L, K, first, key_sum, L, BLOCK_K, BLOCK_L)
    if not TIED:
        store_block(sums + OTHER, L, K, first, value_sum, L, BLOCK_K, BLOCK_L)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q, k, v, a, out, lse, sums, scratch, reciprocal, ages, spans, padding, packed_padding, seed,
    dropout, boost, scale, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, TIED: tl.constexpr, HAS_PADDING: tl.constexpr,
    HAS_PACKED_PADDING: tl.constexpr, HAS_DROPOUT: tl.constexpr, FADES: tl.constexpr, STATES: tl.constexpr,
    CARRY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out = (tril(U' A^T) v + U' S_v) / t with U = softmax((tril(q k^T) A + q S_k) scale / t), U' after
    dropout; and the logarithm of the softmax's denominator, ``lse`` [B H, T]; where
    states are not carried the output in float32 as well.

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, x_start, a_start = segment_of_head(segments, H, x_b, x_h, a_b, a_h)
    OTHER: tl.constexpr = 0 if TIED else K * L
    SIZE: tl.constexpr = OTHER + K * L
    SIDES: tl.constexpr = 1 if TIED else 2
    at, column = input_block(x_t, K, BLOCK_T, BLOCK_K)
    if STATES:
        sums += bh * segments * SIZE
        scratch += (bh * segments + segment) * SIZE
        spans += bh * segments
        state = first_state(
            sums, scratch, spans, segment, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K, BLOCK_L
        )
        other_state = state
        if not TIED:
            memory = scratch + OTHER
            other_state = first_state(
                sums + OTHER, memory, spans, segment, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K,
                BLOCK_L,
            )  # fmt: skip
    for chunk in range(segment * chunks, (segment + 1) * chunks):
        start, rows, real, inverse, age, end = chunk_of(
            chunk, reciprocal + bh * T, ages + bh * T, padding + b * T, T, HAS_PADDING, FADES, BLOCK_T
        )
        inside = rows_inside(column, rows, BLOCK_T)
        x_place, a_place, row_place = x_start + start * x_t, a_start + start * a_t, bh * T + start
        x_q, x_k, x_v = q + x_place, k + x_place, v + x_place
        top = tl.full((BLOCK_T,), EXCLUDED, dtype=tl.float32)
        total = tl.zeros((BLOCK_T,), dtype=tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . U'_t
        y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L)
            scores = product(first_read(x_q, at, inside), tl.trans(first_read(x_k, at, inside)), PRECISION)
            logits = product(earlier(scores, age, FADES), x_a, PRECISION)
            if STATES:
                s = read_state(state, scratch, first, K, L, CARRY)
                logits += aged(product(last_read(x_q, at, inside), s, PRECISION), -age, FADES)
            included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
            logits = tl.where(included, logits * (inverse * scale)[:, None], EXCLUDED)
            new_top = tl.maximum(top, tl.max(logits, 1))
            shrink = tl.exp(top - new_top)
            weights = tl.where(included, tl.exp(logits - new_top[:, None]), 0.0)
            top = new_top
            total = total * shrink + tl.sum(weights, 1)
            if HAS_DROPOUT:
                weights *= dropout_factor(seed, dropout, boost, row_place, first, L, BLOCK_T, BLOCK_L)
            mixed = mixed * shrink[None, :] + product(x_a, tl.trans(weights), PRECISION)
            if STATES:
                s = read_state(other_state, scratch + OTHER, first, K, L, CARRY)
                weights = aged(weights, -age, FADES)
                y = y * shrink[None, :] + product(s, tl.trans(weights), PRECISION)
        total = tl.where(total > 0.0, total, 1.0)  # zeros where no row of P is left
        mixed = later(mixed, age, FADES)
        y += product(tl.trans(last_read(x_v, at, inside)), mixed, PRECISION)
        y = tl.trans(y * (inverse / total)[None, :])
        tl.store(out + x_place + at, y.to(out.dtype.element_ty), mask=inside)
        store_row(lse + row_place, rows, top + tl.log(total), BLOCK_T)
        if STATES:
            for side in range(SIDES):
                x = tl.where(side == 0, k, v) + x_place
                for first in range(0, L, BLOCK_L):
                    x_a = aged(
                        load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L), age - end, FADES
                    )
                    memory = scratch + side * OTHER
                    state = grown(
                        state, memory, first, end, x, at, inside, x_a, K, L, FADES, CARRY, PRECISION
                    )
                if TIED:
                    other_state = state
                else:
                    state, other_state = other_state, state
            tl.debug_barrier()
