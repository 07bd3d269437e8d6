/* Products in integers: activations are rounded to 8 bits per token and block, a block's dot product is exact in 32 bits, and one
 * chain of float operations joins the blocks in their order. Exact integers have no order, so one token and many, and every build,
 * give the same bits; the chain is the definition:
 *
 *   blocks of 256   t = d * isum; t = fma(-dmin, msum, t) (types with minimums); sum = fma(dx, t, sum)
 *   blocks of 32    t = d * isum;                                                sum = fma(dx, t, sum)
 *
 * A tile is 16 rows by 256 columns, unpacked to bytes with the rows in lanes: no sum ever crosses lanes. It stays in the nearest cache
 * while it is applied to all tokens. */
#include "int_matmul.h"

#include "int_amx.h"
#include "int_unpack.h"
#include "simd_math.h"

#define MOST_TOKENS (INT_LANES == 16 ? 8 : INT_LANES > 1 ? 4 : 2) /* at once: what the vector registers hold */

enum { Q4_0 = 2, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, MXFP4 = 39 };

/* -- activations ------------------------------------------------------------------------------------------------------------------
 * In units of 256 columns, all tokens of a unit together: [units][tokens]. A tile of weights is as wide, and reads them in order. */

typedef struct { /* one scale */
    _Alignas(64) int8_t q[256];
    int16_t sums16[16], sums32[8]; /* of 16 and of 32 values */
    float d;
} block256;

typedef struct { /* a scale for every 32; a last unit may be shorter */
    _Alignas(64) int8_t q[256];
    int32_t sums[8];
    float d[8];
} blocks32;

int int_block(int type) {
    switch (type) {
    case Q4_K: case Q5_K: case Q6_K: case IQ4_XS: return 256;
    case Q8_0: case Q4_0: case IQ4_NL: case MXFP4: return 32;
    default: return 0;
    }
}

int int_wants_gathered(int num_tokens) {
#ifdef __AMX_INT8__
    return num_tokens >= LEAST_TILE_TOKENS;
#else
    (void)num_tokens;
    return 0;
#endif
}

size_t int_unit_bytes(int block) { return block == 256 ? sizeof(block256) : sizeof(blocks32); }

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

ALWAYS_INLINE int sum_of(const int8_t *q, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += q[i];
    }
    return sum;
}

void int_quantize(const float *x, int block, int cols, uint8_t *out, size_t stride) {
    for (int first = 0; first < cols; first += 256, x += 256, out += stride) {
        if (block == 32) {
            blocks32 *b = (blocks32 *)out;
            for (int i = 0; i < min_int(256, cols - first) / 32; i++) {
                b->d[i] = round_values(x + 32 * i, 32, b->q + 32 * i);
                b->sums[i] = sum_of(b->q + 32 * i, 32);
            }
        } else {
            block256 *b = (block256 *)out;
            b->d = round_values(x, 256, b->q);
            for (int i = 0; i < 16; i++) {
                b->sums16[i] = (int16_t)sum_of(b->q + 16 * i, 16);
            }
            for (int i = 0; i < 8; i++) {
                b->sums32[i] = (int16_t)(b->sums16[2 * i] + b->sums16[2 * i + 1]);
            }
        }
    }
}

/* -- a tile by some tokens ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    int block;     /* 256 or 32 */
    int groups;    /* of a block of 256, with one scale each */
    int unchecked; /* steps (of two products each) that 16 bits can hold the sum of */
    int is_signed; /* values are signed bytes */
    int offset;    /* what the unsigned bytes are too large by */
    int minimums;
    int nibbles;   /* of blocks of 32: two values in a byte */
} kind;

/* What is still to be taken off, on this build. */
#define OFFSET(k) (SIGNED_WEIGHTS && (k).is_signed ? 0 : (k).offset)

/* Four columns of a token for all rows. */
ALWAYS_INLINE ints four_columns(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return i_set1(four);
}

