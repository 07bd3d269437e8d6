/* A tile of unpacked weights (16 rows by 256 columns) times some tokens: exact integer sums, joined by the float chain of int_matmul.c.
 *
 * Lanes are rows, so no sum crosses lanes. */
#ifndef HEADRACE_INT_TILE_H
#define HEADRACE_INT_TILE_H

#include "int_activations.h"
#include "int_unpack.h"

#define MOST_LANE_GROUPS (INT_LANES == 8 ? 2 : 1)
#define MOST_TOKENS (INT_LANES == 16 ? 8 : INT_LANES > 1 ? 4 : 2) /* at once: as many as the vector registers hold */

typedef struct {
    int block;     /* 256 or 32 */
    int groups;    /* of a block of 256, with one scale each */
    int unchecked; /* steps (of two products each) that 16 bits can hold the sum of */
    int is_signed; /* values are signed bytes */
    int offset;    /* the unsigned bytes are too large by this */
    int minimums;
    int nibbles;   /* of blocks of 32: two values in a byte */
} kind;

/* The offset that sums must subtract in this build. */
#define OFFSET(k) (SIGNED_WEIGHTS && (k).is_signed ? 0 : (k).offset)

#if MOST_LANE_GROUPS > 1
/* There are more sums than registers. These stay in memory between groups, where the compiler would move others back and forth. */
#define KEEP_IN_MEMORY(sums) __asm__ volatile("" : "+m"(sums))
/* Otherwise compilers add up in trees, and all that is to be added waits in memory. */
#define ADD_NOW(sum) __asm__("" : "+x"(sum))
#else
#define KEEP_IN_MEMORY(sums) (void)(sums)
#define ADD_NOW(sum) (void)(sum)
#endif

/* Vectors of rows at once: two share what is loaded of a token, where their sums seldom leave the registers. */
ALWAYS_INLINE int lane_groups(kind k) { return MOST_LANE_GROUPS > 1 && k.unchecked > 2 ? 2 : 1; }

/* Four columns of a token for all rows. */
ALWAYS_INLINE ints four_columns(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return i_set1(four);
}

