/* Products of a single token with vectors of 512 or of 128 bits (256: int_rows.h). A tile would be used once, and transposing it would
 * take most of the time. So 16 bytes of a row stay together, four rows (one on NEON) in a vector, and only sums are transposed. The
 * integers are those of int_tile.h. */
#ifndef HEADRACE_INT_ONE_TOKEN_H
#define HEADRACE_INT_ONE_TOKEN_H

#include "int_tile.h"

#define ONE_TOKEN_TILES (INT_LANES > 1 && INT_LANES != 8)

#if ONE_TOKEN_TILES
/* sum + scale of a group * 16 columns (or 32, with w1) of the rows of quarter e. */
#if SIMD_NEON
ALWAYS_INLINE ints add_one_piece(ints sum, const tile *t, int group, int lane, int e, ints w, const int8_t *x) {
    return i_add(sum, i_mul(i_dot(i_set1(0), w, i_repeat16(x)), i_set1(t->scale[group][lane + e])));
}

ALWAYS_INLINE ints add_two_pieces(ints sum, const tile *t, int group, int lane, int e, ints w0, ints w1, const int8_t *x) {
    ints dot = i_dot(i_dot(i_set1(0), w0, i_repeat16(x)), w1, i_repeat16(x + 16));
    return i_add(sum, i_mul(dot, i_set1(t->scale[group][lane + e])));
}
#else
/* A scale in both halves of each lane, of the rows of quarter e. */
#define QUARTER_SCALE(t, group, lane, e) i_spread(both_halves(i_load((t)->scale[group] + (lane))), e)

ALWAYS_INLINE ints both_halves(ints scale) {
    return DIRECT_DOT ? in_halves(scale, scale) : scale;
}

ALWAYS_INLINE ints add_one_piece(ints sum, const tile *t, int group, int lane, const int e, ints w, const int8_t *x) {
    return i_pairs(sum, i_products(w, i_repeat16(x)), QUARTER_SCALE(t, group, lane, e));
}

ALWAYS_INLINE ints add_two_pieces(ints sum, const tile *t, int group, int lane, const int e, ints w0, ints w1, const int8_t *x) {
    ints products = i_add16(i_products(w0, i_repeat16(x)), i_products(w1, i_repeat16(x + 16)));
    return i_pairs(sum, products, QUARTER_SCALE(t, group, lane, e));
}
#endif

/* isum of quarter e of a block of Q4_K (fifth = 0) or Q5_K (1). */
ALWAYS_INLINE ints quarter_4_5(int fifth, const uint8_t *row, size_t stride, const tile *t, int lane, const int8_t *x, const int e) {
    ints four = EACH_BYTE(0x0f), one = EACH_BYTE(0x10), sum = i_set1(0), high[2] = {sum, sum};
    UNROLL
    for (int i = 0; fifth && i < 2; i++) {
        high[i] = quarter_rows(row + 16 + 16 * i, stride);
    }
    const uint8_t *nibbles = row + (fifth ? 48 : 16);
    UNROLL
    for (int p = 0; p < 4; p++) {
        ints low_w[2], high_w[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            ints w = quarter_rows(nibbles + 32 * p + 16 * i, stride);
            low_w[i] = i_and(w, four), high_w[i] = i_and(i_right(w, 4), four);
            if (fifth) {
                low_w[i] = i_or(low_w[i], i_and(p < 2 ? i_left(high[i], 4 - 2 * p) : i_right(high[i], 2 * p - 4), one));
                high_w[i] = i_or(high_w[i], i_and(p < 2 ? i_left(high[i], 3 - 2 * p) : i_right(high[i], 2 * p - 3), one));
            }
        }
        sum = add_two_pieces(sum, t, 2 * p, lane, e, low_w[0], low_w[1], x + 64 * p);
        sum = add_two_pieces(sum, t, 2 * p + 1, lane, e, high_w[0], high_w[1], x + 64 * p + 32);
    }
    return sum;
}

ALWAYS_INLINE ints quarter_6(const uint8_t *row, size_t stride, const tile *t, int lane, const int8_t *x, const int e) {
    ints four = EACH_BYTE(0x0f), two = EACH_BYTE(0x30), sum = i_set1(0);
    UNROLL
    for (int p = 0; p < 4; p++) {
        int first = p / 2 * 8 + p % 2; /* group of 16 columns; three more follow, two apart */
        ints low = quarter_rows(row + 64 * (p / 2) + 16 * (p % 2), stride), next = quarter_rows(row + 64 * (p / 2) + 32 + 16 * (p % 2), stride);
        ints high = quarter_rows(row + 128 + 16 * p, stride);
        ints w[4] = {i_or(i_and(low, four), i_and(i_left(high, 4), two)), i_or(i_and(next, four), i_and(i_left(high, 2), two)),
                     i_or(i_and(i_right(low, 4), four), i_and(high, two)), i_or(i_and(i_right(next, 4), four), i_and(i_right(high, 2), two))};
        UNROLL
        for (int i = 0; i < 4; i++) {
            int group = first + 2 * i;
            sum = add_one_piece(sum, t, group, lane, e, w[i], x + 16 * group);
        }
    }
    return sum;
}

