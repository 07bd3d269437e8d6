/* b16: sixteen bytes, for unpacking weights before they become floats. Some builds shift pairs of bytes, so callers must mask away the
 * bits that come from a neighbour. */
#ifndef HEADRACE_SIMD_BYTES_H
#define HEADRACE_SIMD_BYTES_H

#include "simd.h"

#if SIMD_AVX512 || SIMD_AVX2
typedef __m128i b16;
ALWAYS_INLINE b16 b_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
ALWAYS_INLINE b16 b_set1(int x) { return _mm_set1_epi8((char)x); }
ALWAYS_INLINE b16 b_and(b16 a, b16 b) { return _mm_and_si128(a, b); }
ALWAYS_INLINE b16 b_or(b16 a, b16 b) { return _mm_or_si128(a, b); }
ALWAYS_INLINE b16 b_sub(b16 a, b16 b) { return _mm_sub_epi8(a, b); }
ALWAYS_INLINE b16 b_right(b16 a, int n) { return _mm_srli_epi16(a, n); }
ALWAYS_INLINE b16 b_left(b16 a, int n) { return _mm_slli_epi16(a, n); }
ALWAYS_INLINE b16 b_lookup(b16 table, b16 index) { return _mm_shuffle_epi8(table, index); }
ALWAYS_INLINE b16 b_pair(uint64_t low, uint64_t high) { return _mm_set_epi64x((int64_t)high, (int64_t)low); }
/* 255 for a set bit, else 0 */
ALWAYS_INLINE b16 b_where(uint32_t bits) {
    const b16 each = _mm_set1_epi64x((int64_t)0x8040201008040201);
    b16 bytes = _mm_shuffle_epi8(_mm_set1_epi16((int16_t)bits), _mm_set_epi64x(0x0101010101010101, 0));
    return _mm_cmpeq_epi8(_mm_and_si128(bytes, each), each);
}
#elif SIMD_NEON
typedef uint8x16_t b16;
ALWAYS_INLINE b16 b_load(const void *p) { return vld1q_u8(p); }
ALWAYS_INLINE b16 b_set1(int x) { return vdupq_n_u8((uint8_t)x); }
ALWAYS_INLINE b16 b_and(b16 a, b16 b) { return vandq_u8(a, b); }
ALWAYS_INLINE b16 b_or(b16 a, b16 b) { return vorrq_u8(a, b); }
ALWAYS_INLINE b16 b_sub(b16 a, b16 b) { return vsubq_u8(a, b); }
ALWAYS_INLINE b16 b_right(b16 a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)-n)); }
ALWAYS_INLINE b16 b_left(b16 a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)n)); }
ALWAYS_INLINE b16 b_lookup(b16 table, b16 index) { return vqtbl1q_u8(table, index); }
ALWAYS_INLINE b16 b_pair(uint64_t low, uint64_t high) { return vcombine_u8(vcreate_u8(low), vcreate_u8(high)); }
ALWAYS_INLINE b16 b_where(uint32_t bits) {
    return vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8))), b_pair(0x8040201008040201, 0x8040201008040201));
}
#else
typedef struct {
    uint8_t lane[16];
} b16;
#define EACH_LANE(expression)         \
    b16 r;                            \
    for (int i = 0; i < 16; i++) {    \
        r.lane[i] = (uint8_t)(expression); \
    }                                 \
    return r
ALWAYS_INLINE b16 b_load(const void *p) {
    b16 a;
    memcpy(&a, p, sizeof a);
    return a;
}
ALWAYS_INLINE b16 b_set1(int x) { EACH_LANE(x); }
ALWAYS_INLINE b16 b_and(b16 a, b16 b) { EACH_LANE(a.lane[i] & b.lane[i]); }
ALWAYS_INLINE b16 b_or(b16 a, b16 b) { EACH_LANE(a.lane[i] | b.lane[i]); }
ALWAYS_INLINE b16 b_sub(b16 a, b16 b) { EACH_LANE(a.lane[i] - b.lane[i]); }
ALWAYS_INLINE b16 b_right(b16 a, int n) { EACH_LANE(a.lane[i] >> n); }
ALWAYS_INLINE b16 b_left(b16 a, int n) { EACH_LANE(a.lane[i] << n); }
ALWAYS_INLINE b16 b_lookup(b16 table, b16 index) { EACH_LANE(table.lane[index.lane[i] & 15]); }
ALWAYS_INLINE b16 b_pair(uint64_t low, uint64_t high) { EACH_LANE((i < 8 ? low : high) >> i % 8 * 8); }
ALWAYS_INLINE b16 b_where(uint32_t bits) { EACH_LANE(bits >> i & 1 ? 255 : 0); }
#endif

