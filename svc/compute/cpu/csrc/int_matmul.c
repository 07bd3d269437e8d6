/* Products in integers: activations are rounded to 8 bits per token and block, a block's dot product is exact in 32 bits, and one
 * chain of float operations joins the blocks in their order. Exact integers have no order, so one token and many, and every build,
 * give the same bits; the chain is the definition:
 *
 *   blocks of 256   t = d * isum; t = fma(-dmin, msum, t) (types with minimums); sum = fma(dx, t, sum)
 *   blocks of 32    t = d * isum;                                                sum = fma(dx, t, sum)
 *
 * A tile is one block of 16 rows, unpacked to bytes with the rows in lanes: no sum ever crosses lanes. It stays in the nearest cache
 * while it is applied to all tokens. */
#include "int_matmul.h"

#include "int_lanes.h"
#include "lane_math.h"

enum { Q4_0 = 2, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, MXFP4 = 39 };

/* -- activations ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    _Alignas(64) int8_t q[256];
    int16_t sums16[16], sums32[8]; /* of 16 and of 32 values */
    float d;
} block256;

typedef struct {
    int8_t q[32];
    int32_t sum;
    float d;
} block32;

int int_block(int type) {
    switch (type) {
    case Q4_K: case Q5_K: case Q6_K: case IQ4_XS: return 256;
    case Q8_0: case Q4_0: case IQ4_NL: case MXFP4: return 32;
    default: return 0;
    }
}

size_t int_row_bytes(int block, int cols) {
    return block == 256 ? (size_t)cols / 256 * sizeof(block256) : (size_t)cols / 32 * sizeof(block32);
}

/* Rounds n values to the nearest multiple of the result, ties to even. Infinity and NaN make the scale, and so all sums, NaN;
 * magnitudes below 1e-30 become zero. */
ALWAYS_INLINE float round_values(const float *x, int n, int8_t *q) {
    uint32_t largest = 0; /* magnitudes compare like their bits, NaN above all */
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    float most = bits_to_float(largest);
    if (!(most >= 1e-30f && largest < 0x7f800000)) {
        memset(q, 0, (size_t)n);
        return largest < 0x7f800000 ? 0.0f : bits_to_float(0x7fc00000);
    }
    float inverse = 127.0f / most;
    for (int i = 0; i < n; i++) {
        q[i] = (int8_t)(float_to_bits(x[i] * inverse + MAGIC) - MAGIC_BITS);
    }
    return most / 127.0f;
}

void int_quantize(const float *x, int block, int cols, void *out) {
    if (block == 32) {
        block32 *b = out;
        for (int i = 0; i < cols; i += 32, b++) {
            b->d = round_values(x + i, 32, b->q);
            b->sum = 0;
            for (int k = 0; k < 32; k++) {
                b->sum += b->q[k];
            }
        }
        return;
    }
    block256 *b = out;
    for (int i = 0; i < cols; i += 256, b++) {
        b->d = round_values(x + i, 256, b->q);
        for (int group = 0; group < 16; group++) {
            int sum = 0;
            for (int k = 0; k < 16; k++) {
                sum += b->q[16 * group + k];
            }
            b->sums16[group] = (int16_t)sum;
        }
        for (int group = 0; group < 8; group++) {
            b->sums32[group] = (int16_t)(b->sums16[2 * group] + b->sums16[2 * group + 1]);
        }
    }
}

/* -- unpacking -------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    _Alignas(64) uint8_t w[64][INT_ROWS][4]; /* columns 4 i .. 4 i + 3 of each row */
    int32_t scale[16][INT_ROWS];             /* of each group, for add_scaled */
    int32_t pair[8][INT_ROWS];               /* of groups 2 i and 2 i + 1 in halves: what multiplies their sums of activations */
    float d[INT_ROWS], dmin[INT_ROWS];
} tile;

#define EACH_BYTE(x) i_set1((x) * 0x01010101)

/* Signed values: an unsigned factor is wanted where four products are added at once, and 128 times the sum is taken off later. */
#define SIGNED_BYTES(w) (DIRECT_DOT ? i_xor(w, i_set1((int32_t)0x80808080)) : (w))

/* A scale as `add_scaled` wants it. */
ALWAYS_INLINE void store_scale(tile *t, int group, int lane, ints scale) {
    i_store(t->scale[group] + lane, DIRECT_DOT ? scale : i_or(i_and(scale, i_set1(0xffff)), i_left(scale, 16)));
}

ALWAYS_INLINE void store_pair(tile *t, int i, int lane, ints first, ints second) {
    i_store(t->pair[i] + lane, i_or(i_and(first, i_set1(0xffff)), i_left(second, 16)));
}

