/* Exact dequantization of every supported GGUF type. The arithmetic (order of multiplications, no fused operation) is that of
 * svc/gguf/quant, so that both give the same bits. Packed integers are unpacked to bytes sixteen at a time, then scaled. */
#include "quant.h"

#include "simd_bytes.h"

#define BLOCKS(values, bytes) for (; n; n -= (values), row += (bytes), out += (values))
#define UNROLL _Pragma("GCC unroll 16")

ALWAYS_INLINE uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
ALWAYS_INLINE uint32_t load32(const uint8_t *p) { return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16; }
ALWAYS_INLINE uint64_t load64(const uint8_t *p) { return (uint64_t)load32(p) | (uint64_t)load32(p + 4) << 32; }
ALWAYS_INLINE float load_half(const uint8_t *p) { return half_to_float(load16(p)); }

#define DEQUANTIZER(name) \
    static void name(const uint8_t *restrict row, float *restrict out, size_t n, const codebooks *books)
#define UNUSED_BOOKS (void)books

/* Sixteen values: d * q. */
ALWAYS_INLINE void scaled(float d, b16 q, float *out) { v_store(out, v_mul(v_set1(d), v_from_int8(q))); }

/* d * q + m and d * q - m: the product is rounded first. */
ALWAYS_INLINE void scaled_plus(float d, float m, b16 q, float *out) {
    v_store(out, v_add(v_mul(v_set1(d), v_from_int8(q)), v_set1(m)));
}
ALWAYS_INLINE void scaled_minus(float d, float m, b16 q, float *out) {
    v_store(out, v_sub(v_mul(v_set1(d), v_from_int8(q)), v_set1(m)));
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
    for (size_t i = 0; i < n; i++) { /* compilers vectorise this */
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
        scaled(d, b_load(row + 2), out);
        scaled(d, b_load(row + 18), out + 16);
    }
}

DEQUANTIZER(from_q4_0) {
    UNUSED_BOOKS;
    BLOCKS(32, 18) {
        float d = load_half(row);
        b16 q = b_load(row + 2), offset = b_set1(8);
        scaled(d, b_sub(b_bits(q, 0, 15), offset), out);
        scaled(d, b_sub(b_bits(q, 4, 15), offset), out + 16);
    }
}

DEQUANTIZER(from_q4_1) {
    UNUSED_BOOKS;
    BLOCKS(32, 20) {
        float d = load_half(row), m = load_half(row + 2);
        b16 q = b_load(row + 4);
        scaled_plus(d, m, b_bits(q, 0, 15), out);
        scaled_plus(d, m, b_bits(q, 4, 15), out + 16);
    }
}

/* Nibbles at `shift` with a fifth bit each. */
ALWAYS_INLINE b16 five_bits(b16 nibbles, int shift, uint32_t fifth) {
    return b_or(b_bits(nibbles, shift, 15), b_and(b_where(fifth & 0xffff), b_set1(16)));
}

DEQUANTIZER(from_q5_0) {
    UNUSED_BOOKS;
    BLOCKS(32, 22) {
        float d = load_half(row);
        b16 q = b_load(row + 6), offset = b_set1(16);
        scaled(d, b_sub(five_bits(q, 0, load16(row + 2)), offset), out);
        scaled(d, b_sub(five_bits(q, 4, load16(row + 4)), offset), out + 16);
    }
}