/* sum + scale * (dot product of `steps` x 4 columns), for tokens x[0 .. n): lanes are rows. A block of 32 has no scale. */
ALWAYS_INLINE void add_scaled(kind k, int n, int steps, const uint8_t (*w)[INT_ROWS][4], const int8_t *const *x, size_t at, const int32_t *scale, ints *sum) {
#if DIRECT_DOT
    ints dot[MOST_TOKENS];
    UNROLL
    for (int t = 0; t < n; t++) {
        dot[t] = k.block == 32 ? sum[t] : i_set1(0);
    }
    UNROLL
    for (int i = 0; i < steps; i++) {
        ints weights = i_load(w[i]);
        UNROLL
        for (int t = 0; t < n; t++) {
            dot[t] = i_dot(dot[t], weights, four_columns(x[t] + at + 4 * (size_t)i));
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        sum[t] = k.block == 32 ? dot[t] : i_add(sum[t], i_mul(dot[t], i_load(scale)));
    }
#else
    UNROLL
    for (int first = 0; first < steps; first += k.unchecked) {
        ints dot[MOST_TOKENS];
        UNROLL
        for (int i = first; i < first + k.unchecked; i++) {
            ints weights = i_load(w[i]);
            UNROLL
            for (int t = 0; t < n; t++) {
                ints four = four_columns(x[t] + at + 4 * (size_t)i);
                ints products = k.is_signed ? i_signed_products(weights, four) : i_products(weights, four);
                dot[t] = i == first ? products : i_add16(dot[t], products);
            }
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            sum[t] = i_pairs(sum[t], dot[t], k.block == 32 ? i_set1(0x00010001) : i_load(scale));
        }
    }
#endif
}

/* The end of the chain of a block of 256, added to sum: `isum` counts `offset` too much in every weight. */
ALWAYS_INLINE floats join_256(kind k, const tile *t, int lane, const block256 *b, int offset, ints isum, floats sum) {
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
    floats value = f_mul(f_load(t->d[0] + lane), i_floats(isum));
    if (k.minimums) {
        value = f_minus_madd(f_load(t->dmin + lane), i_floats(msum), value);
    }
    return f_madd(f_set1(b->d), value, sum);
}

/* The same for a block of 32, number i of its unit. */
ALWAYS_INLINE floats join_32(const tile *t, int lane, const blocks32 *b, int i, ints isum, floats sum) {
    return f_madd(f_set1(b->d[i]), f_mul(f_load(t->d[i] + lane), i_floats(isum)), sum);
}

ALWAYS_INLINE void apply_256(kind k, int n, const tile *t, int lane, const void *const *units, int start, float *const *sums) {
    const int8_t *x[MOST_TOKENS];
    ints isum[MOST_TOKENS];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const block256 *)units[i])->q;
        isum[i] = i_set1(0);
    }
    int steps = 64 / k.groups;
    for (int group = 0; group < k.groups; group++) {
        const uint8_t(*w)[INT_ROWS][4] = (const uint8_t(*)[INT_ROWS][4])(t->w[group * steps] + lane);
        add_scaled(k, n, steps, w, x, 4 * (size_t)(group * steps), t->scale[group] + lane, isum);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        f_store(sums[i] + lane, join_256(k, t, lane, units[i], OFFSET(k), isum[i], start ? f_set1(0.0f) : f_load(sums[i] + lane)));
    }
}

ALWAYS_INLINE void apply_32(kind k, int n, const tile *t, int lane, int num_blocks, const void *const *units, int start, float *const *sums) {
    const int8_t *x[MOST_TOKENS];
    floats sum[MOST_TOKENS];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const blocks32 *)units[i])->q;
        sum[i] = start ? f_set1(0.0f) : f_load(sums[i] + lane);
    }
    for (int block = 0; block < num_blocks; block++) {
        ints isum[MOST_TOKENS];
        UNROLL
        for (int i = 0; i < n; i++) {
            isum[i] = i_set1(OFFSET(k) ? -OFFSET(k) * ((const blocks32 *)units[i])->sums[block] : 0);
        }
        add_scaled(k, n, 8, (const uint8_t(*)[INT_ROWS][4])(t->w[8 * block] + lane), x, 32 * (size_t)block, NULL, isum);
        UNROLL
        for (int i = 0; i < n; i++) {
            sum[i] = join_32(t, lane, units[i], block, isum[i], sum[i]);
        }
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        f_store(sums[i] + lane, sum[i]);
    }
}

