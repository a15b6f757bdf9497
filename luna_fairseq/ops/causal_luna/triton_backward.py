"""Triton kernels of the backward pass of causal Luna attention.

With r = 1/t, g the gradient of the output and U' the unpack weights after dropout:

    dU'_t = r_t sum_{j<=t} (g_t . v_j) a_j            w_t = r_t U'_t
    dq_t  = sum_{j<=t} (d_t . a_j) k_j                d_t = r_t scale times the gradient of the logits
    dk_j  = sum_{t>=j} (d_t . a_j) q_t
    dv_j  = sum_{t>=j} (w_t . a_j) g_t
    da_j  = sum_{t>=j} (g_t . v_j) w_t + (q_t . k_j) d_t

Sums over j <= t need the states of the forward pass, sums over t >= j the states ``sum q_t^T d_t`` and
``sum g_t^T w_t`` [K, L] of what follows. The first kernel goes forward in time and leaves the gradient of the
logits, U', and each segment's sums of the second kind, the second kernel goes back. Where keys are values
(TIED) both states count as one, and dk is the gradient of both.

With FADES every product of t and j counts exp(age_j - age_t), and a sum of what follows stands at the
beginning of it. Both kernels leave what ages need besides: ``reads`` and ``adds``, each position's share in
sums over j <= t and over t >= j times its gradient.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.triton_kernels import (
    LENGTHS,
    aged,
    chunk_of,
    dropout_factor,
    earlier,
    first_read,
    first_state,
    grown,
    input_block,
    last_read,
    later,
    load_block,
    load_included,
    load_pack_weights,
    load_row,
    product,
    read_again,
    read_state,
    rows_inside,
    segment_of_head,
    store_block,
    store_row,
)


@triton.jit(do_not_specialize=LENGTHS)
def query_gradient_kernel(
    q, k, v, a, lse, g, dq, dlogits, used, reads, sums, later_sums, scratch, reciprocal, ages, spans,
    padding, packed_padding, seed, dropout, boost, scale, T, H, segments, chunks,
    x_b, x_h, x_t, a_b, a_h, a_t, K: tl.constexpr, L: tl.constexpr, TIED: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_PACKED_PADDING: tl.constexpr, HAS_DROPOUT: tl.constexpr, FADES: tl.constexpr, STATES: tl.constexpr,
    CARRY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dq; gradients of the logits and U', ``used`` [B H, T, L]; each segment's sums of q^T d and g^T w,
    ``later_sums`` [B H, segments, 1 or 2, K, L]; with FADES ``reads`` [B H, T].

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, x_start, a_start = segment_of_head(segments, H, x_b, x_h, a_b, a_h)
    OTHER: tl.constexpr = 0 if TIED else K * L
    SIZE: tl.constexpr = OTHER + K * L
    SIDES: tl.constexpr = 1 if TIED else 2
    at, column = input_block(x_t, K, BLOCK_T, BLOCK_K)
    since = 0.0  # the age of the chunk's beginning, from the segment's on
    if STATES:
        sums += bh * segments * SIZE
        scratch += (bh * segments + segment) * SIZE
        later_sums += (bh * segments + segment) * SIZE
        spans += bh * segments
        state = first_state(
            sums, scratch, spans, segment, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K, BLOCK_L
        )
        total = first_state(
            sums, later_sums, spans, 0, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K, BLOCK_L
        )
        other_state, other_total = state, total
        if not TIED:
            memory = scratch + OTHER
            other_state = first_state(
                sums + OTHER, memory, spans, segment, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K,
                BLOCK_L,
            )  # fmt: skip
            memory = later_sums + OTHER
            other_total = first_state(
                sums, memory, spans, 0, segments, K, L, SIZE, False, FADES, CARRY, BLOCK_K, BLOCK_L
            )
    for chunk in range(segment * chunks, (segment + 1) * chunks):
        start, rows, real, inverse, age, end = chunk_of(
            chunk, reciprocal + bh * T, ages + bh * T, padding + b * T, T, HAS_PADDING, FADES, BLOCK_T
        )
        inside = rows_inside(column, rows, BLOCK_T)
        x_place, a_place, row_place = x_start + start * x_t, a_start + start * a_t, bh * T + start
        # sum U dU, of the same weights that it is taken from: with L in blocks a round of its own finds it.
        mean, whole = tl.zeros((BLOCK_T,), dtype=tl.float32), tl.zeros((BLOCK_T,), dtype=tl.float32)
        for turn in range(1 if CARRY else 2):
            for first in range(0, L, BLOCK_L):
                x_a = load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L)
                logits = tl.zeros((BLOCK_T, BLOCK_L), dtype=tl.float32)
                of_weights = tl.zeros((BLOCK_T, BLOCK_L), dtype=tl.float32)
                for side in range(2):
                    x, y = tl.where(side == 0, q, g) + x_place, tl.where(side == 0, k, v) + x_place
                    if FADES:  # again: powers of it would be kept for both sides
                        age = load_row(ages + row_place, rows, BLOCK_T)
                    now = product(first_read(x, at, inside), tl.trans(first_read(y, at, inside)), PRECISION)
                    now = product(earlier(now, age, FADES), x_a, PRECISION)
                    if STATES:
                        s = read_state(state, scratch + side * OTHER, first, K, L, CARRY)
                        now += aged(product(read_again(x, at, inside), s, PRECISION), -age, FADES)
                        state, other_state = other_state, state
                    logits, of_weights = of_weights, now
                included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
                logits *= (inverse * scale)[:, None]
                weights = tl.exp(logits - load_row(lse + row_place, rows, BLOCK_T)[:, None])
                weights = tl.where(included, weights, 0.0)
                of_weights *= inverse[:, None]
                x_w = weights
                if HAS_DROPOUT:
                    factor = dropout_factor(seed, dropout, boost, row_place, first, L, BLOCK_T, BLOCK_L)
                    of_weights *= factor
                    x_w *= factor
                if CARRY:
                    mean = tl.sum(weights * of_weights, 1)
                elif turn == 0:
                    mean += tl.sum(weights * of_weights, 1)
                    whole += tl.sum(weights, 1)
                if CARRY or turn == 1:
                    store_block(used + row_place * L, L, rows, first, x_w, L, BLOCK_T, BLOCK_L)
                    of_weights = weights * (of_weights - mean[:, None])
                    store_block(dlogits + row_place * L, L, rows, first, of_weights, L, BLOCK_T, BLOCK_L)
            if not CARRY and turn == 0:
                mean /= tl.where(whole > 0.0, whole, 1.0)
        tl.debug_barrier()  # what one thread has stored another may load

        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . d_t
        to_x = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L)
            x_d = load_block(dlogits + row_place * L, L, rows, first, L, BLOCK_T, BLOCK_L).to(tl.float32)
            x_d *= (inverse * scale)[:, None]
            mixed += product(x_a, tl.trans(x_d), PRECISION)
            if STATES:
                s = read_state(state, scratch, first, K, L, CARRY)
                to_x += product(s, tl.trans(aged(x_d, -age, FADES)), PRECISION)
        mixed = later(mixed, age, FADES)
        to_x += product(tl.trans(read_again(k + x_place, at, inside)), mixed, PRECISION)
        to_x = tl.trans(to_x)
        tl.store(dq + x_place + at, to_x.to(dq.dtype.element_ty), mask=inside)
        if FADES:
            mean += tl.sum(read_again(q + x_place, at, inside).to(tl.float32) * to_x, 1)
            store_row(reads + row_place, rows, mean, BLOCK_T)
        if STATES:
            for side in range(2):
                x, y = tl.where(side == 0, q, g) + x_place, tl.where(side == 0, k, v) + x_place
                d = tl.where(side == 0, dlogits, used) + row_place * L
                for first in range(0, L, BLOCK_L):
                    if side < SIDES:
                        x_a = aged(
                            load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L),
                            age - end,
                            FADES,
                        )
                        own = scratch + side * OTHER
                        state = grown(
                            state, own, first, end, y, at, inside, x_a, K, L, FADES, CARRY, PRECISION
                        )
                    x_d = load_block(d, L, rows, first, L, BLOCK_T, BLOCK_L).to(tl.float32)
                    x_d *= (inverse * tl.where(side == 0, scale, 1.0))[:, None]
                    x_d = aged(x_d, -age - since, FADES)
                    later_own = later_sums + side * OTHER
                    total = grown(
                        total, later_own, first, 0.0, x, at, inside, x_d, K, L, False, CARRY, PRECISION
                    )
                state, other_state, total, other_total = other_state, state, other_total, total
            if TIED:
                other_state = state
            tl.debug_barrier()
        if FADES:
            since += end
    if STATES and CARRY:
        if TIED:
            total += other_total
        else:
            store_block(later_sums + OTHER, L, K, 0, other_total, L, BLOCK_K, BLOCK_L)
        store_block(later_sums, L, K, 0, total, L, BLOCK_K, BLOCK_L)


@triton.jit(do_not_specialize=LENGTHS)
def key_gradient_kernel(
    q, k, v, a, g, dlogits, used, dk, dv, da, adds, sums, scratch, reciprocal, ages, spans, padding, scale,
    T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, TIED: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr,
    STATES: tl.constexpr, CARRY: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv (TIED: their sum in dk), da, and with FADES ``adds`` [B H, T], from what the first kernel left,
    chunks in reverse order, and in each first what goes through q and k, then what goes through g and v.

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, x_start, a_start = segment_of_head(segments, H, x_b, x_h, a_b, a_h)
    OTHER: tl.constexpr = 0 if TIED else K * L
    SIZE: tl.constexpr = OTHER + K * L
    at, column = input_block(x_t, K, BLOCK_T, BLOCK_K)
    if STATES:
        sums += bh * segments * SIZE
        scratch += (bh * segments + segment) * (2 * K * L)
        spans += bh * segments
        state = first_state(
            sums, scratch, spans, segment, segments, K, L, SIZE, True, FADES, CARRY, BLOCK_K, BLOCK_L
        )
        last = segments - 1 if TIED else segment  # TIED: what follows the segment counts once
        memory = scratch + K * L
        other_state = first_state(
            sums + OTHER, memory, spans, last, segments, K, L, SIZE, True, FADES, CARRY, BLOCK_K, BLOCK_L
        )
    for step in range(chunks):
        start, rows, real, inverse, age, end = chunk_of(
            (segment + 1) * chunks - 1 - step, reciprocal + bh * T, ages + bh * T, padding + b * T, T,
            HAS_PADDING, FADES, BLOCK_T,
        )  # fmt: skip
        inside = rows_inside(column, rows, BLOCK_T)
        x_place, a_place, row_place = x_start + start * x_t, a_start + start * a_t, bh * T + start
        to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for side in range(2):
            x, y = tl.where(side == 0, q, g) + x_place, tl.where(side == 0, k, v) + x_place
            d = tl.where(side == 0, dlogits, used) + row_place * L
            mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # d_t . a_j
            if not TIED:
                to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
            for first in range(0, L, BLOCK_L):
                x_a = load_pack_weights(a + a_place, a_t, real, rows, first, L, BLOCK_L)
                x_d = load_block(d, L, rows, first, L, BLOCK_T, BLOCK_L).to(tl.float32)
                x_d *= (inverse * tl.where(side == 0, scale, 1.0))[:, None]
                if FADES:
                    age = load_row(ages + row_place, rows, BLOCK_T)
                mixed += product(x_d, tl.trans(x_a), PRECISION)
                scores = product(first_read(y, at, inside), tl.trans(first_read(x, at, inside)), PRECISION)
                to_a = product(later(scores, age, FADES), x_d, PRECISION)
                if STATES:
                    memory = scratch + side * (K * L)
                    now = read_state(state, memory, first, K, L, CARRY)
                    to_y += product(now, tl.trans(aged(x_a, age - end, FADES)), PRECISION)
                    of_y = product(read_again(y, at, inside), now, PRECISION)
                    to_a += aged(of_y, age - end, FADES)
                    state = grown(
                        state, memory, first, end, x, at, inside, aged(x_d, -age, FADES), K, L, FADES, CARRY,
                        PRECISION,
                    )  # fmt: skip
                # The first side's part lies where the sum of both goes.
                to_a += load_block(da + a_place, a_t, side * rows, first, L, BLOCK_T, BLOCK_L)
                to_a = tl.where(real[:, None], to_a, 0.0)
                store_block(da + a_place, a_t, rows, first, to_a, L, BLOCK_T, BLOCK_L)
            if FADES:
                age = load_row(ages + row_place, rows, BLOCK_T)
            mixed = earlier(mixed, age, FADES)
            to_y += product(tl.trans(last_read(x, at, inside)), mixed, PRECISION)
            if FADES:
                add = tl.sum(last_read(y, at, inside).to(tl.float32) * tl.trans(to_y), 1)
                if not TIED:
                    add += load_row(adds + row_place, side * rows, BLOCK_T)
                store_row(adds + row_place, rows, add, BLOCK_T)
            dy = tl.where(side == 0, dk, dv) + x_place
            tl.store(dy + at, tl.trans(to_y).to(dk.dtype.element_ty), mask=inside & (side >= TIED))
            if STATES:
                state, other_state = other_state, state
        tl.debug_barrier()