DEQUANTIZER(from_q5_1) {
    UNUSED_BOOKS;
    BLOCKS(32, 24) {
        float d = load_half(row), m = load_half(row + 2);
        b16 q = b_load(row + 8);
        scaled_plus(d, m, five_bits(q, 0, load16(row + 4)), out);
        scaled_plus(d, m, five_bits(q, 4, load16(row + 6)), out + 16);
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* doubled */

ALWAYS_INLINE void lookup_block(float d, const uint8_t *packed, b16 values, float *out) {
    b16 q = b_load(packed);
    scaled(d, b_lookup(values, b_bits(q, 0, 15)), out);
    scaled(d, b_lookup(values, b_bits(q, 4, 15)), out + 16);
}

DEQUANTIZER(from_iq4_nl) {
    UNUSED_BOOKS;
    b16 values = b_load(iq4_values);
    BLOCKS(32, 18) { lookup_block(load_half(row), row + 2, values, out); }
}

DEQUANTIZER(from_mxfp4) {
    UNUSED_BOOKS;
    b16 values = b_load(e2m1_values);
    BLOCKS(32, 17) { /* half of 2^(e - 127), since the values are doubled; the two smallest exponents are subnormal */
        uint32_t e = row[0];
        lookup_block(bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), row + 1, values, out);
    }
}

/* Half of an E4M3 number without its sign; 127 (NaN there) means zero. */
ALWAYS_INLINE float half_e4m3(uint8_t code) {
    uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    if (code == 127) {
        return 0.0f;
    }
    return exponent ? (float)(8 + mantissa) * bits_to_float((exponent + 116) << 23) : (float)mantissa * 0x1p-10f;
}

#define NIBBLES_OF_8 0x0f0f0f0f0f0f0f0f

DEQUANTIZER(from_nvfp4) {
    UNUSED_BOOKS;
    b16 values = b_load(e2m1_values);
    BLOCKS(64, 36) {
        for (int group = 0; group < 4; group++) {
            uint64_t q = load64(row + 4 + 8 * group);
            scaled(half_e4m3(row[group]), b_lookup(values, b_pair(q & NIBBLES_OF_8, q >> 4 & NIBBLES_OF_8)), out + 16 * group);
        }
    }
}

/* -- K-quants: super-blocks of 256 ------------------------------------------------------------------------------------------ */

DEQUANTIZER(from_q2_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 84) {
        b16 head = b_load(row);
        float d[16], m[16];
        v_store(d, v_mul(v_set1(load_half(row + 80)), v_from_int8(b_bits(head, 0, 15))));
        v_store(m, v_mul(v_set1(load_half(row + 82)), v_from_int8(b_bits(head, 4, 15))));
        for (int half = 0; half < 4; half++) { /* sixteen columns of each of four groups of 32 */
            b16 packed = b_load(row + 16 + 16 * half);
            UNROLL
            for (int i = 0; i < 4; i++) {
                int group = half / 2 * 8 + half % 2 + 2 * i;
                scaled_minus(d[group], m[group], b_bits(packed, 2 * i, 3), out + 16 * group);
            }
        }
    }
}

/* The sixteen 6-bit scales of Q3_K, which are too large by 32: low bits of groups 0 .. 7 and 8 .. 15 share bytes. */
ALWAYS_INLINE b16 scales_of_q3_k(const uint8_t *packed) {
    uint64_t low = load64(packed), high = load32(packed + 8);
    b16 bits = b_pair((high & 0x03030303) | (high >> 2 & 0x03030303) << 32, (high >> 4 & 0x03030303) | (high >> 6 & 0x03030303) << 32);
    return b_sub(b_or(b_pair(low & NIBBLES_OF_8, low >> 4 & NIBBLES_OF_8), b_left(bits, 4)), b_set1(32));
}

DEQUANTIZER(from_q3_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 110) {
        float d[16];
        v_store(d, v_mul(v_set1(load_half(row + 108)), v_from_int8(scales_of_q3_k(row + 96))));
        for (int half = 0; half < 4; half++) { /* sixteen columns of each of four groups of 32 */
            b16 packed = b_load(row + 32 + 16 * half), mask = b_right(b_load(row + half % 2 * 16), half / 2 * 4);
            UNROLL
            for (int i = 0; i < 4; i++) { /* a set bit means no offset of 4 */
                int group = half / 2 * 8 + half % 2 + 2 * i;
                b16 high = b_left(b_bits(mask, i, 1), 2);
                scaled(d[group], b_sub(b_or(b_bits(packed, 2 * i, 3), high), b_set1(4)), out + 16 * group);
            }
        }
    }
}

/* The eight 6-bit scales and minimums of Q4_K and Q5_K, times d and dmin. */
ALWAYS_INLINE void scales_and_minimums(const uint8_t *row, float sizes[16]) {
    uint32_t a = load32(row + 4), b = load32(row + 8), c = load32(row + 12);
    uint64_t scales = (a & 0x3f3f3f3f) | (uint64_t)((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)) << 32;
    uint64_t minimums = (b & 0x3f3f3f3f) | (uint64_t)((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)) << 32;
    v_store(sizes, v_mul(v_halves(load_half(row), load_half(row + 2)), v_from_int8(b_pair(scales, minimums))));
}

