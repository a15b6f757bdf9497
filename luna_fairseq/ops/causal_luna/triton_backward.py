"""Triton kernels of the backward pass of causal Luna attention.

Position t has a query q_t, a key k_t, a value v_t, pack weights a_t and an output gradient g_t. u_t are its
unpack weights after dropout, and D_tj is the decay from position j to position t (1 if there is no decay).
With the scaled unpack weights ``w_t = u_t / t``, the gradients are::

    du_t = (1 / t) sum_{j<=t} D_tj (g_t . v_j) a_j
    d_t  = (K^-0.5 / t) times the gradient of the softmax logits, which follows from du_t
    dq_t = sum_{j<=t} D_tj (d_t . a_j) k_j
    dk_j = sum_{t>=j} D_tj (d_t . a_j) q_t
    dv_j = sum_{t>=j} D_tj (w_t . a_j) g_t
    da_j = sum_{t>=j} D_tj ((g_t . v_j) w_t + (q_t . k_j) d_t)

Sums over j <= t use the states of the forward pass, ``sum k_j^T a_j`` and ``sum v_j^T a_j``. Sums over t >= j
use states of later positions, ``sum q_t^T d_t`` and ``sum g_t^T w_t``. All states are [K, L] matrices: head
width K, and L rows of the packed sequence P.

Each program processes one segment, a run of chunks of BLOCK_T positions. The first kernel processes chunks in
order. It stores the gradients of the logits, the unpack weights, and the sums over each segment that the
states of later positions need. The second kernel processes chunks in reverse order. If keys and values are
the same tensor (SIDES = 1), dk is the sum of both gradients.

With decay, D_tj is exp(age_j - age_t), where the age of a position is the negative log decay accumulated
since the start of its chunk. Position j thus scales the terms that it adds to the sums by exp(age_j), and
position t scales the sums that it uses by exp(-age_t) / t. The kernels return the derivatives of the loss
with respect to the logs of both scales, as ``adds`` and ``reads``. The gradients of the ages and of 1 / t
follow from them.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.triton_kernels import (  # isort: skip
    AGAIN, BLOCK_L, LAST, LENGTHS, SWAPPED, causal_sums, apply_decay, locate_chunk, dropout_factor,
    initial_states, advance_states, load_row_mask, load_rows, block_offsets, product, load_chunk, read_state,
    causal_scores, load_times,
)  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def query_gradient_kernel(
    q, k, v, a, lse, g, dq, dlogits, used, reads, sums, later_sums, scratch, reciprocal, ages, spans, padding,
    packed_padding, seed, dropout, boost, T, H, segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t,
    K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr, STATES: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the queries, and the tensors that the second backward kernel needs.

    For the query q_t, the keys k_j, the values v_j, the pack weights a_j, the unpack weights ``p_t =
    softmax(logits_t)``, the dropout factors m_t and the output gradient g_t, the kernel computes::

        dp_t = (m_t / t) sum_{j<=t} D_tj (g_t . v_j) a_j               [L]
        dlogits_t = p_t (dp_t - p_t . dp_t)                          [L]
        d_t = (K^-0.5 / t) dlogits_t,  w_t = m_t p_t / t               [L]
        dq_t = sum_{j<=t} D_tj (d_t . a_j) k_j                       [K]

    D_tj is the decay from position j to position t (1 without decay).
    """
    TURNS: tl.constexpr = 1 if WIDTH == BLOCK_L else 2
    since = 0.0  # age from the beginning of the segment to the beginning of the chunk
    state, other, scratch = initial_states(sums, scratch, spans, segments, -1, SIDES, STATES, WIDTH, BLOCK_K)
    total, other_total, later_sums = initial_states(sums, later_sums, spans, 1, -1, 2, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, offsets, mask = locate_chunk(
            i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        rows = row + tl.arange(0, BLOCK_T)
        # The softmax gradient needs the mean of dU, weighted by U. With several blocks of L, the first turn
        # computes this mean.
        mean = tl.zeros((BLOCK_T,), dtype=tl.float32)
        whole, share = mean, mean
        scores = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)
        other_scores = tl.full((BLOCK_T, BLOCK_T), SWAPPED, dtype=tl.float32)
        for side in range(2):
            x, y = tl.where(side == 0, q, g) + x_offset, tl.where(side == 0, k, v) + x_offset
            found = causal_scores(x, y, offsets, mask, age, 0, PRECISION)
            scores, other_scores = other_scores, found
        for turn in range(TURNS):
            for first in range(0, WIDTH, BLOCK_L):
                x_a = load_rows(a + a_offset, a_t, real, first, L, BLOCK_L)
                s = read_state(state, scratch, first, STATES, WIDTH)
                logits = causal_sums(q + x_offset, offsets, mask, scores, x_a, age, s, STATES, PRECISION)
                s = read_state(other, scratch + (SIDES - 1) * BLOCK_K * WIDTH, first, STATES, WIDTH)
                grad_weights = causal_sums(
                    g + x_offset, offsets, mask, other_scores, x_a, age, s, STATES, PRECISION
                )
                included = load_row_mask(packed_padding, b, first, L, BLOCK_L)
                logits *= (inverse * K**-0.5)[:, None]
                weights = tl.where(included, tl.exp(logits - tl.load(lse + rows)[:, None]), 0.0)
                factor = dropout_factor(seed, dropout, boost, row, first, WIDTH, BLOCK_T, BLOCK_L)
                grad_weights *= inverse[:, None] * factor
                if turn == 0:
                    mean += tl.sum(weights * grad_weights, 1)
                    whole += tl.sum(weights, 1)
                if turn == TURNS - 1:
                    block = row * WIDTH + block_offsets(WIDTH, first, BLOCK_T, BLOCK_L)
                    d = weights * (grad_weights - mean[:, None])
                    tl.store(used + block, weights * factor)
                    tl.store(dlogits + block, d)
                    share += tl.sum(logits * d, 1)
            if turn < TURNS - 1:
                mean /= tl.where(whole > 0.0, whole, 1.0)
        if ages is not None:
            tl.store(reads + rows, mean + share)
        tl.debug_barrier()  # another thread may load what this thread has stored

        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . d_t
        to_x = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        for first in range(0, WIDTH, BLOCK_L):
            x_a = load_rows(a + a_offset, a_t, real, first, L, BLOCK_L)
            x_d = tl.load(dlogits + row * WIDTH + block_offsets(WIDTH, first, BLOCK_T, BLOCK_L)).to(
                tl.float32
            )
            x_d *= (inverse * K**-0.5)[:, None]
            mixed += product(x_a, tl.trans(x_d), PRECISION)
            if STATES:
                s = read_state(state, scratch, first, STATES, WIDTH)
                to_x += product(s, tl.trans(x_d * tl.exp(-age)[:, None]), PRECISION)
        to_x += product(
            tl.trans(load_chunk(k + x_offset, offsets, mask, AGAIN)), apply_decay(mixed, age, 1), PRECISION
        )
        tl.store(dq + x_offset + offsets, tl.trans(to_x), mask=mask)
        if STATES:
            left, later = tl.exp(age - end), inverse * tl.exp(-age - since)
            state, other = advance_states(
                state, other, scratch, k + x_offset, v + x_offset, offsets, mask, a + a_offset,
                a + a_offset, a_t, real, left, left, end, L, SIDES, WIDTH, PRECISION,
            )  # fmt: skip
            total, other_total = advance_states(
                total, other_total, later_sums, q + x_offset, g + x_offset, offsets, mask,
                dlogits + row * WIDTH, used + row * WIDTH, WIDTH, exists, later * K**-0.5, later, 0.0,
                L, 2, WIDTH, PRECISION,
            )  # fmt: skip
            tl.debug_barrier()
        since += end
    if STATES and WIDTH == BLOCK_L:
        pointers = later_sums + block_offsets(WIDTH, 0, BLOCK_K, BLOCK_L)
        tl.store(pointers, total)
        tl.store(pointers + BLOCK_K * WIDTH, other_total)


@triton.jit(do_not_specialize=LENGTHS)
def key_gradient_kernel(
    q, k, v, a, g, dlogits, used, dk, dv, da, adds, sums, scratch, reciprocal, ages, spans, padding, T, H,
    segments, chunks, x_b, x_h, x_t, a_b, a_h, a_t, K: tl.constexpr, L: tl.constexpr, SIDES: tl.constexpr,
    STATES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys, values and pack weights of causal Luna attention.

    For the queries q_t, the output gradients g_t, the scaled gradients d_t of the logits and the scaled
    unpack weights w_t, the kernel computes::

        dk_j = sum_{t>=j} D_tj (d_t . a_j) q_t                       [K]
        dv_j = sum_{t>=j} D_tj (w_t . a_j) g_t                       [K]
        da_j = sum_{t>=j} D_tj ((q_t . k_j) d_t + (g_t . v_j) w_t)   [L]

    D_tj is the decay from position j to position t (1 without decay).
    """
    state, other, scratch = initial_states(sums, scratch, spans, segments, 1, 2, STATES, WIDTH, BLOCK_K)
    for i in range(chunks):
        row, b, start, x_offset, a_offset, exists, real, offsets, mask = locate_chunk(
            chunks - 1 - i, chunks, segments, H, T, x_b, x_h, x_t, a_b, a_h, a_t, padding, K, BLOCK_T, BLOCK_K
        )
        inverse, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
        to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32)
        for side in range(2):
            x, y = tl.where(side == 0, q, g) + x_offset, tl.where(side == 0, k, v) + x_offset
            mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # d_t . a_j
            share = tl.zeros((BLOCK_T,), dtype=tl.float32)
            to_y = tl.zeros((BLOCK_K, BLOCK_T), dtype=tl.float32) if SIDES == 2 else to_y
            scores = causal_scores(y, x, offsets, mask, age, 1, PRECISION)
            for first in range(0, WIDTH, BLOCK_L):
                x_a = load_rows(a + a_offset, a_t, real, first, L, BLOCK_L)
                d, memory = tl.where(side == 0, dlogits, used), scratch + side * (BLOCK_K * WIDTH)
                x_d = load_rows(d + row * WIDTH, WIDTH, exists, first, L, BLOCK_L)
                x_d *= (inverse * tl.where(side == 0, K**-0.5, 1.0))[:, None]
                _, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
                mixed += product(x_d, tl.trans(x_a), PRECISION)
                state = read_state(state, memory, first, STATES, WIDTH)
                to_a = causal_sums(y, offsets, mask, scores, x_d, end - age, state, STATES, PRECISION)
                if STATES:
                    to_y += product(state, tl.trans(x_a * tl.exp(age - end)[:, None]), PRECISION)
                # The second side adds to the gradient that the first side has stored.
                to_a += load_rows(da + a_offset, a_t, real & (side > 0), first, L, BLOCK_L)
                stored = real[:, None] & (first + tl.arange(0, BLOCK_L) < L)[None, :]
                share += tl.sum(x_a * to_a, 1)
                tl.store(da + a_offset + block_offsets(a_t, first, BLOCK_T, BLOCK_L), to_a, mask=stored)
                if STATES:
                    x_d *= tl.exp(-age)[:, None]
                    state *= tl.exp(-end)
                    state += product(tl.trans(load_chunk(x, offsets, mask, AGAIN)), x_d, PRECISION)
                    if WIDTH > BLOCK_L:
                        tl.store(memory + block_offsets(WIDTH, first, BLOCK_K, BLOCK_L), state)
            _, age, end = load_times(row, start, reciprocal, ages, BLOCK_T)
            to_y += product(
                tl.trans(load_chunk(x, offsets, mask, LAST)), apply_decay(mixed, age, 0), PRECISION
            )
            if ages is not None:
                tl.store(adds + row + tl.arange(0, BLOCK_T), share)
            dy = tl.where(side == 0, dk, dv) + x_offset
            tl.store(dy + offsets, tl.trans(to_y), mask=mask & (side + SIDES > 1))
            state, other = other, state
            tl.debug_barrier()  # the next side loads what other threads have stored in da and scratch
