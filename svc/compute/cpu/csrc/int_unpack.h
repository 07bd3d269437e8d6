/* One block of INT_LANES rows of each type, unpacked to bytes with the rows in lanes. Functions take the block of the first row and the
 * distance to that of the next, and read nothing after a block. */
#ifndef HEADRACE_INT_UNPACK_H
#define HEADRACE_INT_UNPACK_H

#include "simd_ints.h"
#include "int_matmul.h"

typedef struct { /* 256 columns: one block, or up to eight blocks of 32 */
    _Alignas(64) uint8_t w[64][INT_ROWS][4]; /* columns 4 i .. 4 i + 3 of each row */
    int32_t scale[16][INT_ROWS];             /* of each group, for add_scaled */
    int32_t pair[8][INT_ROWS];               /* of groups 2 i and 2 i + 1 in halves: factors of their sums of activations */
    float d[8][INT_ROWS], dmin[INT_ROWS];    /* d of each block */
} tile;

#define EACH_BYTE(x) i_set1((x) * 0x01010101)

#define SIGNED_BYTES(w) (SIGNED_WEIGHTS ? (w) : i_xor(w, i_set1((int32_t)0x80808080)))

/* The low halves of both in each lane. */
ALWAYS_INLINE ints in_halves(ints first, ints second) { return i_or(i_and(first, i_set1(0xffff)), i_left(second, 16)); }

/* Stores a scale in the form of `add_scaled`. */
ALWAYS_INLINE void store_scale(tile *t, int group, int lane, ints scale) {
    i_store(t->scale[group] + lane, DIRECT_DOT ? scale : in_halves(scale, scale));
}

ALWAYS_INLINE void store_pair(tile *t, int i, int lane, ints first, ints second) {
    i_store(t->pair[i] + lane, in_halves(first, second));
}

/* The half at the beginning of a block of each row. */
ALWAYS_INLINE void unpack_half(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    f_store(t->d[block] + lane, i_halves(i_and(i_gather_halves(rows, stride), i_set1(0xffff))));
}

/* The head of a block of Q4_K and Q5_K: d, dmin, and eight scales and minimums of six bits. */
ALWAYS_INLINE void unpack_scales(const uint8_t *rows, size_t stride, tile *t, int lane) {
    ints head[4], six = EACH_BYTE(0x3f), four = EACH_BYTE(0x0f), two = EACH_BYTE(0x30);
    transpose_piece(rows, stride, head);
    f_store(t->d[0] + lane, i_halves(i_and(head[0], i_set1(0xffff))));
    f_store(t->dmin + lane, i_halves(i_right(head[0], 16)));
    ints scales[2] = {i_and(head[1], six), i_or(i_and(head[3], four), i_and(i_right(head[1], 2), two))};
    ints minimums[2] = {i_and(head[2], six), i_or(i_and(i_right(head[3], 4), four), i_and(i_right(head[2], 2), two))};
    ints byte = i_set1(255);
    UNROLL
    for (int half = 0; half < 2; half++) {
        ints s = scales[half], m = minimums[half];
        store_scale(t, 4 * half, lane, i_and(s, byte));
        store_scale(t, 4 * half + 1, lane, i_and(i_right(s, 8), byte));
        store_scale(t, 4 * half + 2, lane, i_and(i_right(s, 16), byte));
        store_scale(t, 4 * half + 3, lane, i_right(s, 24));
        store_pair(t, 2 * half, lane, i_and(m, byte), i_and(i_right(m, 8), byte));
        store_pair(t, 2 * half + 1, lane, i_and(i_right(m, 16), byte), i_right(m, 24));
    }
}

ALWAYS_INLINE void unpack_q4_k(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    (void)block;
    ints four = EACH_BYTE(0x0f), piece[4];
    unpack_scales(rows, stride, t, lane);
    UNROLL
    for (int p = 0; p < 8; p++) {
        transpose_piece(rows + 16 + 16 * p, stride, piece);
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint8_t(*w)[INT_ROWS][4] = t->w + p / 2 * 16 + p % 2 * 4 + j;
            i_store(w[0][lane], i_and(piece[j], four));
            i_store(w[8][lane], i_and(i_right(piece[j], 4), four));
        }
    }
}

