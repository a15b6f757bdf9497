"""Triton kernels of the backward pass of causal Luna attention.

With r = 1/t, g the gradient of the output and U' the unpack weights after dropout:

    dU'_t = r_t sum_{j<=t} (g_t . v_j) a_j            w_t = r_t U'_t
    dq_t  = sum_{j<=t} (d_t . a_j) k_j                d_t = r_t scale times the gradient of the logits
    dk_j  = sum_{t>=j} (d_t . a_j) q_t
    dv_j  = sum_{t>=j} (w_t . a_j) g_t
    da_j  = sum_{t>=j} (g_t . v_j) w_t + (q_t . k_j) d_t

Sums over j <= t need the states of the forward pass, sums over t >= j the states ``sum q_t^T d_t`` and
``sum g_t^T w_t`` [K, L] of what follows. The first kernel goes forward in time and leaves d, w and the second
kind of sums, the second kernel goes back.

With FADES every product of t and j counts exp(age_j - age_t), and a sum of what follows stands at the
beginning of it. Both kernels leave what ages need besides: ``reads`` and ``adds``, each position's share in
sums over j <= t and over t >= j times its gradient.
"""

import triton
import triton.language as tl

from luna_fairseq.ops.causal_luna.triton_kernels import (
    EXCLUDED,
    LENGTHS,
    aged,
    aged_state,
    causal,
    chunk_place,
    dropout_factor,
    first_state,
    input_scores,
    inputs_of_head,
    load_ages,
    load_block,
    load_included,
    load_pack_weights,
    load_real,
    load_reciprocal,
    product,
    row_of_times,
    segment_of_head,
    store_block,
)