/* -- one token ---------------------------------------------------------------------------------------------------------------------
 * With one token a tile is used once, and most of the time would go into transposing it. Here 16 bytes of a row stay together, four
 * rows (two in AVX2, one on NEON) in a vector; only sums are transposed. The same integers come out. */

#if INT_LANES > 1
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

/* -- a tile of a product ----------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *rows; /* of weights, `stride` apart */
    size_t stride;
    const uint8_t *x; /* quantized activations, [units][unit_rows] */
    size_t unit_rows;
    const int32_t *gather; /* NULL, or the row of x of each token */
    int cols, first_token, num_tokens;
    const uint8_t *next; /* the rows that will be wanted after these, or NULL */
    float *sums;         /* [num_tokens][INT_ROWS] */
} tile_job;

typedef void (*unpack_fn)(const uint8_t *rows, size_t stride, tile *t, int lane, int block);
typedef ints (*one_token_fn)(const uint8_t *rows, size_t stride, tile *t, int lane, const int8_t *x);

ALWAYS_INLINE const void *unit_of(kind k, const tile_job *j, size_t unit, int token) {
    int number = j->first_token + token;
    size_t row = (size_t)(j->gather ? j->gather[number] : number);
    return j->x + (unit * j->unit_rows + row) * (k.block == 256 ? sizeof(block256) : sizeof(blocks32));
}

ALWAYS_INLINE void apply(kind k, int n, const tile_job *j, const tile *t, int num_blocks, size_t unit, int token) {
    const void *units[MOST_TOKENS];
    float *sums[MOST_TOKENS];
    UNROLL
    for (int i = 0; i < n; i++) {
        units[i] = unit_of(k, j, unit, token + i);
        sums[i] = j->sums + (size_t)(token + i) * INT_ROWS;
    }
    for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
        if (k.block == 256) {
            apply_256(k, n, t, lane, units, unit == 0, sums);
        } else {
            apply_32(k, n, t, lane, num_blocks, units, unit == 0, sums);
        }
    }
}

#ifdef __AMX_INT8__
ALWAYS_INLINE void join_group_256(kind k, const tile_job *j, const tile *t, size_t unit, int token, const tile_sums *low, const tile_sums *high) {
    const block256 *b = unit_of(k, j, unit, token);
    float *sums = j->sums + (size_t)token * INT_ROWS;
    int count = min_int(TILE_TOKENS, j->num_tokens - token);
    for (int i = 0; i < count; i++, sums += INT_ROWS) {
        ints isum = i_add(i_load((*low)[i]), i_left(i_load((*high)[i]), 7));
        f_store(sums, join_256(k, t, 0, b + i, 0, isum, unit ? f_load(sums) : f_set1(0.0f)));
    }
}

/* An unpacked unit by all tokens, sixteen at a time; behind the last token stand others, or padding. */
ALWAYS_INLINE void apply_tiles_256(kind k, const tile_job *j, const tile *t, size_t unit) {
    kind signed_kind = {.block = 256, .groups = k.groups, .minimums = k.minimums};
    split_tile split;
    _Alignas(64) tile_sums low[2], high[2];
    split_scaled(k.groups, k.is_signed, k.offset, t, &split);
    int groups = div_up(j->num_tokens, TILE_TOKENS);
    for (int group = 0; group < groups; group++) {
        const block256 *b = unit_of(k, j, unit, group * TILE_TOKENS);
        multiply_256(group & 1, &split, b->q, sizeof *b);
        if (group) {
            join_group_256(signed_kind, j, t, unit, (group - 1) * TILE_TOKENS, low + (~group & 1), high + (~group & 1));
        }
        store_256(group & 1, low + (group & 1), high + (group & 1));
    }
    join_group_256(signed_kind, j, t, unit, (groups - 1) * TILE_TOKENS, low + (~groups & 1), high + (~groups & 1));
}

