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

#include "int_unpack.h"
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

/* The end of the chain of a block of 256: `isum` counts `offset` too much in every weight. */
ALWAYS_INLINE void join_256(kind k, const tile *t, int lane, const block256 *b, int offset, ints isum, float *sums) {
    ints msum = i_set1(0);
    if (k.minimums || offset) {
        UNROLL
        for (int pair = 0; pair < k.groups / 2; pair++) {
            int32_t two;
            memcpy(&two, (k.groups == 16 ? b->sums16 : b->sums32) + 2 * pair, sizeof two);
            msum = i_pairs(msum, i_load(t->pair[pair] + lane), i_set1(two));
        }
    }
    if (offset) {
        isum = i_sub(isum, i_mul(msum, i_set1(offset)));
    }
    floats value = f_mul(f_load(t->d + lane), i_floats(isum));
    if (k.minimums) {
        value = f_minus_madd(f_load(t->dmin + lane), i_floats(msum), value);
    }
    f_store(sums + lane, f_madd(f_set1(b->d), value, f_load(sums + lane)));
}

ALWAYS_INLINE void apply_256(kind k, int n, const tile *t, int lane, const uint8_t *const *blocks, float *const *sums) {
    const int8_t *x[4];
    ints isum[4];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const block256 *)blocks[i])->q;
        isum[i] = i_set1(0);
    }
    int steps = 64 / k.groups;
    for (int group = 0; group < k.groups; group++) {
        const uint8_t(*w)[INT_ROWS][4] = (const uint8_t(*)[INT_ROWS][4])(t->w[group * steps] + lane);
        add_scaled(k, n, steps, w, x, 4 * (size_t)(group * steps), i_load(t->scale[group] + lane), isum);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        join_256(k, t, lane, (const block256 *)blocks[i], OFFSET(k), isum[i], sums[i]);
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

/* -- one token ---------------------------------------------------------------------------------------------------------------------
 * With one token a tile is used once, and most of the time would go into transposing it. Here 16 bytes of a row stay together, four
 * rows (two in AVX2) in a vector; only sums are transposed. The same integers come out. */

#if INT_LANES > 1
/* The scale of a group for the rows of quarter e, in both halves of each lane. */
#define QUARTER_SCALE(t, group, lane, e) i_spread(both_halves(i_load((t)->scale[group] + (lane))), e)

ALWAYS_INLINE ints both_halves(ints scale) {
    return DIRECT_DOT ? i_or(i_and(scale, i_set1(0xffff)), i_left(scale, 16)) : scale;
}

ALWAYS_INLINE ints two_pieces(ints w0, ints w1, const int8_t *x) {
    return i_add16(i_products(w0, i_repeat16(x)), i_products(w1, i_repeat16(x + 16)));
}

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
        sum = i_pairs(sum, two_pieces(low_w[0], low_w[1], x + 64 * p), QUARTER_SCALE(t, 2 * p, lane, e));
        sum = i_pairs(sum, two_pieces(high_w[0], high_w[1], x + 64 * p + 32), QUARTER_SCALE(t, 2 * p + 1, lane, e));
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
            sum = i_pairs(sum, i_products(w[i], i_repeat16(x + 16 * group)), QUARTER_SCALE(t, group, lane, e));
        }
    }
    return sum;
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
typedef ints (*one_token_fn)(const uint8_t *rows, size_t stride, tile *t, int lane, const int8_t *x);

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

#define AHEAD 512 /* bytes */

/* Short blocks leave the processor sixteen slow streams that it does not foresee by itself: one token of Q8_0 gains 40 %. With blocks
 * of 256 this cost more than it gave. */
ALWAYS_INLINE void prefetch_rows(const tile_job *j, size_t at) {
    for (size_t r = 0; at + AHEAD < j->stride && r < INT_ROWS; r++) {
        __builtin_prefetch(j->rows + r * j->stride + at + AHEAD);
    }
}

ALWAYS_INLINE void run_tile(kind k, size_t block_bytes, unpack_fn unpack, one_token_fn one, const tile_job *j) {
    tile t;
    if (one && j->num_tokens == 1) {
        const block256 *b = (const block256 *)(j->x + (size_t)(j->gather ? j->gather[j->first_token] : j->first_token) * j->row_bytes);
        for (size_t block = 0; block < (size_t)j->num_blocks; block++, b++) {
            for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
                ints isum = one(j->rows + block * block_bytes + (size_t)lane * j->stride, j->stride, &t, lane, b->q);
                join_256(k, &t, lane, b, k.offset, isum, j->sums);
            }
        }
        return;
    }
    for (size_t block = 0; block < (size_t)j->num_blocks; block++) {
        if (k.block == 32 && block % 2 == 0) {
            prefetch_rows(j, block * block_bytes);
        }
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
#define TILE_KERNEL(name, bytes, one, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){__VA_ARGS__}, bytes, unpack_##name, one, j); }
TILE_KERNEL(q4_k, 144, one_q4_k, .block = 256, .groups = 8, .unchecked = 8, .minimums = 1)
TILE_KERNEL(q5_k, 176, one_q5_k, .block = 256, .groups = 8, .unchecked = 4, .minimums = 1)
TILE_KERNEL(q6_k, 210, one_q6_k, .block = 256, .groups = 16, .unchecked = 2, .offset = 32)
TILE_KERNEL(q8_0, 34, NULL, .block = 32, .groups = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
TILE_KERNEL(q4_0, 18, NULL, .block = 32, .groups = 1, .unchecked = 8, .offset = 8)
TILE_KERNEL(iq4_nl, 18, NULL, .block = 32, .groups = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
TILE_KERNEL(mxfp4, 17, NULL, .block = 32, .groups = 1, .unchecked = 4, .offset = 12)
TILE_KERNEL(iq4_xs, 136, NULL, .block = 256, .groups = 8, .unchecked = 1, .is_signed = 1, .offset = 128)

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
