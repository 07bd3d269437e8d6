/* Rows of keys and values in the pages' type (svc/memory/layout.py). `place`: of a row in the slab, in elements; n: head size.
 *
 * Blocks of 32 numbers: a float16 scale d, then bytes (Q8_0, x = d q) or pairs of 4 bits (Q4_0, x = d (q - 8); the low half of byte i is
 * number i, the high half number i + 16). d comes from the largest magnitude; rounding as svc/compute/reference/kv_pages.py says. */
#ifndef HEADRACE_KV_PAGES_H
#define HEADRACE_KV_PAGES_H

#include "runtime.h"

#define KV_BLOCK 32
#define Q8_0_BYTES 34
#define Q4_0_BYTES 18

/* The bits of the largest magnitude: they compare like the numbers, NaN above all. */
ALWAYS_INLINE uint32_t block_largest(const float *x) {
    uint32_t largest = 0;
    for (int i = 0; i < KV_BLOCK; i++) {
        uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

ALWAYS_INLINE void put_scale(uint8_t *block, float d) {
    uint16_t half = float_to_half(d);
    memcpy(block, &half, sizeof half);
}

ALWAYS_INLINE float get_scale(const uint8_t *block) {
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return half_to_float(half);
}

/* Whether a block has to be rounded; otherwise it is zeros, with a scale of zero or NaN. */
ALWAYS_INLINE int has_numbers(uint8_t *block, uint32_t largest, size_t bytes) {
    if (bits_to_float(largest) >= 1e-30f && largest < 0x7f800000) {
        return 1;
    }
    memset(block, 0, bytes);
    put_scale(block, largest < 0x7f800000 ? 0.0f : bits_to_float(0x7fc00000));
    return 0;
}

static inline void write_q8_0(uint8_t *block, const float *x) {
    uint32_t largest = block_largest(x);
    if (!has_numbers(block, largest, Q8_0_BYTES)) {
        return;
    }
    float d = bits_to_float(largest) / 127.0f, inverse = 1.0f / d;
    put_scale(block, d);
    for (int i = 0; i < KV_BLOCK; i++) {
        block[2 + i] = (uint8_t)(float_to_bits(x[i] * inverse + MAGIC) - MAGIC_BITS);
    }
}

static inline void write_q4_0(uint8_t *block, const float *x) {
    uint32_t largest = block_largest(x);
    float extreme = 0.0f;
    if (!has_numbers(block, largest, Q4_0_BYTES)) {
        memset(block + 2, 0x88, Q4_0_BYTES - 2);
        return;
    }
    for (int i = KV_BLOCK - 1; i >= 0; i--) {
        extreme = (float_to_bits(x[i]) & 0x7fffffff) == largest ? x[i] : extreme;
    }
    float d = extreme / -8.0f, inverse = 1.0f / d;
    put_scale(block, d);
    uint8_t level[KV_BLOCK];
    for (int i = 0; i < KV_BLOCK; i++) {
        float scaled = x[i] * inverse + 8.5f;
        level[i] = (uint8_t)(scaled < 15.0f ? scaled : 15.0f);
    }
    for (int i = 0; i < KV_BLOCK / 2; i++) {
        block[2 + i] = (uint8_t)(level[i] | level[i + 16] << 4);
    }
}

static inline void kv_write_row(const caches *c, size_t place, const float *values, int n) {
    uint8_t *block = (uint8_t *)c->kv + place;
    switch (c->kv_type) {
    case KV_F32:
        memcpy((float *)c->kv + place, values, (size_t)n * sizeof *values);
        break;
    case KV_F16:
        for (int i = 0; i < n; i += LANES) {
            v_store_half((uint16_t *)c->kv + place + i, v_load(values + i));
        }
        break;
    case KV_Q8_0:
        for (int i = 0; i < n; i += KV_BLOCK, block += Q8_0_BYTES) {
            write_q8_0(block, values + i);
        }
        break;
    default:
        for (int i = 0; i < n; i += KV_BLOCK, block += Q4_0_BYTES) {
            write_q4_0(block, values + i);
        }
    }
}

/* Sixteen values at a time, `stride` floats apart in `values`. */
static inline void kv_read_row(const caches *c, size_t place, float *values, size_t stride, int n) {
    const uint8_t *block = (const uint8_t *)c->kv + place;
    switch (c->kv_type) {
    case KV_F32:
        for (int i = 0; i < n; i += LANES, values += stride) {
            v_store(values, v_load((const float *)c->kv + place + i));
        }
        break;
    case KV_F16:
        for (int i = 0; i < n; i += LANES, values += stride) {
            v_store(values, v_load_half((const uint16_t *)c->kv + place + i));
        }
        break;
    case KV_Q8_0:
        for (int i = 0; i < n; i += KV_BLOCK, block += Q8_0_BYTES, values += 2 * stride) {
            f32x16 d = v_set1(get_scale(block));
            v_store(values, v_mul(v_load_int8((const int8_t *)block + 2), d));
            v_store(values + stride, v_mul(v_load_int8((const int8_t *)block + 18), d));
        }
        break;
    default:
        for (int i = 0; i < n; i += KV_BLOCK, block += Q4_0_BYTES, values += 2 * stride) {
            f32x16 d = v_set1(get_scale(block));
            int8_t low[LANES], high[LANES];
            for (int k = 0; k < LANES; k++) {
                low[k] = (int8_t)((block[2 + k] & 15) - 8);
                high[k] = (int8_t)((block[2 + k] >> 4) - 8);
            }
            v_store(values, v_mul(v_load_int8(low), d));
            v_store(values + stride, v_mul(v_load_int8(high), d));
        }
    }
}

#endif