ALWAYS_INLINE b16 b_bits(b16 a, int shift, int mask) { return b_and(b_right(a, shift), b_set1(mask)); }

/* As signed numbers. */
ALWAYS_INLINE f32x16 v_from_int8(b16 a) {
#if SIMD_AVX512
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a));
#elif SIMD_AVX2
    return PAIR(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))));
#else
    int8_t lanes[LANES];
    memcpy(lanes, &a, sizeof lanes);
    return v_load_int8(lanes);
#endif
}

/* Eight lanes of each. */
ALWAYS_INLINE f32x16 v_halves(float low, float high) {
#if SIMD_AVX512
    return _mm512_insertf32x8(_mm512_set1_ps(low), _mm256_set1_ps(high), 1);
#elif SIMD_AVX2
    return PAIR(_mm256_set1_ps(low), _mm256_set1_ps(high));
#elif SIMD_NEON
    float32x4_t a = vdupq_n_f32(low), b = vdupq_n_f32(high);
    return (f32x16){{a, a, b, b}};
#else
    EACH(i < 8 ? low : high);
#endif
}

/* Eight floats from each place. */
ALWAYS_INLINE f32x16 v_load_eights(const float *low, const float *high) {
#if SIMD_AVX512
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low)), _mm256_loadu_ps(high), 1);
#elif SIMD_AVX2
    return PAIR(_mm256_loadu_ps(low), _mm256_loadu_ps(high));
#elif SIMD_NEON
    return (f32x16){{vld1q_f32(low), vld1q_f32(low + 4), vld1q_f32(high), vld1q_f32(high + 4)}};
#else
    EACH(i < 8 ? low[i] : high[i - 8]);
#endif
}

/* Four floats from each place. */
ALWAYS_INLINE f32x16 v_load_fours(const float *a, const float *b, const float *c, const float *d) {
#if SIMD_AVX512
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1)),
                              _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(c)), _mm_loadu_ps(d), 1), 1);
#elif SIMD_AVX2
    return PAIR(_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1),
                _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(c)), _mm_loadu_ps(d), 1));
#elif SIMD_NEON
    return (f32x16){{vld1q_f32(a), vld1q_f32(b), vld1q_f32(c), vld1q_f32(d)}};
#else
    const float *from[4] = {a, b, c, d};
    EACH(from[i / 4][i % 4]);
#endif
}

/* -a for a set bit: only the sign changes, even of NaN. */
ALWAYS_INLINE f32x16 v_negate_where(f32x16 a, uint32_t bits) {
#if SIMD_AVX512
    __m512i x = _mm512_castps_si512(a);
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(x, (__mmask16)bits, x, _mm512_set1_epi32((int32_t)0x80000000)));
#elif SIMD_AVX2
    __m256i all = _mm256_set1_epi32((int32_t)bits), sign = _mm256_set1_epi32((int32_t)0x80000000);
    __m256i low = _mm256_sllv_epi32(all, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
    __m256i high = _mm256_sllv_epi32(all, _mm256_setr_epi32(23, 22, 21, 20, 19, 18, 17, 16));
    return PAIR(_mm256_xor_ps(a.lo, _mm256_castsi256_ps(_mm256_and_si256(low, sign))),
                _mm256_xor_ps(a.hi, _mm256_castsi256_ps(_mm256_and_si256(high, sign))));
#elif SIMD_NEON
    static const int32_t shifts[LANES] = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16};
    uint32x4_t all = vdupq_n_u32(bits), sign = vdupq_n_u32(0x80000000);
    EACH(vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a.q[i]), vandq_u32(vshlq_u32(all, vld1q_s32(shifts + 4 * i)), sign))));
#else
    EACH(bits >> i & 1 ? -a.lane[i] : a.lane[i]);
#endif
}

#endif
