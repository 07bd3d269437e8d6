/* Exact dequantization of every supported GGUF type. The arithmetic (order of multiplications, no fused operation) is that of
 * svc/compute/quant, so that both give the same bits. Packed integers are first spread to int8, in loops of constant length that
 * compilers vectorise, and then scaled sixteen at a time. */
#include "quant.h"

#include "lanes.h"

#define BLOCKS(values, bytes) for (; n; n -= (values), row += (bytes), out += (values))

ALWAYS_INLINE uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
ALWAYS_INLINE uint32_t load32(const uint8_t *p) { return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16; }
ALWAYS_INLINE float load_half(const uint8_t *p) { return half_to_float(load16(p)); }

#define DEQUANTIZER(name) \
    static void name(const uint8_t *restrict row, float *restrict out, size_t n, const codebooks *books)
#define UNUSED_BOOKS (void)books

/* out = d * q, n a multiple of 16. */
ALWAYS_INLINE void scaled(float d, const int8_t *q, int n, float *out) {
    for (int i = 0; i < n; i += LANES) {
        v_store(out + i, v_mul(v_set1(d), v_load_int8(q + i)));
    }
}

/* out = d * q + m: the product is rounded first. */
ALWAYS_INLINE void scaled_plus(float d, float m, const int8_t *q, int n, float *out) {
    for (int i = 0; i < n; i += LANES) {
        v_store(out + i, v_add(v_mul(v_set1(d), v_load_int8(q + i)), v_set1(m)));
    }
}

/* -- floats ----------------------------------------------------------------------------------------------------------------- */

DEQUANTIZER(from_f32) {
    UNUSED_BOOKS;
    memcpy(out, row, n * sizeof *out);
}

DEQUANTIZER(from_f16) {
    UNUSED_BOOKS;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        uint16_t halves[LANES];
        memcpy(halves, row + 2 * i, sizeof halves);
        v_store(out + i, v_load_half(halves));
    }
    for (; i < n; i++) {
        out[i] = load_half(row + 2 * i);
    }
}

DEQUANTIZER(from_bf16) {
    UNUSED_BOOKS;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, row + 2 * i, sizeof bits);
        out[i] = bits_to_float((uint32_t)bits << 16);
    }
}

/* -- blocks of 32 ----------------------------------------------------------------------------------------------------------- */

DEQUANTIZER(from_q8_0) {
    UNUSED_BOOKS;
    BLOCKS(32, 34) {
        float d = load_half(row);
        scaled(d, (const int8_t *)row + 2, 32, out);
    }
}

DEQUANTIZER(from_q4_0) {
    UNUSED_BOOKS;
    BLOCKS(32, 18) {
        int8_t q[32];
        for (int i = 0; i < 16; i++) {
            q[i] = (int8_t)((row[2 + i] & 15) - 8);
            q[16 + i] = (int8_t)((row[2 + i] >> 4) - 8);
        }
        scaled(load_half(row), q, 32, out);
    }
}

DEQUANTIZER(from_q4_1) {
    UNUSED_BOOKS;
    BLOCKS(32, 20) {
        int8_t q[32];
        for (int i = 0; i < 16; i++) {
            q[i] = (int8_t)(row[4 + i] & 15);
            q[16 + i] = (int8_t)(row[4 + i] >> 4);
        }
        scaled_plus(load_half(row), load_half(row + 2), q, 32, out);
    }
}

/* Low four bits from 16 bytes, the fifth of value i from bit i of `high`. */
ALWAYS_INLINE void fifth_bits(const uint8_t *low, uint32_t high, int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((low[i] & 15) | (high >> i & 1) << 4);
        q[16 + i] = (int8_t)(low[i] >> 4 | (high >> (16 + i) & 1) << 4);
    }
}

DEQUANTIZER(from_q5_0) {
    UNUSED_BOOKS;
    BLOCKS(32, 22) {
        int8_t q[32];
        fifth_bits(row + 6, load32(row + 2), q);
        for (int i = 0; i < 32; i++) {
            q[i] = (int8_t)(q[i] - 16);
        }
        scaled(load_half(row), q, 32, out);
    }
}