DEQUANTIZER(from_q4_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 144) {
        float sizes[16];
        scales_and_minimums(row, sizes);
        UNROLL
        for (int i = 0; i < 8; i++) { /* low nibbles belong to one group of 32, high ones to the next */
            b16 packed = b_load(row + 16 + 16 * i);
            int group = i / 2 * 2, at = 32 * group + i % 2 * 16;
            scaled_minus(sizes[group], sizes[group + 8], b_bits(packed, 0, 15), out + at);
            scaled_minus(sizes[group + 1], sizes[group + 9], b_bits(packed, 4, 15), out + at + 32);
        }
    }
}

DEQUANTIZER(from_q5_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 176) {
        float sizes[16];
        scales_and_minimums(row, sizes);
        b16 fifth[2] = {b_load(row + 16), b_load(row + 32)};
        UNROLL
        for (int i = 0; i < 8; i++) {
            b16 packed = b_load(row + 48 + 16 * i);
            int group = i / 2 * 2, at = 32 * group + i % 2 * 16;
            b16 first = b_left(b_bits(fifth[i % 2], group, 1), 4), second = b_left(b_bits(fifth[i % 2], group + 1, 1), 4);
            scaled_minus(sizes[group], sizes[group + 8], b_or(b_bits(packed, 0, 15), first), out + at);
            scaled_minus(sizes[group + 1], sizes[group + 9], b_or(b_bits(packed, 4, 15), second), out + at + 32);
        }
    }
}

