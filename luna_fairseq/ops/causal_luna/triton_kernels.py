"""Triton kernels of causal Luna attention: what forward and backward share, the sums over segments, the
forward pass.

A sentence of T positions is cut into chunks of BLOCK_T positions and into segments of one or more chunks. A
program owns one segment of one head. Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a
masked matrix product; what came before the chunk enters through two states [K, L], ``sum k_j^T a_j`` and
``sum v_j^T a_j``. CARRY keeps the states in registers from chunk to chunk (small K x L); LOADED reads a
segment's first one from memory. The packed length is taken BLOCK_L rows at a time, with a running softmax, so
that any L fits.

With FADES what is added at j counts exp(age_j - age_t) at t: a state is that of the end of what it is the sum
of, what reads it and what is added to it are scaled by their ages from there, as in the chunkwise form.

Products of the inputs among themselves run in the inputs' type, all others in float32 operands at PRECISION;
every sum is float32.
"""

import triton
import triton.language as tl

# A real logit never comes near it, and unlike -inf it leaves no NaN where every row of P is left out.
EXCLUDED = tl.constexpr(-1e30)
# Arguments that differ from batch to batch: a kernel compiled anew for each of their properties would cost
# seconds.
LENGTHS = ["T", "segments", "chunks"]
# Philox with 7 rounds passes the same batteries of tests as with 10.
PHILOX_ROUNDS = tl.constexpr(7)