DEQUANTIZER(from_q5_1) {
    UNUSED_BOOKS;
    BLOCKS(32, 24) {
        int8_t q[32];
        fifth_bits(row + 8, load32(row + 4), q);
        scaled_plus(load_half(row), load_half(row + 2), q, 32, out);
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* doubled */

ALWAYS_INLINE void lookup_block(float d, const uint8_t *packed, const int8_t *values, float *out) {
    int8_t q[32];
    for (int i = 0; i < 16; i++) {
        q[i] = values[packed[i] & 15];
        q[16 + i] = values[packed[i] >> 4];
    }
    scaled(d, q, 32, out);
}

DEQUANTIZER(from_iq4_nl) {
    UNUSED_BOOKS;
    BLOCKS(32, 18) { lookup_block(load_half(row), row + 2, iq4_values, out); }
}

DEQUANTIZER(from_mxfp4) {
    UNUSED_BOOKS;
    BLOCKS(32, 17) { /* half of 2^(e - 127), since the values are doubled; the two smallest exponents are subnormal */
        uint32_t e = row[0];
        lookup_block(bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), row + 1, e2m1_values, out);
    }
}

/* Half of an E4M3 number without its sign; 127 (NaN there) stands for zero. */
ALWAYS_INLINE float half_e4m3(uint8_t code) {
    uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    if (code == 127) {
        return 0.0f;
    }
    return exponent ? (float)(8 + mantissa) * bits_to_float((exponent + 116) << 23) : (float)mantissa * 0x1p-10f;
}

DEQUANTIZER(from_nvfp4) {
    UNUSED_BOOKS;
    BLOCKS(64, 36) {
        for (int group = 0; group < 4; group++) {
            const uint8_t *q = row + 4 + 8 * group;
            float d = half_e4m3(row[group]);
            for (int i = 0; i < 8; i++) {
                out[16 * group + i] = d * (float)e2m1_values[q[i] & 15];
                out[16 * group + 8 + i] = d * (float)e2m1_values[q[i] >> 4];
            }
        }
    }
}

/* -- K-quants: super-blocks of 256 ------------------------------------------------------------------------------------------ */

DEQUANTIZER(from_q2_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 84) {
        float d = load_half(row + 80), dmin = load_half(row + 82);
        for (int group = 0; group < 16; group++) {
            const uint8_t *packed = row + 16 + group / 8 * 32 + group % 2 * 16;
            int shift = group % 8 / 2 * 2;
            int8_t q[16];
            for (int i = 0; i < 16; i++) {
                q[i] = (int8_t)(packed[i] >> shift & 3);
            }
            scaled_plus(d * (float)(row[group] & 15), -(dmin * (float)(row[group] >> 4)), q, 16, out + 16 * group);
        }
    }
}

DEQUANTIZER(from_q3_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 110) {
        const uint8_t *mask = row, *scales = row + 96;
        float d = load_half(row + 108);
        for (int group = 0; group < 16; group++) {
            const uint8_t *packed = row + 32 + group / 8 * 32 + group % 2 * 16, *high = mask + group % 2 * 16;
            int shift = group % 8 / 2 * 2, bit = group / 2;
            int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
            int scale = (low | (scales[8 + group % 4] >> group / 4 * 2 & 3) << 4) - 32;
            int8_t q[16];
            for (int i = 0; i < 16; i++) { /* a set bit means no offset */
                q[i] = (int8_t)((packed[i] >> shift & 3) + 4 * (high[i] >> bit & 1) - 4);
            }
            scaled(d * (float)scale, q, 16, out + 16 * group);
        }
    }
}

/* The eight 6-bit scales and minimums of Q4_K and Q5_K. */
ALWAYS_INLINE void scale_and_minimum(const uint8_t *packed, int group, int *scale, int *minimum) {
    if (group < 4) {
        *scale = packed[group] & 63;
        *minimum = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
        *minimum = packed[group + 4] >> 4 | (packed[group] >> 6) << 4;
    }
}

DEQUANTIZER(from_q4_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 144) {
        float d = load_half(row), dmin = load_half(row + 2);
        for (int group = 0; group < 8; group++) {
            const uint8_t *packed = row + 16 + group / 2 * 32;
            int scale, minimum, shift = group % 2 * 4;
            int8_t q[32];
            scale_and_minimum(row + 4, group, &scale, &minimum);
            for (int i = 0; i < 32; i++) {
                q[i] = (int8_t)(packed[i] >> shift & 15);
            }
            scaled_plus(d * (float)scale, -(dmin * (float)minimum), q, 32, out + 32 * group);
        }
    }
}

DEQUANTIZER(from_q5_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 176) {
        float d = load_half(row), dmin = load_half(row + 2);
        const uint8_t *fifth = row + 16;
        for (int group = 0; group < 8; group++) {
            const uint8_t *packed = row + 48 + group / 2 * 32;
            int scale, minimum, shift = group % 2 * 4;
            int8_t q[32];
            scale_and_minimum(row + 4, group, &scale, &minimum);
            for (int i = 0; i < 32; i++) {
                q[i] = (int8_t)((packed[i] >> shift & 15) | (fifth[i] >> group & 1) << 4);
            }
            scaled_plus(d * (float)scale, -(dmin * (float)minimum), q, 32, out + 32 * group);
        }
    }
}