@triton.jit(do_not_specialize=LENGTHS)
def query_gradient_kernel(
    q, k, v, a, g, dq, d, w, reads, states, suffix, reciprocal, ages, padding, packed_padding, seed,
    dropout, boost, scale, T, H, segments, chunks,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, a_b, a_h, a_t, g_b, g_h, g_t, dq_b, dq_h, dq_t,
    K: tl.constexpr, L: tl.constexpr, HAS_PADDING: tl.constexpr, HAS_PACKED_PADDING: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, FADES: tl.constexpr, CARRY: tl.constexpr, LOADED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    NATIVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq; d and w [B H, T, L]; each segment's sums of q^T d and g^T w, ``suffix`` [B H, segments, 2, K, L];
    with FADES ``reads`` [B H, T].

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, h = segment_of_head(segments, H)
    q, k, v, a = inputs_of_head(q, k, v, a, b, h, q_b, q_h, k_b, k_h, v_b, v_h, a_b, a_h)
    g += b * g_b + h * g_h
    dq += b * dq_b + h * dq_h
    states += (bh * segments + segment) * (2 * K * L)
    suffix += (bh * segments + segment) * (2 * K * L)
    times = row_of_times(b, h, bh, HAS_PADDING, FADES) * T
    since = 0.0  # the age of the chunk's beginning, from the segment's on
    if CARRY:
        key_state = first_state(states, K, L, LOADED, BLOCK_K, BLOCK_L)
        value_state = first_state(states + K * L, K, L, LOADED, BLOCK_K, BLOCK_L)
        query_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
        output_sum = tl.zeros((BLOCK_K, BLOCK_L), dtype=tl.float32)
    for chunk in range(chunks):
        start, rows, place = chunk_place(segment * chunks + chunk, T, BLOCK_T)
        real = load_real(padding + b * T + place, rows, HAS_PADDING, BLOCK_T)
        inverse = load_reciprocal(reciprocal + times, start, rows, HAS_PADDING or FADES, BLOCK_T)
        age, end = load_ages(ages + times, start, T, FADES, BLOCK_T)
        x_q = load_block(q + place * q_t, q_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_k = load_block(k + place * k_t, k_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_v = load_block(v + place * v_t, v_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_g = load_block(g + place * g_t, g_t, rows, 0, K, BLOCK_T, BLOCK_K)
        scores = causal(input_scores(x_q, x_k, NATIVE, PRECISION), age, FADES, BLOCK_T)
        value_scores = causal(input_scores(x_g, x_v, NATIVE, PRECISION), age, FADES, BLOCK_T)

        # The softmax's normaliser and sum_l U_l dU_l need all of L before the first gradient.
        top = tl.full((BLOCK_T,), EXCLUDED, dtype=tl.float32)
        total = tl.zeros((BLOCK_T,), dtype=tl.float32)
        mean = tl.zeros((BLOCK_T,), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + place * a_t, a_t, real, rows, first, L, BLOCK_T, BLOCK_L)
            included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
            logits = product(scores, x_a, PRECISION)
            dweights = product(value_scores, x_a, PRECISION)
            if LOADED and not CARRY:
                key_state = load_block(states, L, K, first, L, BLOCK_K, BLOCK_L)
                value_state = load_block(states + K * L, L, K, first, L, BLOCK_K, BLOCK_L)
            if LOADED or CARRY:
                logits += product(aged(x_q, -age, FADES), key_state, PRECISION)
                dweights += product(aged(x_g, -age, FADES), value_state, PRECISION)
            logits = tl.where(included, logits * (inverse * scale)[:, None], EXCLUDED)
            if HAS_DROPOUT:
                dweights *= dropout_factor(seed, dropout, boost, bh * T + place, first, L, BLOCK_T, BLOCK_L)
            new_top = tl.maximum(top, tl.max(logits, 1))
            shrink = tl.exp(top - new_top)
            weights = tl.where(included, tl.exp(logits - new_top[:, None]), 0.0)
            top = new_top
            total = total * shrink + tl.sum(weights, 1)
            mean = mean * shrink + tl.sum(weights * dweights, 1)
        total = tl.where(total > 0.0, total, 1.0)
        mean /= total

        # The same again for the gradients. Where one block is all of L, the compiler finds it already
        # computed.
        mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # d_t . a_j
        y = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + place * a_t, a_t, real, rows, first, L, BLOCK_T, BLOCK_L)
            included = load_included(packed_padding + b * L, first, L, HAS_PACKED_PADDING, BLOCK_L)
            logits = product(scores, x_a, PRECISION)
            dweights = product(value_scores, x_a, PRECISION)
            if LOADED and not CARRY:
                key_state = load_block(states, L, K, first, L, BLOCK_K, BLOCK_L)
                value_state = load_block(states + K * L, L, K, first, L, BLOCK_K, BLOCK_L)
            if LOADED or CARRY:
                logits += product(aged(x_q, -age, FADES), key_state, PRECISION)
                dweights += product(aged(x_g, -age, FADES), value_state, PRECISION)
            logits = tl.where(included, logits * (inverse * scale)[:, None], EXCLUDED)
            weights = tl.where(included, tl.exp(logits - top[:, None]), 0.0) / total[:, None]
            x_w = weights * inverse[:, None]
            if HAS_DROPOUT:
                factor = dropout_factor(seed, dropout, boost, bh * T + place, first, L, BLOCK_T, BLOCK_L)
                dweights *= factor
                x_w *= factor
            x_d = weights * (dweights - mean[:, None]) * (inverse * inverse * scale)[:, None]
            store_block(d + (bh * T + place) * L, L, rows, first, x_d, L, BLOCK_T, BLOCK_L)
            store_block(w + (bh * T + place) * L, L, rows, first, x_w, L, BLOCK_T, BLOCK_L)
            mixed += product(x_d, tl.trans(x_a), PRECISION)
            if LOADED or CARRY:
                y += product(aged(x_d, -age, FADES), tl.trans(key_state), PRECISION)
            x_d, x_w = aged(x_d, -age - since, FADES), aged(x_w, -age - since, FADES)
            if CARRY:
                added = aged(x_a, age - end, FADES)
                key_state = aged_state(key_state, end, FADES) + product(tl.trans(x_k), added, PRECISION)
                value_state = aged_state(value_state, end, FADES) + product(tl.trans(x_v), added, PRECISION)
                query_sum += product(tl.trans(x_q), x_d, PRECISION)
                output_sum += product(tl.trans(x_g), x_w, PRECISION)
            elif LOADED:
                query_part = product(tl.trans(x_q), x_d, PRECISION)
                output_part = product(tl.trans(x_g), x_w, PRECISION)
                store_block(suffix, L, K, first, query_part, L, BLOCK_K, BLOCK_L)
                store_block(suffix + K * L, L, K, first, output_part, L, BLOCK_K, BLOCK_L)
        y += product(causal(mixed, age, FADES, BLOCK_T), x_k, PRECISION)
        store_block(dq + place * dq_t, dq_t, rows, 0, y, K, BLOCK_T, BLOCK_K)
        if FADES:
            read = mean * inverse + tl.sum(x_q.to(tl.float32) * y, 1)
            store_row(reads + bh * T + place, rows, read, BLOCK_T)
            since += end
    if CARRY and LOADED:
        store_block(suffix, L, K, 0, query_sum, L, BLOCK_K, BLOCK_L)
        store_block(suffix + K * L, L, K, 0, output_sum, L, BLOCK_K, BLOCK_L)


@triton.jit(do_not_specialize=LENGTHS)
def key_gradient_kernel(
    q, k, v, a, g, d, w, dk, dv, da, adds, suffix, ages, padding, T, H, segments, chunks,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, a_b, a_h, a_t, g_b, g_h, g_t,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t, da_b, da_h, da_t,
    K: tl.constexpr, L: tl.constexpr, HAS_PADDING: tl.constexpr, FADES: tl.constexpr, CARRY: tl.constexpr,
    LOADED: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
    NATIVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv, da, and with FADES ``adds`` [B H, T], from d, w and the sums over what follows each segment,
    chunks in reverse order.

    Grid: B H x segments, the last fastest.
    """
    segment, bh, b, h = segment_of_head(segments, H)
    q, k, v, a = inputs_of_head(q, k, v, a, b, h, q_b, q_h, k_b, k_h, v_b, v_h, a_b, a_h)
    g += b * g_b + h * g_h
    dk += b * dk_b + h * dk_h
    dv += b * dv_b + h * dv_h
    da += b * da_b + h * da_h
    suffix += (bh * segments + segment) * (2 * K * L)
    ages += row_of_times(b, h, bh, HAS_PADDING, FADES) * T
    if CARRY:
        query_sum = first_state(suffix, K, L, LOADED, BLOCK_K, BLOCK_L)
        output_sum = first_state(suffix + K * L, K, L, LOADED, BLOCK_K, BLOCK_L)
    for step in range(chunks):
        start, rows, place = chunk_place(segment * chunks + (chunks - 1 - step), T, BLOCK_T)
        real = load_real(padding + b * T + place, rows, HAS_PADDING, BLOCK_T)
        x_q = load_block(q + place * q_t, q_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_k = load_block(k + place * k_t, k_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_v = load_block(v + place * v_t, v_t, rows, 0, K, BLOCK_T, BLOCK_K)
        x_g = load_block(g + place * g_t, g_t, rows, 0, K, BLOCK_T, BLOCK_K)
        age, end = load_ages(ages, start, T, FADES, BLOCK_T)
        # Transposed, [j, t] with t >= j.
        scores = anticausal(input_scores(x_k, x_q, NATIVE, PRECISION), age, FADES, BLOCK_T)
        value_scores = anticausal(input_scores(x_v, x_g, NATIVE, PRECISION), age, FADES, BLOCK_T)

        key_mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . d_t
        value_mixed = tl.zeros((BLOCK_T, BLOCK_T), dtype=tl.float32)  # a_j . w_t
        y_k = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
        y_v = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
        for first in range(0, L, BLOCK_L):
            x_a = load_pack_weights(a + place * a_t, a_t, real, rows, first, L, BLOCK_T, BLOCK_L)
            x_d = load_block(d + (bh * T + place) * L, L, rows, first, L, BLOCK_T, BLOCK_L)
            x_w = load_block(w + (bh * T + place) * L, L, rows, first, L, BLOCK_T, BLOCK_L)
            key_mixed += product(x_a, tl.trans(x_d), PRECISION)
            value_mixed += product(x_a, tl.trans(x_w), PRECISION)
            y_a = product(scores, x_d, PRECISION) + product(value_scores, x_w, PRECISION)
            if LOADED and not CARRY:
                query_sum = load_block(suffix, L, K, first, L, BLOCK_K, BLOCK_L)
                output_sum = load_block(suffix + K * L, L, K, first, L, BLOCK_K, BLOCK_L)
            if LOADED or CARRY:
                later = product(x_k, query_sum, PRECISION) + product(x_v, output_sum, PRECISION)
                y_a += aged(later, age - end, FADES)
                added = aged(x_a, age - end, FADES)
                y_k += product(added, tl.trans(query_sum), PRECISION)
                y_v += product(added, tl.trans(output_sum), PRECISION)
            if CARRY:
                x_d, x_w = aged(x_d, -age, FADES), aged(x_w, -age, FADES)
                query_sum = aged_state(query_sum, end, FADES) + product(tl.trans(x_q), x_d, PRECISION)
                output_sum = aged_state(output_sum, end, FADES) + product(tl.trans(x_g), x_w, PRECISION)
            y_a = tl.where(real[:, None], y_a, 0.0)
            store_block(da + place * da_t, da_t, rows, first, y_a, L, BLOCK_T, BLOCK_L)
        y_k += product(anticausal(key_mixed, age, FADES, BLOCK_T), x_q, PRECISION)
        y_v += product(anticausal(value_mixed, age, FADES, BLOCK_T), x_g, PRECISION)
        if FADES:
            add = tl.sum(x_k.to(tl.float32) * y_k, 1) + tl.sum(x_v.to(tl.float32) * y_v, 1)
            store_row(adds + bh * T + place, rows, add, BLOCK_T)
        store_block(dk + place * dk_t, dk_t, rows, 0, y_k, K, BLOCK_T, BLOCK_K)
        store_block(dv + place * dv_t, dv_t, rows, 0, y_v, K, BLOCK_T, BLOCK_K)


@triton.jit
def store_row(base, rows, x, BLOCK_T: tl.constexpr):
    """A number of each of a chunk's positions."""
    row = tl.arange(0, BLOCK_T)
    tl.store(base + row, x, mask=row < rows)


@triton.jit
def anticausal(x, age, FADES: tl.constexpr, BLOCK_T: tl.constexpr):
    """x [j, t] where t >= j, as much as is left of j there, zero elsewhere."""
    row = tl.arange(0, BLOCK_T)
    if FADES:
        x *= tl.exp(tl.minimum(age[:, None] - age[None, :], 0.0))
    return tl.where(row[None, :] >= row[:, None], x, 0.0)
