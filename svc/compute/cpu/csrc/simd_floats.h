/* Parts of sixteen lanes that fit into one register, loads of float weights into them, and the numbers of sums that registers hold. */
#ifndef HEADRACE_SIMD_FLOATS_H
#define HEADRACE_SIMD_FLOATS_H

#include "simd.h"

enum { F32 = 0, F16 = 1, BF16 = 30 };

#define UNROLL _Pragma("GCC unroll 16")

#if SIMD_AVX512
#define PART 16
#define MANY_ROWS 4 /* 16 sums of the 32 registers */
#define MANY_TOKENS 4
#define THREE_ROWS 4
#define TWO_ROWS 8
#define ONE_ROWS 8
typedef __m512 part;
ALWAYS_INLINE part p_zero(void) { return _mm512_setzero_ps(); }
ALWAYS_INLINE part p_load(const void *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void p_store(float *p, part a) { _mm512_storeu_ps(p, a); }
ALWAYS_INLINE part p_madd(part a, part b, part c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE part p_load_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
ALWAYS_INLINE part p_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

#elif SIMD_AVX2
#define PART 8
#define MANY_ROWS 4 /* 12 sums of the 16 registers */
#define MANY_TOKENS 3
#define THREE_ROWS 4
#define TWO_ROWS 4
#define ONE_ROWS 8
typedef __m256 part;
ALWAYS_INLINE part p_zero(void) { return _mm256_setzero_ps(); }
ALWAYS_INLINE part p_load(const void *p) { return _mm256_loadu_ps(p); }
ALWAYS_INLINE void p_store(float *p, part a) { _mm256_storeu_ps(p, a); }
ALWAYS_INLINE part p_madd(part a, part b, part c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE part p_load_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE part p_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

#elif SIMD_NEON
#define PART 4
#define MANY_ROWS 4 /* 16 sums of the 32 registers */
#define MANY_TOKENS 4
#define THREE_ROWS 4
#define TWO_ROWS 8
#define ONE_ROWS 8
typedef float32x4_t part;
ALWAYS_INLINE part p_zero(void) { return vdupq_n_f32(0.0f); }
ALWAYS_INLINE part p_load(const void *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
ALWAYS_INLINE void p_store(float *p, part a) { vst1q_f32(p, a); }
ALWAYS_INLINE part p_madd(part a, part b, part c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE part p_load_half(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
ALWAYS_INLINE part p_load_bf16(const void *p) { return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16)); }

#else
#define PART LANES
#define MANY_ROWS 1
#define MANY_TOKENS 2
#define THREE_ROWS 1
#define TWO_ROWS 1
#define ONE_ROWS 1
typedef f32x16 part;
ALWAYS_INLINE part p_zero(void) { return v_zero(); }
ALWAYS_INLINE part p_load(const void *p) {
    part a;
    memcpy(&a, p, sizeof a);
    return a;
}
ALWAYS_INLINE void p_store(float *p, part a) { v_store(p, a); }
ALWAYS_INLINE part p_madd(part a, part b, part c) { return v_madd(a, b, c); }
ALWAYS_INLINE part p_load_half(const void *p) {
    uint16_t halves[LANES];
    memcpy(halves, p, sizeof halves);
    return v_load_half(halves);
}
ALWAYS_INLINE part p_load_bf16(const void *p) {
    uint16_t high[LANES];
    float out[LANES];
    memcpy(high, p, sizeof high);
    for (int i = 0; i < LANES; i++) {
        out[i] = bits_to_float((uint32_t)high[i] << 16);
    }
    return v_load(out);
}
#endif

/* Lanes lane .. lane + PART of `to`. */
ALWAYS_INLINE void p_put(f32x16 *to, int lane, part a) { memcpy((char *)to + (size_t)lane * sizeof(float), &a, sizeof a); }

/* Columns k .. k + PART of a row of a float type. */
ALWAYS_INLINE part p_weights(int type, const uint8_t *row, size_t k) {
    return type == F32 ? p_load(row + 4 * k) : type == F16 ? p_load_half(row + 2 * k) : p_load_bf16(row + 2 * k);
}

#endif