DEQUANTIZER(from_q6_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 210) {
        const int8_t *scales = (const int8_t *)row + 192;
        float d = load_half(row + 208);
        for (int group = 0; group < 8; group++) {
            int half = group / 4, part = group % 4, shift = part / 2 * 4;
            const uint8_t *low = row + 64 * half + part % 2 * 32, *high = row + 128 + 32 * half;
            int8_t q[32];
            for (int i = 0; i < 32; i++) {
                q[i] = (int8_t)(((low[i] >> shift & 15) | (high[i] >> 2 * part & 3) << 4) - 32);
            }
            scaled(d * (float)scales[2 * group], q, 16, out + 32 * group);
            scaled(d * (float)scales[2 * group + 1], q + 16, 16, out + 32 * group + 16);
        }
    }
}

/* -- ternary ---------------------------------------------------------------------------------------------------------------- */

/* A byte holds five base-3 digits as a fraction of 256; multiplying by a power of 3 (mod 256) brings a digit to the top. */
ALWAYS_INLINE void ternary_digits(float d, const uint8_t *q, int width, int digits, float *out) {
    uint8_t power = 1;
    for (int digit = 0; digit < digits; digit++, power = (uint8_t)(power * 3)) {
        for (int i = 0; i < width; i++) {
            out[digit * width + i] = d * (float)((((uint8_t)(q[i] * power) * 3) >> 8) - 1);
        }
    }
}

DEQUANTIZER(from_tq1_0) {
    UNUSED_BOOKS;
    BLOCKS(256, 54) {
        float d = load_half(row + 52);
        ternary_digits(d, row, 32, 5, out);
        ternary_digits(d, row + 32, 16, 5, out + 160);
        ternary_digits(d, row + 48, 4, 4, out + 240);
    }
}

DEQUANTIZER(from_tq2_0) {
    UNUSED_BOOKS;
    BLOCKS(256, 66) {
        float d = load_half(row + 64);
        for (int group = 0; group < 8; group++) {
            const uint8_t *q = row + group / 4 * 32;
            for (int i = 0; i < 32; i++) {
                out[32 * group + i] = d * (float)((q[i] >> group % 4 * 2 & 3) - 1);
            }
        }
    }
}

/* -- codebook types --------------------------------------------------------------------------------------------------------- */

/* Seven stored sign bits; the eighth makes their number even. */
ALWAYS_INLINE uint8_t even_signs(uint32_t seven) {
    return (uint8_t)(seven | (uint32_t)(__builtin_popcount(seven) & 1) << 7);
}

ALWAYS_INLINE void signed_entry(float scale, const float *entry, int width, uint32_t signs, float *out) {
    for (int i = 0; i < width; i++) {
        float value = scale * entry[i];
        out[i] = signs >> i & 1 ? -value : value;
    }
}

DEQUANTIZER(from_iq2_xxs) {
    BLOCKS(256, 66) {
        float d = load_half(row);
        for (int group = 0; group < 8; group++) {
            const uint8_t *q = row + 2 + 8 * group;
            uint32_t rest = load32(q + 4);
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
            for (int i = 0; i < 4; i++) {
                signed_entry(scale, books->iq2_xxs + 8 * q[i], 8, even_signs(rest >> 7 * i & 127), out + 32 * group + 8 * i);
            }
        }
    }
}

DEQUANTIZER(from_iq2_xs) {
    BLOCKS(256, 74) {
        float d = load_half(row);
        for (int i = 0; i < 32; i++) {
            uint16_t q = load16(row + 2 + 2 * i);
            int scale = row[66 + i / 4] >> i / 2 % 2 * 4 & 15;
            signed_entry(d * (0.5f + (float)scale) * 0.25f, books->iq2_xs + 8 * (q & 511), 8, even_signs(q >> 9), out + 8 * i);
        }
    }
}

DEQUANTIZER(from_iq2_s) {
    BLOCKS(256, 82) {
        const uint8_t *q = row + 2, *signs = row + 34, *high = row + 66, *scales = row + 74;
        float d = load_half(row);
        for (int i = 0; i < 32; i++) {
            int index = q[i] | (high[i / 4] >> i % 4 * 2 & 3) << 8, scale = scales[i / 4] >> i / 2 % 2 * 4 & 15;
            signed_entry(d * (0.5f + (float)scale) * 0.25f, books->iq2_s + 8 * index, 8, signs[i], out + 8 * i);
        }
    }
}

