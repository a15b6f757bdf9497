"""Triton kernels of the backward pass of causal Luna attention.

With r = 1/t, g the gradient of the output and U' the unpack weights after dropout:

    dU'_t = r_t sum_{j<=t} (g_t . v_j) a_j            w_t = r_t U'_t
    dq_t  = sum_{j<=t} (d_t . a_j) k_j                d_t = r_t scale times the gradient of the logits
    dk_j  = sum_{t>=j} (d_t . a_j) q_t
    dv_j  = sum_{t>=j} (w_t . a_j) g_t
    da_j  = sum_{t>=j} (g_t . v_j) w_t + (q_t . k_j) d_t

Sums over j <= t need the states of the forward pass, sums over t >= j the states ``sum q_t^T d_t`` and
``sum g_t^T w_t`` [K, L] of what follows. The first kernel goes forward in time and leaves d, w, and each
segment's sums of the second kind, the second kernel goes back. Where keys are values (SIDES = 1), dk is the
gradient of both.

With FADES every product of t and j counts exp(age_j - age_t), and a sum of what follows stands at the
beginning of it. Both kernels leave what ages need besides: ``reads`` and ``adds``, each position's share in
sums over j <= t and over t >= j times its gradient.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.triton_kernels import (
    LENGTHS,
    aged,
    attended,
    chunk_of,
    dropout_factor,
    earlier,
    first_read,
    first_states,
    grow,
    grown,
    last_read,
    later,
    load_included,
    load_rows,
    places,
    product,
    program,
    read_again,
    read_state,
)


@triton.jit(do_not_specialize=LENGTHS)
def query_gradient_kernel(
    q, k, v, a, lse, g, dq, dlogits, used, reads, sums, later_sums, scratch, reciprocal, ages, spans,
    padding, packed_padding, seed, dropout, boost, scale, T, H, segments, chunks,
    x_b, x_h, x_t, a_b, a_h, a_t, K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_PACKED_PADDING: tl.constexpr, HAS_DROPOUT: tl.constexpr, FADES: tl.constexpr, STATES: tl.constexpr,
    CARRY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq; gradients of the logits and U', ``used`` [B H, rows, WIDTH]; each segment's sums of q^T d and of
    g^T w, ``later_sums`` [B H, segments, 2, BLOCK_K, WIDTH]; with FADES ``reads`` [B H, rows]."""
    segment, bh, b, x_head, a_head, at, columns = program(
        segments, H, x_b, x_h, x_t, a_b, a_h, K, BLOCK_T, BLOCK_K
    )
    STATE: tl.constexpr = BLOCK_K * WIDTH
    OTHER: tl.constexpr = (SIDES - 1) * STATE
    head = bh * segments * chunks * BLOCK_T
    since = 0.0  # the age of the chunk's beginning, from the segment's on
    state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    other_state, total, other_total = state, state, state
    if STATES:
        scratch += (bh * segments + segment) * (2 * STATE)
        later_sums += (bh * segments + segment) * (2 * STATE)
        state, other_state = first_states(
            sums + bh * segments * (SIDES * STATE), scratch, spans + bh * segments, segment, segments, OTHER,
            SIDES * STATE, WIDTH, False, FADES, CARRY, BLOCK_K, BLOCK_L,
        )  # fmt: skip
        total, other_total = first_states(
            sums, later_sums, spans, 0, segments, STATE, STATE, WIDTH, False, FADES, CARRY, BLOCK_K, BLOCK_L
        )
    for chunk in range(segment * chunks, (segment + 1) * chunks):
        start, row, there, real, inverse, age, end = chunk_of(
            chunk, head, reciprocal, ages, padding + b * T, T, HAS_PADDING, FADES, BLOCK_T
        )
        inside = there[:, None] & columns
        x_place, pack = x_head + start * x_t, a + a_head + start * a_t
        # sum U dU, of the same weights that it is taken from: with L in blocks a round of its own finds it.
        mean, whole = tl.zeros((BLOCK_T,), dtype=tl.float32), tl.zeros((BLOCK_T,), dtype=tl.float32)
        for turn in range(1 if CARRY else 2):
            for first in range(0, WIDTH, BLOCK_L):
                x_a = load_rows(pack, a_t, real, first, L, BLOCK_L)
                logits = tl.zeros((BLOCK_T, BLOCK_L), dtype=tl.float32)
                of_weights = tl.zeros((BLOCK_T, BLOCK_L), dtype=tl.float32)
                for side in range(2):
                    x, y = tl.where(side == 0, q, g) + x_place, tl.where(side == 0, k, v) + x_place
                    if FADES:  # again: powers of it would be kept for both sides
                        age = tl.load(ages + row + tl.arange(0, BLOCK_T))
                    s = read_state(state, scratch + side * OTHER, first, WIDTH, CARRY)
                    logits, of_weights = (
                        of_weights,
                        attended(x, y, at, inside, x_a, age, s, FADES, STATES, PRECISION),
                    )
                    state, other_state = other_state, state
                included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
                logits *= (inverse * scale)[:, None]
                weights = tl.exp(logits - tl.load(lse + row + tl.arange(0, BLOCK_T))[:, None])
                weights = tl.where(included, weights, 0.0)
                of_weights *= inverse[:, None]
                x_w = weights
                if HAS_DROPOUT:
                    factor = dropout_factor(seed, dropout, boost, row, first, WIDTH, BLOCK_T, BLOCK_L)
                    of_weights *= factor
                    x_w *= factor
                if CARRY:
                    mean = tl.sum(weights * of_weights, 1)
                elif turn == 0:
                    mean += tl.sum(weights * of_weights, 1)
                    whole += tl.sum(weights, 1)
                if CARRY or turn == 1:
                    kept = row * WIDTH + places(WIDTH, first, BLOCK_T, BLOCK_L)
                    tl.store(used + kept, x_w.to(used.dtype.element_ty))
                    of_weights = weights * (of_weights - mean[:, None])
                    tl.store(dlogits + kept, of_weights.to(used.dtype.element_ty))
            if not CARRY and turn == 0:
                mean /= tl.where(whole > 0.0, whole, 1.0)
        if FADES:
            tl.store(reads + row + tl.arange(0, BLOCK_T), mean)
        tl.debug_barrier()  # what one thread has stored another may load

        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . d_t
        to_x = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        x_row = row * WIDTH
        if FADES:
            age = tl.load(ages + row + tl.arange(0, BLOCK_T))
            inverse = tl.load(reciprocal + row + tl.arange(0, BLOCK_T))
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(pack, a_t, real, first, L, BLOCK_L)
            x_d = (
                tl.load(dlogits + x_row + places(WIDTH, first, BLOCK_T, BLOCK_L)).to(tl.float32)
                * (inverse * scale)[:, None]
            )
            mixed += product(x_a, tl.trans(x_d), PRECISION)
            if STATES:
                s = read_state(state, scratch, first, WIDTH, CARRY)
                to_x += product(s, tl.trans(aged(x_d, -age, FADES)), PRECISION)
        to_x += product(tl.trans(read_again(k + x_place, at, inside)), later(mixed, age, FADES), PRECISION)
        to_x = tl.trans(to_x)
        tl.store(dq + x_place + at, to_x.to(dq.dtype.element_ty), mask=inside)
        if FADES:
            mean = tl.load(reads + row + tl.arange(0, BLOCK_T))
            mean += tl.sum(read_again(q + x_place, at, inside).to(tl.float32) * to_x, 1)
            tl.store(reads + row + tl.arange(0, BLOCK_T), mean)
        if STATES:
            state, other_state = grow(
                state, other_state, scratch, k + x_place, v + x_place, at, inside, pack, pack, a_t, real,
                age - end, end, 1.0, 1.0, L, SIDES, OTHER, WIDTH, FADES, CARRY, PRECISION,
            )  # fmt: skip
            total, other_total = grow(
                total, other_total, later_sums, q + x_place, g + x_place, at, inside, dlogits + x_row,
                used + x_row, WIDTH, there, -age - since, 0.0, (inverse * scale)[:, None], inverse[:, None],
                L, 2, STATE, WIDTH, FADES, CARRY, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
        if FADES:
            since += end
    if STATES and CARRY:
        kept = later_sums + places(WIDTH, 0, BLOCK_K, BLOCK_L)
        tl.store(kept, total)
        tl.store(kept + STATE, other_total)


@triton.jit(do_not_specialize=LENGTHS)
def key_gradient_kernel(
    q, k, v, a, g, dlogits, used, dk, dv, da, adds, sums, scratch, reciprocal, ages, spans, padding, scale,
    T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr,
    STATES: tl.constexpr, CARRY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv (of one side: their sum in dk), da, and with FADES ``adds`` [B H, rows], from what the first
    kernel left, chunks in reverse order, and in each first what goes through q and k, then what goes through
    g and v."""
    segment, bh, b, x_head, a_head, at, columns = program(
        segments, H, x_b, x_h, x_t, a_b, a_h, K, BLOCK_T, BLOCK_K
    )
    STATE: tl.constexpr = BLOCK_K * WIDTH
    head = bh * segments * chunks * BLOCK_T
    state = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    other_state = state
    if STATES:
        scratch += (bh * segments + segment) * (2 * STATE)
        state, other_state = first_states(
            sums + bh * segments * (2 * STATE), scratch, spans + bh * segments, segment, segments, STATE,
            2 * STATE, WIDTH, True, FADES, CARRY, BLOCK_K, BLOCK_L,
        )  # fmt: skip
    for step in range(chunks):
        start, row, there, real, inverse, age, end = chunk_of(
            (segment + 1) * chunks - 1 - step, head, reciprocal, ages, padding + b * T, T, HAS_PADDING, FADES,
            BLOCK_T,
        )  # fmt: skip
        inside = there[:, None] & columns
        x_place, a_place = x_head + start * x_t, a_head + start * a_t
        to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for side in range(2):
            x, y = tl.where(side == 0, q, g) + x_place, tl.where(side == 0, k, v) + x_place
            mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # d_t . a_j
            if SIDES == 2:
                to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
            for first in range(0, WIDTH, BLOCK_L):
                x_a = load_rows(a + a_place, a_t, real, first, L, BLOCK_L)
                d = tl.where(side == 0, dlogits, used) + row * WIDTH
                x_d = load_rows(d, WIDTH, there, first, L, BLOCK_L)
                x_d *= (inverse * tl.where(side == 0, scale, 1.0))[:, None]
                if FADES:
                    age = tl.load(ages + row + tl.arange(0, BLOCK_T))
                mixed += product(x_d, tl.trans(x_a), PRECISION)
                scores = product(first_read(y, at, inside), tl.trans(first_read(x, at, inside)), PRECISION)
                to_a = product(later(scores, age, FADES), x_d, PRECISION)
                if STATES:
                    memory = scratch + side * STATE
                    now = read_state(state, memory, first, WIDTH, CARRY)
                    to_y += product(now, tl.trans(aged(x_a, age - end, FADES)), PRECISION)
                    to_a += aged(product(read_again(y, at, inside), now, PRECISION), age - end, FADES)
                    state = grown(
                        state, memory, first, end, x, at, inside, aged(x_d, -age, FADES), WIDTH, FADES, CARRY,
                        PRECISION,
                    )  # fmt: skip
                # The first side's part lies where the sum of both goes.
                to_a += load_rows(da + a_place, a_t, real & (side > 0), first, L, BLOCK_L)
                kept = real[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
                to_a = to_a.to(da.dtype.element_ty)
                tl.store(da + a_place + places(a_t, first, BLOCK_T, BLOCK_L), to_a, mask=kept)
            if FADES:
                age = tl.load(ages + row + tl.arange(0, BLOCK_T))
            mixed = earlier(mixed, age, FADES)
            to_y += product(tl.trans(last_read(x, at, inside)), mixed, PRECISION)
            if FADES:
                add = tl.sum(last_read(y, at, inside).to(tl.float32) * tl.trans(to_y), 1)
                if SIDES == 2:
                    add += tl.load(adds + row + tl.arange(0, BLOCK_T), mask=there & (side > 0), other=0.0)
                tl.store(adds + row + tl.arange(0, BLOCK_T), add)
            dy = tl.where(side == 0, dk, dv) + x_place
            tl.store(dy + at, tl.trans(to_y).to(dk.dtype.element_ty), mask=inside & (side + SIDES > 1))
            state, other_state = other_state, state
        tl.debug_barrier()