ALWAYS_INLINE void unpack_q5_k(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    (void)block;
    ints four = EACH_BYTE(0x0f), one = EACH_BYTE(0x10), high[8], piece[4];
    unpack_scales(rows, stride, t, lane);
    transpose_piece(rows + 16, stride, high);
    transpose_piece(rows + 32, stride, high + 4);
    UNROLL
    for (int p = 0; p < 8; p++) { /* bit 2 (p / 2) of `high` goes with the low nibbles, the next one with the high nibbles */
        transpose_piece(rows + 48 + 16 * p, stride, piece);
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint8_t(*w)[INT_ROWS][4] = t->w + p / 2 * 16 + p % 2 * 4 + j;
            ints bits = high[p % 2 * 4 + j];
            i_store(w[0][lane], i_or(i_and(piece[j], four), i_and(p / 2 < 2 ? i_left(bits, 4 - p / 2 * 2) : i_right(bits, p / 2 * 2 - 4), one)));
            i_store(w[8][lane], i_or(i_and(i_right(piece[j], 4), four),
                                     i_and(p / 2 < 2 ? i_left(bits, 3 - p / 2 * 2) : i_right(bits, p / 2 * 2 - 3), one)));
        }
    }
}

ALWAYS_INLINE void unpack_q6_k_scales(const uint8_t *rows, size_t stride, tile *t, int lane) {
    ints scales[4];
    transpose_piece(rows + 192, stride, scales);
    UNROLL
    for (int i = 0; i < 4; i++) {
        ints s[4] = {i_right_signed(i_left(scales[i], 24), 24), i_right_signed(i_left(scales[i], 16), 24),
                     i_right_signed(i_left(scales[i], 8), 24), i_right_signed(scales[i], 24)};
        UNROLL
        for (int k = 0; k < 4; k++) {
            store_scale(t, 4 * i + k, lane, s[k]);
        }
        store_pair(t, 2 * i, lane, s[0], s[1]);
        store_pair(t, 2 * i + 1, lane, s[2], s[3]);
    }
    transpose_piece(rows + 194, stride, scales); /* the half ends the block, and nothing after it may be read */
    f_store(t->d[0] + lane, i_halves(i_right(scales[3], 16)));
}

ALWAYS_INLINE void unpack_q6_k(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    (void)block;
    ints four = EACH_BYTE(0x0f), two = EACH_BYTE(0x30);
    unpack_q6_k_scales(rows, stride, t, lane);
    UNROLL
    for (int p = 0; p < 4; p++) { /* 16 bytes of `high` serve four times 16 columns */
        int half = p / 2, part = p % 2;
        ints low[4], low_next[4], high[4];
        transpose_piece(rows + 64 * half + 16 * part, stride, low);
        transpose_piece(rows + 64 * half + 32 + 16 * part, stride, low_next);
        transpose_piece(rows + 128 + 32 * half + 16 * part, stride, high);
        UNROLL
        for (int j = 0; j < 4; j++) {
            uint8_t(*w)[INT_ROWS][4] = t->w + 32 * half + 4 * part + j;
            i_store(w[0][lane], i_or(i_and(low[j], four), i_and(i_left(high[j], 4), two)));
            i_store(w[8][lane], i_or(i_and(low_next[j], four), i_and(i_left(high[j], 2), two)));
            i_store(w[16][lane], i_or(i_and(i_right(low[j], 4), four), i_and(high[j], two)));
            i_store(w[24][lane], i_or(i_and(i_right(low_next[j], 4), four), i_and(i_right(high[j], 2), two)));
        }
    }
}

ALWAYS_INLINE void unpack_q8_0(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    UNROLL
    for (int p = 0; p < 2; p++) {
        ints piece[4];
        transpose_piece(rows + 2 + 16 * p, stride, piece);
        UNROLL
        for (int j = 0; j < 4; j++) {
            i_store(t->w[8 * block + 4 * p + j][lane], SIGNED_BYTES(piece[j]));
        }
    }
    unpack_half(rows, stride, t, lane, block);
}