ALWAYS_INLINE void apply_tiles_32(kind k, const tile_job *j, tile *t, int num_blocks, size_t unit) {
    for (int i = 0; i < 8 * num_blocks; i++) {
        i_store(t->w[i], to_signed(k.is_signed, k.offset, i_load(t->w[i])));
    }
    for (int token = 0; token < j->num_tokens; token += TILE_TOKENS) {
        int count = min_int(TILE_TOKENS, j->num_tokens - token);
        const blocks32 *b = unit_of(k, j, unit, token);
        float *sums = j->sums + (size_t)token * INT_ROWS;
        floats sum[TILE_TOKENS];
        UNROLL
        for (int i = 0; i < TILE_TOKENS; i++) {
            sum[i] = unit && i < count ? f_load(sums + i * INT_ROWS) : f_set1(0.0f);
        }
        _Alignas(64) tile_sums dots[8];
        multiply_4_of_32((const uint8_t(*)[INT_ROWS][4])t->w, b->q, sizeof *b);
        store_4_of_32(dots);
        if (num_blocks > 4) {
            multiply_4_of_32((const uint8_t(*)[INT_ROWS][4])t->w[32], b->q + 128, sizeof *b);
        }
        for (int block = 0; block < num_blocks; block++) {
            if (block == 4) {
                store_4_of_32(dots + 4);
            }
            UNROLL
            for (int i = 0; i < TILE_TOKENS; i++) {
                sum[i] = join_32(t, 0, b + i, block, i_load(dots[block][i]), sum[i]);
            }
        }
        UNROLL
        for (int i = 0; i < TILE_TOKENS; i++) {
            if (i < count) {
                f_store(sums + i * INT_ROWS, sum[i]);
            }
        }
    }
}
#endif

/* A tile's rows are one piece of memory, but it is read in columns of blocks, which the processor does not foresee. So the piece that
 * comes next is fetched in order while this one is worked on, a share with every unit. */
ALWAYS_INLINE void fetch_next(const tile_job *j, size_t unit) {
    size_t share = j->stride * INT_ROWS * 256 / (size_t)j->cols; /* bytes of a unit, for any but a last short one */
    for (size_t at = 0; j->next && at < share; at += 64) {
        __builtin_prefetch(j->next + unit * share + at, 0, 2);
    }
}

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

#if INT_LANES > 1
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

ALWAYS_INLINE void run_tile(kind k, size_t block_bytes, unpack_fn unpack, one_token_fn one, unpack_fn head, const int8_t *table, const tile_job *j) {
    tile t;
    if (one && j->num_tokens == 1) {
        one_token_256(k, block_bytes, one, j, &t);
        return;
    }
#if INT_LANES > 1
    if (head && j->num_tokens == 1) {
        one_token_32(k, block_bytes, head, table, j, &t);
        return;
    }
#else
    (void)head, (void)table;
#endif
#ifdef __AMX_INT8__
    int tiles = j->num_tokens >= LEAST_TILE_TOKENS && !j->gather;
    if (tiles) {
        begin_tiles(k.block == 256 ? 64 : 32);
    }
#endif
    size_t at = 0;
    for (size_t unit = 0; unit * 256 < (size_t)j->cols; unit++) {
        int num_blocks = min_int(256, j->cols - (int)unit * 256) / k.block;
        fetch_next(j, unit);
        for (int block = 0; block < num_blocks; block++, at += block_bytes) {
            for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
                unpack(j->rows + at + (size_t)lane * j->stride, j->stride, &t, lane, block);
            }
        }
#ifdef __AMX_INT8__
        if (tiles) {
            if (k.block == 256) {
                apply_tiles_256(k, j, &t, unit);
            } else {
                apply_tiles_32(k, j, &t, num_blocks, unit);
            }
            continue;
        }
#endif
        int token = 0;
        for (; token + MOST_TOKENS <= j->num_tokens; token += MOST_TOKENS) {
            apply(k, MOST_TOKENS, j, &t, num_blocks, unit, token);
        }
        if (MOST_TOKENS == 8 && token + 4 <= j->num_tokens) {
            apply(k, 4, j, &t, num_blocks, unit, token);
            token += 4;
        }
        if (token + 2 <= j->num_tokens) {
            apply(k, 2, j, &t, num_blocks, unit, token);
            token += 2;
        }
        if (token < j->num_tokens) {
            apply(k, 1, j, &t, num_blocks, unit, token);
        }
    }