DEQUANTIZER(from_q6_k) {
    UNUSED_BOOKS;
    BLOCKS(256, 210) {
        float d[16];
        v_store(d, v_mul(v_set1(load_half(row + 208)), v_from_int8(b_load(row + 192))));
        for (int half = 0; half < 2; half++) {
            const uint8_t *low = row + 64 * half, *high = row + 128 + 32 * half;
            UNROLL
            for (int i = 0; i < 8; i++) { /* group of 16 */
                b16 four = b_bits(b_load(low + i % 4 * 16), i / 4 * 4, 15), two = b_bits(b_load(high + i % 2 * 16), i / 2 * 2, 3);
                scaled(d[8 * half + i], b_sub(b_or(four, b_left(two, 4)), b_set1(32)), out + 128 * half + 16 * i);
            }
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

DEQUANTIZER(from_tq2_0) { /* compilers do better here than sixteen at a time */
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
ALWAYS_INLINE uint32_t even_signs(uint32_t seven) { return seven | (uint32_t)(__builtin_popcount(seven) & 1) << 7; }

/* Sixteen values: scale * entry, negated if the bit of `signs` is set. */
ALWAYS_INLINE void signed_entries(float scale, f32x16 entries, uint32_t signs, float *out) {
    v_store(out, v_negate_where(v_mul(v_set1(scale), entries), signs));
}

/* Two entries of eight. */
ALWAYS_INLINE f32x16 two_of(const float *book, int first, int second) { return v_load_eights(book + 8 * first, book + 8 * second); }

/* Four entries of four. */
ALWAYS_INLINE f32x16 four_of(const float *book, int a, int b, int c, int d) {
    return v_load_fours(book + 4 * a, book + 4 * b, book + 4 * c, book + 4 * d);
}

DEQUANTIZER(from_iq2_xxs) {
    BLOCKS(256, 66) {
        float d = load_half(row);
        for (int group = 0; group < 8; group++) {
            const uint8_t *q = row + 2 + 8 * group;
            uint32_t rest = load32(q + 4);
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
            for (int i = 0; i < 2; i++) {
                uint32_t signs = even_signs(rest >> 14 * i & 127) | even_signs(rest >> (14 * i + 7) & 127) << 8;
                signed_entries(scale, two_of(books->iq2_xxs, q[2 * i], q[2 * i + 1]), signs, out + 32 * group + 16 * i);
            }
        }
    }
}

DEQUANTIZER(from_iq2_xs) {
    BLOCKS(256, 74) {
        float d = load_half(row);
        for (int i = 0; i < 16; i++) {
            uint16_t a = load16(row + 2 + 4 * i), b = load16(row + 4 + 4 * i);
            int scale = row[66 + i / 2] >> i % 2 * 4 & 15;
            uint32_t signs = even_signs(a >> 9) | even_signs(b >> 9) << 8;
            signed_entries(d * (0.5f + (float)scale) * 0.25f, two_of(books->iq2_xs, a & 511, b & 511), signs, out + 16 * i);
        }
    }
}

DEQUANTIZER(from_iq2_s) {
    BLOCKS(256, 82) {
        const uint8_t *q = row + 2, *signs = row + 34, *high = row + 66, *scales = row + 74;
        float d = load_half(row);
        for (int i = 0; i < 16; i++) {
            int bits = high[i / 2] >> i % 2 * 4, scale = scales[i / 2] >> i % 2 * 4 & 15;
            f32x16 entries = two_of(books->iq2_s, q[2 * i] | (bits & 3) << 8, q[2 * i + 1] | (bits >> 2 & 3) << 8);
            signed_entries(d * (0.5f + (float)scale) * 0.25f, entries, load16(signs + 2 * i), out + 16 * i);
        }
    }
}

DEQUANTIZER(from_iq3_xxs) {
    BLOCKS(256, 98) {
        float d = load_half(row);
        for (int group = 0; group < 8; group++) {
            uint32_t rest = load32(row + 66 + 4 * group);
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
            for (int i = 0; i < 2; i++) {
                const uint8_t *q = row + 2 + 8 * group + 4 * i;
                uint32_t signs = even_signs(rest >> 14 * i & 127) | even_signs(rest >> (14 * i + 7) & 127) << 8;
                signed_entries(scale, four_of(books->iq3_xxs, q[0], q[1], q[2], q[3]), signs, out + 32 * group + 16 * i);
            }
        }
    }
}

DEQUANTIZER(from_iq3_s) {
    BLOCKS(256, 110) {
        const uint8_t *high = row + 66, *signs = row + 74, *scales = row + 106;
        float d = load_half(row);
        for (int i = 0; i < 16; i++) {
            const uint8_t *q = row + 2 + 4 * i;
            int bits = high[i / 2] >> i % 2 * 4, scale = scales[i / 4] >> i / 2 % 2 * 4 & 15;
            f32x16 entries = four_of(books->iq3_s, q[0] | (bits & 1) << 8, q[1] | (bits & 2) << 7, q[2] | (bits & 4) << 6, q[3] | (bits & 8) << 5);
            signed_entries(d * (float)(1 + 2 * scale), entries, load16(signs + 2 * i), out + 16 * i);
        }
    }
}

/* Sixteen values: scale * (entry + delta), a delta for each of two entries. */
ALWAYS_INLINE void shifted_entries(float scale, f32x16 entries, int first_is_minus, int second_is_minus, float *out) {
    f32x16 delta = v_halves(first_is_minus ? -0.125f : 0.125f, second_is_minus ? -0.125f : 0.125f);
    v_store(out, v_mul(v_set1(scale), v_add(entries, delta)));
}

DEQUANTIZER(from_iq1_s) {
    BLOCKS(256, 50) {
        float d = load_half(row);
        for (int i = 0; i < 16; i++) {
            const uint8_t *q = row + 2 + 2 * i;
            int high = load16(row + 34 + i / 2 * 2), bits = high >> i % 2 * 6, minus = high & 0x8000;
            f32x16 entries = two_of(books->iq1, q[0] | (bits & 7) << 8, q[1] | (bits >> 3 & 7) << 8);
            shifted_entries(d * (float)(2 * (high >> 12 & 7) + 1), entries, minus, minus, out + 16 * i);
        }
    }
}

DEQUANTIZER(from_iq1_m) {
    BLOCKS(256, 56) {
        const uint8_t *scales = row + 48;
        uint16_t packed = 0; /* the half of the block's scale, four bits at the top of each of the four words */
        for (int i = 0; i < 4; i++) {
            packed = (uint16_t)(packed | (load16(scales + 2 * i) >> 12) << 4 * i);
        }
        float d = half_to_float(packed);
        for (int i = 0; i < 16; i++) {
            const uint8_t *q = row + 2 * i;
            int high = row[32 + i], scale = load16(scales + i / 4 * 2) >> i % 4 * 3 & 7;
            f32x16 entries = two_of(books->iq1, q[0] | (high & 7) << 8, q[1] | (high >> 4 & 7) << 8);
            shifted_entries(d * (float)(2 * scale + 1), entries, high & 8, high & 128, out + 16 * i);
        }
    }
}

DEQUANTIZER(from_iq4_xs) {
    UNUSED_BOOKS;
    b16 values = b_load(iq4_values);
    BLOCKS(256, 136) {
        float d = load_half(row);
        uint16_t high = load16(row + 2);
        for (int group = 0; group < 8; group++) {
            int low = row[4 + group / 2] >> group % 2 * 4 & 15;
            float dl = d * (float)((low | (high >> 2 * group & 3) << 4) - 32);
            lookup_block(dl, row + 8 + 16 * group, values, out + 32 * group);
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