DEQUANTIZER(from_iq3_xxs) {
    BLOCKS(256, 98) {
        float d = load_half(row);
        for (int group = 0; group < 8; group++) {
            const uint8_t *q = row + 2 + 8 * group;
            uint32_t rest = load32(row + 66 + 4 * group);
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
            for (int i = 0; i < 8; i++) {
                uint32_t signs = (uint32_t)even_signs(rest >> 7 * (i / 2) & 127) >> i % 2 * 4;
                signed_entry(scale, books->iq3_xxs + 4 * q[i], 4, signs, out + 32 * group + 4 * i);
            }
        }
    }
}

DEQUANTIZER(from_iq3_s) {
    BLOCKS(256, 110) {
        const uint8_t *q = row + 2, *high = row + 66, *signs = row + 74, *scales = row + 106;
        float d = load_half(row);
        for (int i = 0; i < 64; i++) {
            int index = q[i] | (high[i / 8] >> i % 8 & 1) << 8, scale = scales[i / 16] >> i / 8 % 2 * 4 & 15;
            signed_entry(d * (float)(1 + 2 * scale), books->iq3_s + 4 * index, 4, (uint32_t)signs[i / 2] >> i % 2 * 4, out + 4 * i);
        }
    }
}

ALWAYS_INLINE void shifted_entry(float scale, const float *entry, float delta, float *out) {
    for (int i = 0; i < 8; i++) {
        out[i] = scale * (entry[i] + delta);
    }
}

DEQUANTIZER(from_iq1_s) {
    BLOCKS(256, 50) {
        float d = load_half(row);
        for (int i = 0; i < 32; i++) {
            uint16_t high = load16(row + 34 + i / 4 * 2);
            int index = row[2 + i] | (high >> i % 4 * 3 & 7) << 8;
            float scale = d * (float)(2 * (high >> 12 & 7) + 1), delta = high & 0x8000 ? -0.125f : 0.125f;
            shifted_entry(scale, books->iq1 + 8 * index, delta, out + 8 * i);
        }
    }
}

DEQUANTIZER(from_iq1_m) {
    BLOCKS(256, 56) {
        const uint8_t *high = row + 32, *scales = row + 48;
        uint16_t packed = 0; /* the half of the block's scale, four bits at the top of each of the four words */
        for (int i = 0; i < 4; i++) {
            packed = (uint16_t)(packed | (load16(scales + 2 * i) >> 12) << 4 * i);
        }
        float d = half_to_float(packed);
        for (int i = 0; i < 32; i++) {
            int nibble = high[i / 2] >> i % 2 * 4 & 15, scale = load16(scales + i / 8 * 2) >> i / 2 % 4 * 3 & 7;
            const float *entry = books->iq1 + 8 * (row[i] | (nibble & 7) << 8);
            shifted_entry(d * (float)(2 * scale + 1), entry, nibble & 8 ? -0.125f : 0.125f, out + 8 * i);
        }
    }
}

DEQUANTIZER(from_iq4_xs) {
    UNUSED_BOOKS;
    BLOCKS(256, 136) {
        float d = load_half(row);
        uint16_t high = load16(row + 2);
        for (int group = 0; group < 8; group++) {
            int low = row[4 + group / 2] >> group % 2 * 4 & 15;
            float dl = d * (float)((low | (high >> 2 * group & 3) << 4) - 32);
            lookup_block(dl, row + 8 + 16 * group, iq4_values, out + 32 * group);
        }
    }
}

static const struct {
    dequantize_fn dequantize;
    uint16_t bytes_of_256; /* values */
} table[NUM_TYPES] = {
    [0] = {from_f32, 1024},    [1] = {from_f16, 512},     [2] = {from_q4_0, 144},     [3] = {from_q4_1, 160},  [6] = {from_q5_0, 176},
    [7] = {from_q5_1, 192},    [8] = {from_q8_0, 272},    [10] = {from_q2_k, 84},     [11] = {from_q3_k, 110}, [12] = {from_q4_k, 144},
    [13] = {from_q5_k, 176},   [14] = {from_q6_k, 210},   [16] = {from_iq2_xxs, 66},  [17] = {from_iq2_xs, 74}, [18] = {from_iq3_xxs, 98},
    [19] = {from_iq1_s, 50},   [20] = {from_iq4_nl, 144}, [21] = {from_iq3_s, 110},   [22] = {from_iq2_s, 82}, [23] = {from_iq4_xs, 136},
    [29] = {from_iq1_m, 56},   [30] = {from_bf16, 512},   [34] = {from_tq1_0, 54},    [35] = {from_tq2_0, 66}, [39] = {from_mxfp4, 136},
    [40] = {from_nvfp4, 144},
};

dequantize_fn dequantizer(int type) { return type >= 0 && type < NUM_TYPES ? table[type].dequantize : NULL; }

size_t packed_bytes(int type, size_t n) { return n * table[type].bytes_of_256 / 256; }