#ifdef __AMX_INT8__
    if (tiles) {
        end_tiles();
    }
#endif
}

/* unchecked: 2 x largest byte x 127 x steps stays below 32768. */
#define KERNEL_256(name, bytes, one, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){.block = 256, __VA_ARGS__}, bytes, unpack_##name, one, NULL, NULL, j); }
#define KERNEL_32(name, bytes, head, table, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){.block = 32, .groups = 1, __VA_ARGS__}, bytes, unpack_##name, NULL, head, table, j); }
KERNEL_256(q4_k, 144, one_q4_k, .groups = 8, .unchecked = 8, .minimums = 1)
KERNEL_256(q5_k, 176, one_q5_k, .groups = 8, .unchecked = 4, .minimums = 1)
KERNEL_256(q6_k, 210, one_q6_k, .groups = 16, .unchecked = 2, .offset = 32)
KERNEL_256(iq4_xs, 136, NULL, .groups = 8, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(q8_0, 34, unpack_half, NULL, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(q4_0, 18, unpack_half, NULL, .nibbles = 1, .unchecked = 8, .offset = 8)
KERNEL_32(iq4_nl, 18, unpack_half, iq4_values, .nibbles = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(mxfp4, 17, unpack_e8m0, e2m1_values, .nibbles = 1, .unchecked = 4, .offset = 12)

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

static const uint8_t *row_of(const product *p, const matrix *m, int row) { return m->data + p->expert * m->expert_bytes + row * m->row_bytes; }

static void multiply_tile(const product *p, const matrix *m, const int_source *x, int first_row, const uint8_t *next, int first_token, int num_tokens, float *sums) {
    tile_job j = {.rows = row_of(p, m, first_row), .stride = (size_t)m->row_bytes, .x = x->units, .unit_rows = x->num_rows, .gather = x->gather, .cols = m->cols,
                  .next = next, .first_token = first_token, .num_tokens = num_tokens, .sums = sums};
    run_type(m->type, &j);
}

/* sums [num_tokens][INT_ROWS] to rows `done` .. of the tile, at out. */
static void store_sums(const product *p, const float *sums, int num_tokens, int done, float *out) {
    for (int t = 0; t < num_tokens; t++, sums += INT_ROWS, out += p->ldo) {
        if (done == 0) {
            f32x16 sum = v_load(sums);
            v_store(out, p->add ? v_add(v_load(out), sum) : sum);
        }
        for (int r = done; done && r < INT_ROWS; r++) {
            out[r - done] = p->add ? out[r - done] + sums[r] : sums[r];
        }
    }
}

/* Rows first_row .. of one tile; `next`: the first row of another that follows, or -1. */
static void product_tile(const product *p, const int_source *x, int first_row, int next_row, float *scratch) {
    float *sums = scratch, *up_sums = scratch + INT_TOKENS * INT_ROWS;
    int start = min_int(first_row, p->weight->rows - INT_ROWS); /* a last tile reaches back */
    const uint8_t *next = next_row < 0 ? NULL : row_of(p, p->weight, next_row);
    for (int first = 0; first < p->num_tokens; first += INT_TOKENS) {
        int num_tokens = min_int(INT_TOKENS, p->num_tokens - first);
        multiply_tile(p, p->weight, x, start, p->up ? row_of(p, p->up, start) : next, first, num_tokens, sums);
        if (p->up) {
            multiply_tile(p, p->up, x, start, next, first, num_tokens, up_sums);
            for (int i = 0; i < num_tokens * INT_ROWS; i += INT_ROWS) {
                v_store(sums + i, v_mul(v_silu(v_load(sums + i)), v_load(up_sums + i)));
            }
        }
        store_sums(p, sums, num_tokens, first_row - start, p->out + (size_t)first * p->ldo + first_row);
    }
}

void int_product_rows(const product *p, const int_source *x, int first_row, int num_rows, float *scratch) {
    int end = min_int(first_row + num_rows, p->weight->rows);
    for (int row = first_row; row < end; row += INT_ROWS) {
        int next = row + INT_ROWS < end ? min_int(row + INT_ROWS, p->weight->rows - INT_ROWS) : -1;
        product_tile(p, x, row, next, scratch);
    }
}