/* The half at the beginning of 16 bytes of each row. */
ALWAYS_INLINE floats first_halves(const uint8_t *rows, size_t stride) {
    ints piece[4];
    transpose_piece(rows, stride, piece);
    return i_halves(i_and(piece[0], i_set1(0xffff)));
}

/* The head of a block of Q4_K and Q5_K: d, dmin, and eight scales and minimums of six bits. */
ALWAYS_INLINE void unpack_scales(const uint8_t *rows, size_t stride, tile *t, int lane) {
    ints head[4], six = EACH_BYTE(0x3f), four = EACH_BYTE(0x0f), two = EACH_BYTE(0x30);
    transpose_piece(rows, stride, head);
    f_store(t->d + lane, i_halves(i_and(head[0], i_set1(0xffff))));
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

ALWAYS_INLINE void unpack_q4_k(const uint8_t *rows, size_t stride, tile *t, int lane) {
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

ALWAYS_INLINE void unpack_q5_k(const uint8_t *rows, size_t stride, tile *t, int lane) {
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

ALWAYS_INLINE void unpack_q6_k(const uint8_t *rows, size_t stride, tile *t, int lane) {
    ints four = EACH_BYTE(0x0f), two = EACH_BYTE(0x30), scales[4];
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
    transpose_piece(rows + 194, stride, scales); /* the half is the end of a block, and nothing behind it may be read */
    f_store(t->d + lane, i_halves(i_right(scales[3], 16)));
}

ALWAYS_INLINE void unpack_q8_0(const uint8_t *rows, size_t stride, tile *t, int lane) {
    UNROLL
    for (int p = 0; p < 2; p++) {
        ints piece[4];
        transpose_piece(rows + 2 + 16 * p, stride, piece);
        UNROLL
        for (int j = 0; j < 4; j++) {
            i_store(t->w[4 * p + j][lane], SIGNED_BYTES(piece[j]));
        }
    }
    f_store(t->d + lane, first_halves(rows, stride));
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

ALWAYS_INLINE void unpack_q4_0(const uint8_t *rows, size_t stride, tile *t, int lane) {
    unpack_nibbles(rows + 2, stride, NULL, i_set1(0), t->w, lane);
    f_store(t->d + lane, first_halves(rows, stride));
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

ALWAYS_INLINE void unpack_iq4_nl(const uint8_t *rows, size_t stride, tile *t, int lane) {
    unpack_nibbles(rows + 2, stride, iq4_values, SIGNED_BYTES(i_set1(0)), t->w, lane);
    f_store(t->d + lane, first_halves(rows, stride));
}

/* Doubled E2M1 numbers, plus 12. */
static const int8_t e2m1_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

ALWAYS_INLINE void unpack_mxfp4(const uint8_t *rows, size_t stride, tile *t, int lane) {
    unpack_nibbles(rows + 1, stride, e2m1_values, i_set1(0), t->w, lane);
    for (size_t r = 0; r < INT_LANES; r++) { /* half of 2^(e - 127), since the values are doubled; the two smallest are subnormal */
        uint32_t e = rows[r * stride];
        t->d[(size_t)lane + r] = bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
}

ALWAYS_INLINE void unpack_iq4_xs(const uint8_t *rows, size_t stride, tile *t, int lane) {
    ints head[4], offset = i_set1(32);
    transpose_piece(rows, stride, head); /* d, the high bits of the scales, four bytes of low bits; the rest is the first group's */
    f_store(t->d + lane, i_halves(i_and(head[0], i_set1(0xffff))));
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

/* -- a block of 16 rows by some tokens ------------------------------------------------------------------------------------------- */

typedef struct {
    int block;     /* 256 or 32 */
    int groups;    /* with one scale each */
    int unchecked; /* steps (of two products each) that 16 bits can hold the sum of */
    int is_signed; /* values are signed bytes */
    int offset;    /* what the unsigned bytes are too large by */
    int minimums;
} kind;

/* What is still to be taken off, on this build: signed bytes are used as they are where 16 bits hold their products. */
#define OFFSET(k) (!DIRECT_DOT && (k).is_signed ? 0 : (k).offset)

/* sum + scale * (dot product of `steps` x 4 columns), for tokens x[0 .. n): lanes are rows. */
ALWAYS_INLINE void add_scaled(kind k, int n, int steps, const uint8_t (*w)[INT_ROWS][4], const int8_t *const *x, size_t at, ints scale, ints *sum) {
#if DIRECT_DOT
    ints dot[4];
    UNROLL
    for (int t = 0; t < n; t++) {
        dot[t] = i_set1(0);
    }
    UNROLL
    for (int i = 0; i < steps; i++) {
        ints weights = i_load(w[i]);
        UNROLL
        for (int t = 0; t < n; t++) {
            int32_t four;
            memcpy(&four, x[t] + at + 4 * (size_t)i, sizeof four);
            dot[t] = i_dot(dot[t], weights, i_set1(four));
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        sum[t] = i_add(sum[t], k.block == 32 ? dot[t] : i_mul(dot[t], scale));
    }
#else
    UNROLL
    for (int first = 0; first < steps; first += k.unchecked) {
        ints dot[4];
        UNROLL
        for (int i = first; i < first + k.unchecked; i++) {
            ints weights = i_load(w[i]);
            UNROLL
            for (int t = 0; t < n; t++) {
                int32_t four;
                memcpy(&four, x[t] + at + 4 * (size_t)i, sizeof four);
                ints products = k.is_signed ? i_signed_products(weights, i_set1(four)) : i_products(weights, i_set1(four));
                dot[t] = i == first ? products : i_add16(dot[t], products);
            }
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            sum[t] = i_pairs(sum[t], dot[t], k.block == 32 ? i_set1(0x00010001) : scale);
        }
    }
#endif
}

ALWAYS_INLINE void apply_256(kind k, int n, const tile *t, int lane, const uint8_t *const *blocks, float *const *sums) {
    const int8_t *x[4];
    ints isum[4], msum[4];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const block256 *)blocks[i])->q;
        isum[i] = msum[i] = i_set1(0);
    }
    int steps = 64 / k.groups;
    for (int group = 0; group < k.groups; group++) {
        const uint8_t(*w)[INT_ROWS][4] = (const uint8_t(*)[INT_ROWS][4])(t->w[group * steps] + lane);
        add_scaled(k, n, steps, w, x, 4 * (size_t)(group * steps), i_load(t->scale[group] + lane), isum);
    }
    if (k.minimums || OFFSET(k)) {
        UNROLL
        for (int pair = 0; pair < k.groups / 2; pair++) {
            ints factors = i_load(t->pair[pair] + lane);
            UNROLL
            for (int i = 0; i < n; i++) {
                const block256 *b = (const block256 *)blocks[i];
                int32_t two;
                memcpy(&two, (k.groups == 16 ? b->sums16 : b->sums32) + 2 * pair, sizeof two);
                msum[i] = i_pairs(msum[i], factors, i_set1(two));
            }
        }
    }
    floats d = f_load(t->d + lane);
    UNROLL
    for (int i = 0; i < n; i++) {
        if (OFFSET(k)) {
            isum[i] = i_sub(isum[i], i_mul(msum[i], i_set1(OFFSET(k))));
        }
        floats value = f_mul(d, i_floats(isum[i]));
        if (k.minimums) {
            value = f_minus_madd(f_load(t->dmin + lane), i_floats(msum[i]), value);
        }
        f_store(sums[i] + lane, f_madd(f_set1(((const block256 *)blocks[i])->d), value, f_load(sums[i] + lane)));
    }
}

ALWAYS_INLINE void apply_32(kind k, int n, const tile *t, int lane, const uint8_t *const *blocks, float *const *sums) {
    const int8_t *x[4];
    ints isum[4];
    UNROLL
    for (int i = 0; i < n; i++) {
        const block32 *b = (const block32 *)blocks[i];
        x[i] = b->q;
        isum[i] = i_set1(OFFSET(k) ? -OFFSET(k) * b->sum : 0);
    }
    add_scaled(k, n, 8, (const uint8_t(*)[INT_ROWS][4])(t->w[0] + lane), x, 0, i_set1(0), isum);
    floats d = f_load(t->d + lane);
    UNROLL
    for (int i = 0; i < n; i++) {
        floats value = f_mul(d, i_floats(isum[i]));
        f_store(sums[i] + lane, f_madd(f_set1(((const block32 *)blocks[i])->d), value, f_load(sums[i] + lane)));
    }
}

/* -- a tile of a product ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *rows; /* of weights, `stride` apart */
    size_t stride;
    const uint8_t *x; /* quantized activations */
    size_t row_bytes;
    const int32_t *gather; /* NULL, or the row of x of each token */
    int num_blocks, first_token, num_tokens;
    float *sums; /* [num_tokens][INT_ROWS] */
} tile_job;

typedef void (*unpack_fn)(const uint8_t *rows, size_t stride, tile *t, int lane);

ALWAYS_INLINE void apply(kind k, int n, const tile_job *j, const tile *t, size_t block, int token) {
    const uint8_t *blocks[4];
    float *sums[4];
    UNROLL
    for (int i = 0; i < n; i++) {
        int number = j->first_token + token + i;
        size_t row = (size_t)(j->gather ? j->gather[number] : number);
        blocks[i] = j->x + row * j->row_bytes + block * (k.block == 256 ? sizeof(block256) : sizeof(block32));
        sums[i] = j->sums + (size_t)(token + i) * INT_ROWS;
    }
    for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
        if (k.block == 256) {
            apply_256(k, n, t, lane, blocks, sums);
        } else {
            apply_32(k, n, t, lane, blocks, sums);
        }
    }
}

ALWAYS_INLINE void run_tile(kind k, size_t block_bytes, unpack_fn unpack, const tile_job *j) {
    tile t;
    for (size_t block = 0; block < (size_t)j->num_blocks; block++) {
        for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
            unpack(j->rows + block * block_bytes + (size_t)lane * j->stride, j->stride, &t, lane);
        }
        int token = 0;
        for (; token + 4 <= j->num_tokens; token += 4) {
            apply(k, 4, j, &t, block, token);
        }
        if (token + 2 <= j->num_tokens) {
            apply(k, 2, j, &t, block, token);
            token += 2;
        }
        if (token < j->num_tokens) {
            apply(k, 1, j, &t, block, token);
        }
    }
}

/* unchecked: 2 x largest byte x 127 x steps stays below 32768. */
#define TILE_KERNEL(name, bytes, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){__VA_ARGS__}, bytes, unpack_##name, j); }
TILE_KERNEL(q4_k, 144, .block = 256, .groups = 8, .unchecked = 8, .minimums = 1)
TILE_KERNEL(q5_k, 176, .block = 256, .groups = 8, .unchecked = 4, .minimums = 1)
TILE_KERNEL(q6_k, 210, .block = 256, .groups = 16, .unchecked = 2, .offset = 32)
TILE_KERNEL(q8_0, 34, .block = 32, .groups = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
TILE_KERNEL(q4_0, 18, .block = 32, .groups = 1, .unchecked = 8, .offset = 8)
TILE_KERNEL(iq4_nl, 18, .block = 32, .groups = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
TILE_KERNEL(mxfp4, 17, .block = 32, .groups = 1, .unchecked = 4, .offset = 12)
TILE_KERNEL(iq4_xs, 136, .block = 256, .groups = 8, .unchecked = 1, .is_signed = 1, .offset = 128)

static void run_type(int type, const tile_job *j) {
    switch (type) {
    case Q4_K: run_q4_k(j); break;
    case Q5_K: run_q5_k(j); break;
    case Q6_K: run_q6_k(j); break;
    case Q8_0: run_q8_0(j); break;
    case Q4_0: run_q4_0(j); break;
    case IQ4_NL: run_iq4_nl(j); break;
    case IQ4_XS: run_iq4_xs(j); break;
    case MXFP4: run_mxfp4(j); break;
    default: break;
    }
}

static void multiply_tile(const product *p, const matrix *m, const uint8_t *x, size_t row_bytes, int first_row, int first_token, int num_tokens, float *sums) {
    tile_job j = {.rows = m->data + p->expert * m->expert_bytes + first_row * m->row_bytes, .stride = (size_t)m->row_bytes, .x = x, .row_bytes = row_bytes, .gather = p->gather, .num_blocks = m->cols / int_block(m->type),
                  .first_token = first_token, .num_tokens = num_tokens, .sums = sums};
    memset(sums, 0, (size_t)num_tokens * INT_ROWS * sizeof *sums);
    run_type(m->type, &j);
}

void int_product_tile(const product *p, const uint8_t *x, size_t row_bytes, int first_row, float *scratch) {
    float *sums = scratch, *up_sums = scratch + INT_TOKENS * INT_ROWS;
    int start = min_int(first_row, p->weight->rows - INT_ROWS), done = first_row - start; /* a last tile reaches back */
    for (int first = 0; first < p->num_tokens; first += INT_TOKENS) {
        int num_tokens = min_int(INT_TOKENS, p->num_tokens - first);
        multiply_tile(p, p->weight, x, row_bytes, start, first, num_tokens, sums);
        if (p->up) {
            multiply_tile(p, p->up, x, row_bytes, start, first, num_tokens, up_sums);
        }
        for (int t = 0; t < num_tokens; t++) {
            float *out = p->out + (size_t)(first + t) * p->ldo + first_row, *sum = sums + t * INT_ROWS;
            if (p->up) {
                v_store(sum, v_mul(v_silu(v_load(sum)), v_load(up_sums + t * INT_ROWS)));
            }
            for (int r = done; r < INT_ROWS; r++) {
                out[r - done] = p->add ? out[r - done] + sum[r] : sum[r];
            }
        }
    }
}