@triton.jit
def segment_of_head(segments, H):
    """Segment, B H, B and H of a program; grid: B H x segments, the last fastest."""
    program = tl.program_id(0)
    bh = (program // segments).to(tl.int64)
    return program % segments, bh, bh // H, bh % H


@triton.jit
def inputs_of_head(q, k, v, a, b, h, q_b, q_h, k_b, k_h, v_b, v_h, a_b, a_h):
    """Where the inputs of head ``h`` of sentence ``b`` begin."""
    return q + b * q_b + h * q_h, k + b * k_b + h * k_h, v + b * v_b + h * v_h, a + b * a_b + h * a_h


@triton.jit
def chunk_place(chunk, T, BLOCK_T: tl.constexpr):
    """First position of the ``chunk``-th of a sentence, the positions from there on, and the first one as
    int64."""
    start = chunk * BLOCK_T
    return start, T - start, start.to(tl.int64)


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """x @ y with float32 operands."""
    x, y = x.to(tl.float32), y.to(tl.float32)
    if PRECISION == "tf32":
        x, y = rounded(x), rounded(y)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def rounded(x):
    """Half a unit of tf32's last place added, for the tensor cores cut the rest off: always towards zero
    otherwise."""
    return (x.to(tl.int32, bitcast=True) + 0x1000).to(tl.float32, bitcast=True)


@triton.jit
def input_scores(x, y, NATIVE: tl.constexpr, PRECISION: tl.constexpr):
    """x y^T of two inputs, in their own type where that is NATIVE: half-precision products are exact in
    float32."""
    if NATIVE:
        scores = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    else:
        scores = product(x, tl.trans(y), PRECISION)
    return scores


@triton.jit
def load_block(base, stride, rows, first, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr):
    """Columns ``first`` .. first + BLOCK of a matrix of ``rows`` rows and WIDTH columns [BLOCK_T, BLOCK],
    zeros outside."""
    row = tl.arange(0, BLOCK_T)[:, None]
    column = first + tl.arange(0, BLOCK)[None, :]
    return tl.load(base + row * stride + column, mask=(row < rows) & (column < WIDTH), other=0.0)


@triton.jit
def store_block(
    base, stride, rows, first, x, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK: tl.constexpr
):
    """The reverse of ``load_block``, in the type of the memory."""
    row = tl.arange(0, BLOCK_T)[:, None]
    column = first + tl.arange(0, BLOCK)[None, :]
    tl.store(base + row * stride + column, x.to(base.dtype.element_ty), mask=(row < rows) & (column < WIDTH))


@triton.jit
def first_state(
    state,
    K: tl.constexpr,
    L: tl.constexpr,
    LOADED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """The state [K, L] that a segment starts from when it is carried: zeros for a sentence of one segment."""
    if LOADED:
        x = load_block(state, L, K, 0, L, BLOCK_K, BLOCK_L)
    else:
        x = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    return x


@triton.jit
def load_pack_weights(
    a, stride, real, rows, first, L: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_L: tl.constexpr
):
    """Columns of A_pack in float32, zeros at padded positions: it is a factor of every sum over time."""
    x = load_block(a, stride, rows, first, L, BLOCK_T, BLOCK_L).to(tl.float32)
    return tl.where(real[:, None], x, 0.0)


@triton.jit
def load_real(padding, rows, HAS_PADDING: tl.constexpr, BLOCK_T: tl.constexpr):
    """[BLOCK_T], true at positions that exist and are not padding."""
    row = tl.arange(0, BLOCK_T)
    real = row < rows
    if HAS_PADDING:
        real = real & (tl.load(padding + row, mask=real, other=1) == 0)
    return real


@triton.jit
def row_of_times(b, h, bh, HAS_PADDING: tl.constexpr, FADES: tl.constexpr):
    """Row of 1/t and of ages that belongs to a head: one for each sentence, head, or both."""
    row = b
    if FADES:
        row = bh if HAS_PADDING else h
    return row


@triton.jit
def load_reciprocal(reciprocal, start, rows, GIVEN: tl.constexpr, BLOCK_T: tl.constexpr):
    """1/t of equation 7 [BLOCK_T]: from memory where padding or decay makes it another."""
    row = tl.arange(0, BLOCK_T)
    if GIVEN:
        x = tl.load(reciprocal + start + row, mask=row < rows, other=0.0)
    else:
        x = 1.0 / (start + row + 1).to(tl.float32)
    return x


@triton.jit
def age_before(ages, position):
    """Age of what comes before a position, 0 at the beginning."""
    return tl.load(ages + position - 1, mask=position > 0, other=0.0)


@triton.jit
def load_ages(ages, start, T, FADES: tl.constexpr, BLOCK_T: tl.constexpr):
    """Ages of a chunk's positions [BLOCK_T] and of its end, from what is before it on."""
    if FADES:
        before = age_before(ages, tl.minimum(start, T))
        place = tl.minimum(start + tl.arange(0, BLOCK_T), T - 1)
        age = (tl.load(ages + place) - before).to(tl.float32)
        end = (age_before(ages, tl.minimum(start + BLOCK_T, T)) - before).to(tl.float32)
    else:
        age = tl.zeros((BLOCK_T,), dtype=tl.float32)
        end = 0.0
    return age, end


@triton.jit
def aged(x, age, FADES: tl.constexpr):
    """Rows of x times exp(age), of one age for each row."""
    if FADES:
        x = x.to(tl.float32) * tl.exp(age)[:, None]
    return x


@triton.jit
def aged_state(state, end, FADES: tl.constexpr):
    """A state, a chunk of the age ``end`` further on."""
    if FADES:
        state *= tl.exp(-end)
    return state


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


@triton.jit
def causal(x, age, FADES: tl.constexpr, BLOCK_T: tl.constexpr):
    """x [t, j] where j <= t, as much as is left of j there, zero elsewhere."""
    row = tl.arange(0, BLOCK_T)
    if FADES:
        x *= tl.exp(tl.minimum(age[None, :] - age[:, None], 0.0))
    return tl.where(row[:, None] >= row[None, :], x, 0.0)


@triton.jit(do_not_specialize=LENGTHS)
def segment_sums_kernel(
    k, v, a, states, ages, padding, T, H, segments, chunks,
    k_b, k_h, k_t, v_b, v_h, v_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """states [B H, segments, 2, K, L]: sum k_j^T a_j and sum v_j^T a_j of each segment, at its end.

    Grid: B H x segments x blocks of L, the last fastest.
    """
    blocks: tl.constexpr = (L + BLOCK_L - 1) // BLOCK_L
    program = tl.program_id(0)
    first = (program % blocks) * BLOCK_L
    segment = (program // blocks) % segments
    bh = (program // blocks // segments).to(tl.int64)
    b, h = bh // H, bh % H
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    a += b * a_b + h * a_h
    ages += row_of_times(b, h, bh, HAS_PADDING, FADES) * T
    key_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    value_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    for chunk in range(chunks):
        start, rows, place = chunk_place(segment * chunks + chunk, T, BLOCK_T)
        real = load_real(padding + b * T + place, rows, HAS_PADDING, BLOCK_T)
        x_k = load_block(k + place * k_t, k_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_v = load_block(v + place * v_t, v_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_a = load_pack_weights(a + place * a_t, a_t, real, rows, first, L, BLOCK_T, BLOCK_L)
        age, end = load_ages(ages, start, T, FADES, BLOCK_T)
        x_a = aged(x_a, age - end, FADES)
        key_sum = aged_state(key_sum, end, FADES) + product(tl.trans(x_k), x_a, PRECISION)
        value_sum = aged_state(value_sum, end, FADES) + product(tl.trans(x_v), x_a, PRECISION)
    states += (bh * segments + segment) * (2 * K * L)
    store_block(states, L, K, first, key_sum, L, BLOCK_K, BLOCK_L)
    store_block(states + K * L, L, K, first, value_sum, L, BLOCK_K, BLOCK_L)


@triton.jit(do_not_specialize=["segments", "T", "length"])
def exclusive_scan_kernel(
    states, ages, segments, T, H, length,
    SIZE: tl.constexpr, REVERSE: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """states [B H, segments, SIZE], in place: each segment gets the sum of those before it (REVERSE: after
    it). A segment has ``length`` positions.

    Grid: B H x blocks of SIZE, the last fastest.
    """
    blocks: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    bh = (program // blocks).to(tl.int64)
    head = bh * segments
    ages += row_of_times(bh // H, bh % H, bh, HAS_PADDING, FADES) * T
    step = SIZE
    if REVERSE:
        head += segments - 1
        step = -SIZE
    place = states + head * SIZE + column
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(segments):
        segment = segments - 1 - i if REVERSE else i
        x = tl.load(place, mask=column < SIZE, other=0.0)
        tl.store(place, total, mask=column < SIZE)
        if FADES:
            end = age_before(ages, tl.minimum((segment + 1) * length, T))
            end -= age_before(ages, tl.minimum(segment * length, T))
            total *= tl.exp(-end.to(tl.float32))
        total += x
        place += step


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q, k, v, a, out, states, reciprocal, ages, padding, packed_padding, seed, dropout, boost, scale,
    T, H, segments, chunks,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, a_b, a_h, a_t, out_b, out_h, out_t,
    K: tl.constexpr, L: tl.constexpr, HAS_PADDING: tl.constexpr, HAS_PACKED_PADDING: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, FADES: tl.constexpr, CARRY: tl.constexpr, LOADED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    NATIVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = (tril(U' A^T) v + U' S_v) / t with U = softmax((tril(q k^T) A + q S_k) scale / t), U' after
    dropout.

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, h = segment_of_head(segments, H)
    q, k, v, a = inputs_of_head(q, k, v, a, b, h, q_b, q_h, k_b, k_h, v_b, v_h, a_b, a_h)
    out += b * out_b + h * out_h
    states += (bh * segments + segment) * (2 * K * L)
    times = row_of_times(b, h, bh, HAS_PADDING, FADES) * T
    if CARRY:
        key_state = first_state(states, K, L, LOADED, BLOCK_K, BLOCK_L)
        value_state = first_state(states + K * L, K, L, LOADED, BLOCK_K, BLOCK_L)
    for chunk in range(chunks):
        start, rows, place = chunk_place(segment * chunks + chunk, T, BLOCK_T)
        real = load_real(padding + b * T + place, rows, HAS_PADDING, BLOCK_T)
        inverse = load_reciprocal(reciprocal + times, start, rows, HAS_PADDING or FADES, BLOCK_T)
        age, end = load_ages(ages + times, start, T, FADES, BLOCK_T)
        x_q = load_block(q + place * q_t, q_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_k = load_block(k + place * k_t, k_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_v = load_block(v + place * v_t, v_t, rows, 0, K, BLOCK_T, BLOCK_K)
        scores = causal(input_scores(x_q, x_k, NATIVE, PRECISION), age, FADES, BLOCK_T)

        top = tl.full((BLOCK_T,), EXCLUDED, dtype=tl.float32)
        total = tl.zeros((BLOCK_T,), dtype=tl.float32)
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # U'_t . a_j
        y = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + place * a_t, a_t, real, rows, first, L, BLOCK_T, BLOCK_L)
            logits = product(scores, x_a, PRECISION)
            if LOADED and not CARRY:
                key_state = load_block(states, L, K, first, L, BLOCK_K, BLOCK_L)
                value_state = load_block(states + K * L, L, K, first, L, BLOCK_K, BLOCK_L)
            if LOADED or CARRY:
                logits += product(aged(x_q, -age, FADES), key_state, PRECISION)
            included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
            logits = tl.where(included, logits * (inverse * scale)[:, None], EXCLUDED)
            new_top = tl.maximum(top, tl.max(logits, 1))
            shrink = tl.exp(top - new_top)
            weights = tl.where(included, tl.exp(logits - new_top[:, None]), 0.0)
            top = new_top
            total = total * shrink + tl.sum(weights, 1)
            if HAS_DROPOUT:
                weights *= dropout_factor(seed, dropout, boost, bh * T + place, first, L, BLOCK_T, BLOCK_L)
            mixed = mixed * shrink[:, None] + product(weights, tl.trans(x_a), PRECISION)
            if LOADED or CARRY:
                read = product(aged(weights, -age, FADES), tl.trans(value_state), PRECISION)
                y = y * shrink[:, None] + read
            if CARRY:
                added = aged(x_a, age - end, FADES)
                key_state = aged_state(key_state, end, FADES) + product(tl.trans(x_k), added, PRECISION)
                value_state = aged_state(value_state, end, FADES) + product(tl.trans(x_v), added, PRECISION)
        y += product(causal(mixed, age, FADES, BLOCK_T), x_v, PRECISION)
        y *= (inverse / tl.where(total > 0.0, total, 1.0))[:, None]  # zeros where no row of P is left
        store_block(out + place * out_t, out_t, rows, 0, y, K, BLOCK_T, BLOCK_K)