/* sum += scale * (dot product of `steps` x 4 columns), for m vectors of rows and tokens x[0 .. n). A block of 32 has no scale. */
ALWAYS_INLINE void add_scaled(kind k, int m, int n, int steps, const uint8_t (*w)[INT_ROWS][4], const int8_t *const *x, size_t at, const int32_t *scale,
                              ints (*sum)[MOST_TOKENS]) {
#if DIRECT_DOT
    ints dot[MOST_LANE_GROUPS][MOST_TOKENS];
    UNROLL
    for (int i = 0; i < m * n; i++) {
        dot[i / n][i % n] = k.block == 32 ? sum[i / n][i % n] : i_set1(0);
    }
    UNROLL
    for (int i = 0; i < steps; i++) {
        ints weights[MOST_LANE_GROUPS];
        UNROLL
        for (int g = 0; g < m; g++) {
            weights[g] = i_load(w[i][g * INT_LANES]);
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            ints four = four_columns(x[t] + at + 4 * (size_t)i);
            UNROLL
            for (int g = 0; g < m; g++) {
                dot[g][t] = i_dot(dot[g][t], weights[g], four);
                ADD_NOW(dot[g][t]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < m * n; i++) {
        int g = i / n, t = i % n;
        sum[g][t] = k.block == 32 ? dot[g][t] : i_add(sum[g][t], i_mul(dot[g][t], i_load(scale + g * INT_LANES)));
    }
#else
    UNROLL
    for (int first = 0; first < steps; first += k.unchecked) {
        ints dot[MOST_LANE_GROUPS][MOST_TOKENS];
        UNROLL
        for (int i = first; i < first + k.unchecked; i++) {
            ints weights[MOST_LANE_GROUPS];
            UNROLL
            for (int g = 0; g < m; g++) {
                weights[g] = i_load(w[i][g * INT_LANES]);
            }
            UNROLL
            for (int t = 0; t < n; t++) {
                ints four = four_columns(x[t] + at + 4 * (size_t)i);
                UNROLL
                for (int g = 0; g < m; g++) {
                    ints products = k.is_signed ? i_signed_products(weights[g], four) : i_products(weights[g], four);
                    dot[g][t] = i == first ? products : i_add16(dot[g][t], products);
                    ADD_NOW(dot[g][t]);
                }
            }
        }
        UNROLL
        for (int i = 0; i < m * n; i++) {
            int g = i / n, t = i % n;
            sum[g][t] = i_pairs(sum[g][t], dot[g][t], k.block == 32 ? i_set1(0x00010001) : i_load(scale + g * INT_LANES));
            ADD_NOW(sum[g][t]);
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

ALWAYS_INLINE void apply_256(kind k, int m, int n, const tile *t, int lane, const void *const *units, int start, float *const *sums) {
    const int8_t *x[MOST_TOKENS];
    ints isum[MOST_LANE_GROUPS][MOST_TOKENS];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const block256 *)units[i])->q;
        UNROLL
        for (int g = 0; g < m; g++) {
            isum[g][i] = i_set1(0);
        }
    }
    int steps = 64 / k.groups;
    for (int group = 0; group < k.groups; group++) {
        if (m > 1) {
            KEEP_IN_MEMORY(isum);
        }
        const uint8_t(*w)[INT_ROWS][4] = (const uint8_t(*)[INT_ROWS][4])(t->w[group * steps] + lane);
        add_scaled(k, m, n, steps, w, x, 4 * (size_t)(group * steps), t->scale[group] + lane, isum);
    }
    UNROLL
    for (int i = 0; i < m * n; i++) {
        int g = i / n, token = i % n, at = lane + g * INT_LANES;
        floats sum = start ? f_set1(0.0f) : f_load(sums[token] + at);
        f_store(sums[token] + at, join_256(k, t, at, units[token], OFFSET(k), isum[g][token], sum));
    }
}

ALWAYS_INLINE void apply_32(kind k, int m, int n, const tile *t, int lane, int num_blocks, const void *const *units, int start, float *const *sums) {
    const int8_t *x[MOST_TOKENS];
    floats sum[MOST_LANE_GROUPS][MOST_TOKENS];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = ((const blocks32 *)units[i])->q;
        UNROLL
        for (int g = 0; g < m; g++) {
            sum[g][i] = start ? f_set1(0.0f) : f_load(sums[i] + lane + g * INT_LANES);
        }
    }
    for (int block = 0; block < num_blocks; block++) {
        if (m > 1) {
            KEEP_IN_MEMORY(sum);
        }
        ints isum[MOST_LANE_GROUPS][MOST_TOKENS];
        UNROLL
        for (int i = 0; i < m * n; i++) {
            isum[i / n][i % n] = i_set1(-OFFSET(k) * ((const blocks32 *)units[i % n])->sums[block]);
        }
        add_scaled(k, m, n, 8, (const uint8_t(*)[INT_ROWS][4])(t->w[8 * block] + lane), x, 32 * (size_t)block, NULL, isum);
        UNROLL
        for (int i = 0; i < m * n; i++) {
            int g = i / n, token = i % n;
            sum[g][token] = join_32(t, lane + g * INT_LANES, units[token], block, isum[g][token], sum[g][token]);
        }
    }
    UNROLL
    for (int i = 0; i < m * n; i++) {
        f_store(sums[i % n] + lane + i / n * INT_LANES, sum[i / n][i % n]);
    }
}

typedef struct {
    const uint8_t *rows; /* of weights, `stride` apart */
    size_t stride;
    const uint8_t *x; /* quantized activations, [units][unit_rows] */
    size_t unit_rows;
    const int32_t *gather; /* NULL, or the row of x of each token */
    int cols, first_token, num_tokens;
    const uint8_t *next; /* the rows of the next tile, or NULL */
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
    const int m = lane_groups(k);
    for (int lane = 0; lane < INT_ROWS; lane += m * INT_LANES) {
        if (k.block == 256) {
            apply_256(k, m, n, t, lane, units, unit == 0, sums);
        } else {
            apply_32(k, m, n, t, lane, num_blocks, units, unit == 0, sums);
        }
    }
}

/* The rows of a tile are contiguous, but they are read in columns of blocks, which the processor's prefetcher does not follow. So the
 * next tile is prefetched in order during the work on this one, a share with every unit. */
ALWAYS_INLINE void fetch_next(const tile_job *j, size_t unit) {
    size_t share = j->stride * INT_ROWS * 256 / (size_t)j->cols; /* bytes of a unit, except a short last one */
    for (size_t at = 0; j->next && at < share; at += 64) {
        __builtin_prefetch(j->next + unit * share + at, 0, 2);
    }
}

#endif
