/* One query and one tile of keys and values, in an online softmax.
 *
 * Keys of a tile are stored as [D / 16][TILE][16], so that sixteen keys are a fixed distance apart; values as [TILE][D]. */
#ifndef HEADRACE_ATTENTION_TILE_H
#define HEADRACE_ATTENTION_TILE_H

#include "simd_math.h"

#define TILE 16 /* keys; divides page_tokens */

typedef struct { /* running softmax of one query: sum of weights and weighted values relative to `top` */
    float top, weight;
} softmax_state;

#if SIMD_AVX512
#define KEYS_AT_ONCE 16
#else
#define KEYS_AT_ONCE 4
#endif

/* The canonical dot products of a query with the keys of a tile. */
static f32x16 tile_scores(const float *query, const float *keys, size_t dim) {
    f32x16 sums[TILE];
    for (int first = 0; first < TILE; first += KEYS_AT_ONCE) {
        f32x16 part[KEYS_AT_ONCE];
#pragma GCC unroll 16
        for (int i = 0; i < KEYS_AT_ONCE; i++) {
            part[i] = v_zero();
        }
        const float *key = keys + first * LANES;
        for (size_t d = 0; d < dim; d += LANES, key += TILE * LANES) {
            f32x16 q = v_load(query + d);
#pragma GCC unroll 16
            for (int i = 0; i < KEYS_AT_ONCE; i++) {
                part[i] = v_madd(q, v_load(key + i * LANES), part[i]);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < KEYS_AT_ONCE; i++) {
            sums[first + i] = part[i];
        }
    }
    return v_sum16(sums);
}

#define VALUE_VECTORS (SIMD_AVX512 ? 8 : 4) /* columns / 16 with their sums in registers */

ALWAYS_INLINE void add_values(int vectors, const float *weights, int num_keys, const float *values, size_t dim, f32x16 keep, float *sum) {
    f32x16 total[VALUE_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++) {
        total[i] = v_mul(v_load(sum + i * LANES), keep);
    }
    for (int key = 0; key < num_keys; key++) {
        f32x16 weight = v_set1(weights[key]);
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++) {
            total[i] = v_madd(weight, v_load(values + (size_t)key * dim + i * LANES), total[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++) {
        v_store(sum + i * LANES, total[i]);
    }
}

static void attend_tile(const float *query, const float *keys, const float *values, int num_keys, size_t dim, softmax_state *state, float *sum) {
    float scores[TILE], weights[TILE];
    f32x16 score = tile_scores(query, keys, dim);
    if (num_keys < TILE) { /* mask the missing keys */
        v_store(scores, score);
        for (int i = num_keys; i < TILE; i++) {
            scores[i] = -INFINITY;
        }
        score = v_load(scores);
    }
    float tile_top = v_hmax(score), top = tile_top > state->top ? tile_top : state->top;
    f32x16 weight = v_exp(v_sub(score, v_set1(top))); /* zero for a missing key */
    v_store(weights, weight);
    float keep = exp_one(state->top - top);
    state->weight = fmaf(state->weight, keep, v_sum(weight));
    state->top = top;
    size_t d = 0;
    for (; d + VALUE_VECTORS * LANES <= dim; d += VALUE_VECTORS * LANES) {
        add_values(VALUE_VECTORS, weights, num_keys, values + d, dim, v_set1(keep), sum + d);
    }
    for (; d < dim; d += LANES) {
        add_values(1, weights, num_keys, values + d, dim, v_set1(keep), sum + d);
    }
}

/* Merges a later segment into the earlier ones: total = total e^(top - new top) + segment e^(its top - new top). */
static void merge(softmax_state *state, float *sum, const softmax_state *other, const float *other_sum, size_t dim) {
    float top = other->top > state->top ? other->top : state->top;
    float keep = exp_one(state->top - top), take = exp_one(other->top - top);
    state->weight = fmaf(other->weight, take, state->weight * keep);
    state->top = top;
    for (size_t d = 0; d < dim; d += LANES) {
        v_store(sum + d, v_madd(v_load(other_sum + d), v_set1(take), v_mul(v_load(sum + d), v_set1(keep))));
    }
}

static const softmax_state nothing = {-INFINITY, 0.0f};

#endif