/* Sixteen bytes of nibbles: the low ones are the first 16 columns of a group, the high ones the others. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *rows, size_t stride, const int8_t *table, ints flip, uint8_t (*w)[INT_ROWS][4], int lane) {
    ints four = EACH_BYTE(0x0f), piece[4];
    transpose_piece(rows, stride, piece);
    UNROLL
    for (int j = 0; j < 4; j++) {
        ints low = i_and(piece[j], four), high = i_and(i_right(piece[j], 4), four);
        i_store(w[j][lane], table ? i_xor(i_lookup(table, low), flip) : low);
        i_store(w[4 + j][lane], table ? i_xor(i_lookup(table, high), flip) : high);
    }
}

ALWAYS_INLINE void unpack_q4_0(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    unpack_nibbles(rows + 2, stride, NULL, i_set1(0), t->w + 8 * block, lane);
    unpack_half(rows, stride, t, lane, block);
}

/* Four bits after the half are the fifth ones of four columns. */
ALWAYS_INLINE void unpack_q5_0(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    ints four = EACH_BYTE(0x0f), piece[4], low = i_gather_halves(rows + 2, stride), high = i_gather_halves(rows + 4, stride);
    ints fifth = in_halves(low, high);
    transpose_piece(rows + 6, stride, piece);
    UNROLL
    for (int i = 0; i < 8; i++) {
        ints bits = i_and(i_right(fifth, 4 * i), i_set1(0x0f)); /* one for each byte of this number: bit b goes to byte b */
        bits = i_left(i_and(i_mul(bits, i_set1(0x00204081)), EACH_BYTE(1)), 4);
        i_store(t->w[8 * block + i][lane], i_or(i_and(i < 4 ? piece[i] : i_right(piece[i - 4], 4), four), bits));
    }
    unpack_half(rows, stride, t, lane, block);
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

ALWAYS_INLINE void unpack_iq4_nl(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    unpack_nibbles(rows + 2, stride, iq4_values, SIGNED_BYTES(i_set1(0)), t->w + 8 * block, lane);
    unpack_half(rows, stride, t, lane, block);
}

/* Doubled E2M1 numbers, plus 12. */
static const int8_t e2m1_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Half of 2^(e - 127), since the values are doubled. The exponent's bits are that power, but for e = 0, which is subnormal. */
ALWAYS_INLINE floats e8m0_halved(ints e) { return f_mul(i_as_floats(i_max(i_left(e, 23), i_set1(0x00400000))), f_set1(0.5f)); }

ALWAYS_INLINE void unpack_e8m0(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    f_store(t->d[block] + lane, e8m0_halved(i_and(i_gather_halves(rows, stride), i_set1(0xff))));
}

ALWAYS_INLINE void unpack_mxfp4(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    unpack_nibbles(rows + 1, stride, e2m1_values, i_set1(0), t->w + 8 * block, lane);
    unpack_e8m0(rows, stride, t, lane, block);
}

ALWAYS_INLINE void unpack_iq4_xs(const uint8_t *rows, size_t stride, tile *t, int lane, int block) {
    (void)block;
    ints head[4], offset = i_set1(32);
    transpose_piece(rows, stride, head); /* d, the high bits of the scales, four bytes of low bits; the rest is the first group's */
    f_store(t->d[0] + lane, i_halves(i_and(head[0], i_set1(0xffff))));
    ints high = i_right(head[0], 16), scales[8];
    UNROLL
    for (int group = 0; group < 8; group++) {
        ints low = i_and(i_right(head[1], 4 * group), i_set1(15)), top = i_and(i_right(high, 2 * group), i_set1(3));
        scales[group] = i_sub(i_or(low, i_left(top, 4)), offset);
        store_scale(t, group, lane, scales[group]);
        unpack_nibbles(rows + 8 + 16 * group, stride, iq4_values, SIGNED_BYTES(i_set1(0)), t->w + 8 * group, lane);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        store_pair(t, i, lane, scales[2 * i], scales[2 * i + 1]);
    }
}

#endif