/* 32 columns of quarter e: 16 bytes at a time, or 16 of nibbles (through a table, if there is one). */
ALWAYS_INLINE ints quarter_32(kind k, const uint8_t *row, size_t stride, const int8_t *table, const int8_t *x) {
    ints w[2], four = EACH_BYTE(0x0f), sum = i_set1(0);
    w[0] = quarter_rows(row, stride);
    if (k.nibbles) {
        w[1] = i_and(i_right(w[0], 4), four), w[0] = i_and(w[0], four);
    } else {
        w[1] = quarter_rows(row + 16, stride);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        w[i] = table ? i_lookup(table, w[i]) : w[i];
#if DIRECT_DOT
        sum = i_dot(sum, k.is_signed ? SIGNED_BYTES(w[i]) : w[i], i_repeat16(x + 16 * i));
#else
        ints products = k.is_signed ? i_signed_products(w[i], i_repeat16(x + 16 * i)) : i_products(w[i], i_repeat16(x + 16 * i));
        sum = i_pairs(sum, products, i_set1(0x00010001));
#endif
    }
    return sum;
}

ALWAYS_INLINE ints one_32(kind k, const uint8_t *rows, size_t stride, const int8_t *table, const int8_t *x) {
    ints sums[4];
    UNROLL
    for (size_t e = 0; e < 4; e++) {
        sums[e] = quarter_32(k, rows + e * stride, stride, table, x);
    }
    return i_sum_quarters(sums);
}

#define ONE_TOKEN(name, unpack_head, quarter)                                                                                        \
    ALWAYS_INLINE ints one_##name(const uint8_t *rows, size_t stride, tile *t, int lane, const int8_t *x) {                          \
        unpack_head(rows, stride, t, lane);                                                                                         \
        ints sums[4] = {quarter(rows, stride, t, lane, x, 0), quarter(rows + stride, stride, t, lane, x, 1),                         \
                        quarter(rows + 2 * stride, stride, t, lane, x, 2), quarter(rows + 3 * stride, stride, t, lane, x, 3)};       \
        return i_sum_quarters(sums);                                                                                                \
    }
#define QUARTER_Q4_K(...) quarter_4_5(0, __VA_ARGS__)
#define QUARTER_Q5_K(...) quarter_4_5(1, __VA_ARGS__)
ONE_TOKEN(q4_k, unpack_scales, QUARTER_Q4_K)
ONE_TOKEN(q5_k, unpack_scales, QUARTER_Q5_K)
ONE_TOKEN(q6_k, unpack_q6_k_scales, quarter_6)
#else
#define one_q4_k NULL
#define one_q5_k NULL
#define one_q6_k NULL
#endif

#if ONE_TOKEN_TILES
ALWAYS_INLINE void one_token_256(kind k, size_t block_bytes, one_token_fn one, const tile_job *j, tile *t) {
    for (size_t unit = 0; unit < (size_t)j->cols / 256; unit++) {
        const block256 *b = unit_of(k, j, unit, 0);
        fetch_next(j, unit);
        for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
            ints isum = one(j->rows + unit * block_bytes + (size_t)lane * j->stride, j->stride, t, lane, b->q);
            floats sum = unit == 0 ? f_set1(0.0f) : f_load(j->sums + lane);
            f_store(j->sums + lane, join_256(k, t, lane, b, k.offset, isum, sum));
        }
    }
}

ALWAYS_INLINE void one_token_32(kind k, size_t block_bytes, unpack_fn head, const int8_t *table, const tile_job *j, tile *t) {
    size_t at = 0, head_bytes = block_bytes - (k.nibbles ? 16 : 32);
    for (size_t unit = 0; unit * 256 < (size_t)j->cols; unit++) {
        const blocks32 *b = unit_of(k, j, unit, 0);
        int num_blocks = min_int(256, j->cols - (int)unit * 256) / 32;
        fetch_next(j, unit);
        for (int block = 0; block < num_blocks; block++, at += block_bytes) {
            for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
                const uint8_t *rows = j->rows + at + (size_t)lane * j->stride;
                head(rows, j->stride, t, lane, block);
                ints isum = one_32(k, rows + head_bytes, j->stride, table, b->q + 32 * block);
                isum = i_add(isum, i_set1(-OFFSET(k) * b->sums[block]));
                floats sum = at == 0 ? f_set1(0.0f) : f_load(j->sums + lane);
                f_store(j->sums + lane, join_32(t, lane, b, block, isum, sum));
            }
        }
    }
}
#endif

#endif
