/* f32x16: sixteen float lanes, the one vector type of every kernel.
 *
 * The same sources are built several times (plain, AVX2+FMA+F16C, AVX-512, NEON). Each build must give the same bits, so:
 * - v_madd is a FUSED multiply-add everywhere (plain C: fmaf, correctly rounded),
 * - v_sum (and v_hmax) join lanes in one fixed tree: i with i+8, i with i+4, i with i+2, i with i+1,
 * - v_max(a, b) is a > b ? a : b and v_min(a, b) is a < b ? a : b (as on x86, the second operand if one is NaN),
 * - float <-> half conversion rounds to nearest even.
 * The plain build is the oracle of the others.
 */
#ifndef HEADRACE_SIMD_H
#define HEADRACE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#if defined(HEADRACE_PLAIN) /* no vector registers: inlining everything would only make the build slow */
#define ALWAYS_INLINE static inline
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif
#define ROUND_LANES(n) (((size_t)(n) + LANES - 1) / LANES * LANES)

ALWAYS_INLINE float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ALWAYS_INLINE uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Round to nearest, ties to even; beyond 65504 infinity, as the F16C instruction does. */
ALWAYS_INLINE uint16_t float_to_half(float value) {
    uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    }
    if (rest >= 0x477ff000) {
        return (uint16_t)(sign | 0x7c00);
    }
    if (rest < 0x38800000) { /* subnormal half: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign | (((rest + 0xfff + (rest >> 13 & 1)) >> 13) - (112u << 10)));
}

#if defined(HEADRACE_PLAIN)
#define SIMD_PLAIN 1
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SIMD_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SIMD_AVX2 1
#include <immintrin.h>
#elif defined(__aarch64__)
#define SIMD_NEON 1
#include <arm_neon.h>
#else
#define SIMD_PLAIN 1
#endif
#ifndef SIMD_AVX512
#define SIMD_AVX512 0
#endif
#ifndef SIMD_AVX2
#define SIMD_AVX2 0
#endif
#ifndef SIMD_NEON
#define SIMD_NEON 0
#endif
#ifndef SIMD_PLAIN
#define SIMD_PLAIN 0
#endif

/* Exact: every half is a float. Subnormal halves are scaled by a power of two, which is exact too. */
ALWAYS_INLINE float half_to_float(uint16_t half) {
#if SIMD_AVX512 || SIMD_AVX2
    return _cvtsh_ss(half);
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) { /* infinity; a NaN is made quiet, as the F16C instruction does */
        return bits_to_float(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0));
    }
    if (rest >= 0x400) {
        return bits_to_float(sign | ((rest << 13) + (112u << 23)));
    }
    float magnitude = (float)rest * 0x1p-24f;
    return bits_to_float(sign | float_to_bits(magnitude));
#endif
}

/* v_scale2(p, t): p * 2^n where t = n + 1.5 * 2^23, so that the low bits of t hold n; in two factors, so that results may be
 * subnormal or infinite. n in [-252, 254]. */
#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds a small float to an integer */
#define MAGIC_BITS 0x4b400000

#if SIMD_AVX512
typedef __m512 f32x16;
ALWAYS_INLINE f32x16 v_load(const float *p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE void v_store(float *p, f32x16 a) { _mm512_storeu_ps(p, a); }
ALWAYS_INLINE f32x16 v_set1(float x) { return _mm512_set1_ps(x); }
ALWAYS_INLINE f32x16 v_madd(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE f32x16 v_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
ALWAYS_INLINE f32x16 v_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
ALWAYS_INLINE f32x16 v_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE f32x16 v_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
ALWAYS_INLINE f32x16 v_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
ALWAYS_INLINE f32x16 v_min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
ALWAYS_INLINE f32x16 v_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
ALWAYS_INLINE void v_store_half(uint16_t *p, f32x16 a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE f32x16 v_load_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
ALWAYS_INLINE f32x16 v_scale2(f32x16 p, f32x16 t) {
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(MAGIC_BITS));
    __m512i half = _mm512_srai_epi32(n, 1), bias = _mm512_set1_epi32(127);
    __m512i first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i second = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
}
ALWAYS_INLINE float v_sum(f32x16 a) {
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
ALWAYS_INLINE float v_hmax(f32x16 a) {
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
/* Sixteen v_sum at once: lane i of the result is v_sum(a[i]). The same tree, so the same bits. */
ALWAYS_INLINE f32x16 v_sum16(const f32x16 a[16]) {
    __m512 u[8], w[4], x[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        u[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 8], 0x44), _mm512_shuffle_f32x4(a[i], a[i + 8], 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[i], u[i + 4], 0x88), _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        x[i] = _mm512_add_ps(_mm512_shuffle_ps(w[i], w[i + 2], 0x44), _mm512_shuffle_ps(w[i], w[i + 2], 0xee));
    }
    __m512 y = _mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), y);
}

#elif SIMD_AVX2
typedef struct {
    __m256 lo, hi;
} f32x16;
#define PAIR(lo_value, hi_value) ((f32x16){(lo_value), (hi_value)})
#define BOTH(op, a, b) PAIR(op((a).lo, (b).lo), op((a).hi, (b).hi))
ALWAYS_INLINE f32x16 v_load(const float *p) { return PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
ALWAYS_INLINE void v_store(float *p, f32x16 a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
ALWAYS_INLINE f32x16 v_set1(float x) { return PAIR(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
ALWAYS_INLINE f32x16 v_madd(f32x16 a, f32x16 b, f32x16 c) {
    return PAIR(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
ALWAYS_INLINE f32x16 v_add(f32x16 a, f32x16 b) { return BOTH(_mm256_add_ps, a, b); }
ALWAYS_INLINE f32x16 v_sub(f32x16 a, f32x16 b) { return BOTH(_mm256_sub_ps, a, b); }
ALWAYS_INLINE f32x16 v_mul(f32x16 a, f32x16 b) { return BOTH(_mm256_mul_ps, a, b); }
ALWAYS_INLINE f32x16 v_div(f32x16 a, f32x16 b) { return BOTH(_mm256_div_ps, a, b); }
ALWAYS_INLINE f32x16 v_max(f32x16 a, f32x16 b) { return BOTH(_mm256_max_ps, a, b); }
ALWAYS_INLINE f32x16 v_min(f32x16 a, f32x16 b) { return BOTH(_mm256_min_ps, a, b); }
ALWAYS_INLINE f32x16 v_load_half(const uint16_t *p) {
    return PAIR(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
ALWAYS_INLINE void v_store_half(uint16_t *p, f32x16 a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
ALWAYS_INLINE f32x16 v_load_int8(const int8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return PAIR(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}
ALWAYS_INLINE __m256 scale2_half(__m256 p, __m256 t) {
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(MAGIC_BITS));
    __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
ALWAYS_INLINE f32x16 v_scale2(f32x16 p, f32x16 t) { return BOTH(scale2_half, p, t); }
ALWAYS_INLINE float v_sum(f32x16 a) {
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
ALWAYS_INLINE float v_hmax(f32x16 a) {
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
/* After the first step a vector holds partial sums of rows i and i + 4. */
ALWAYS_INLINE f32x16 v_sum16(const f32x16 a[16]) {
    __m256 u[8], w[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        int row = i / 4 * 8 + i % 4;
        __m256 first = _mm256_add_ps(a[row].lo, a[row].hi), second = _mm256_add_ps(a[row + 4].lo, a[row + 4].hi);
        u[i] = _mm256_add_ps(_mm256_permute2f128_ps(first, second, 0x20), _mm256_permute2f128_ps(first, second, 0x31));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        w[i] = _mm256_add_ps(_mm256_shuffle_ps(u[2 * i], u[2 * i + 1], 0x44), _mm256_shuffle_ps(u[2 * i], u[2 * i + 1], 0xee));
    }
    return PAIR(_mm256_add_ps(_mm256_shuffle_ps(w[0], w[1], 0x88), _mm256_shuffle_ps(w[0], w[1], 0xdd)),
                _mm256_add_ps(_mm256_shuffle_ps(w[2], w[3], 0x88), _mm256_shuffle_ps(w[2], w[3], 0xdd)));
}

#elif SIMD_NEON
typedef struct {
    float32x4_t q[4];
} f32x16;
#define EACH(expression)                 \
    f32x16 r;                            \
    for (int i = 0; i < 4; i++) {        \
        r.q[i] = (expression);           \
    }                                    \
    return r
ALWAYS_INLINE f32x16 v_load(const float *p) { EACH(vld1q_f32(p + 4 * i)); }
ALWAYS_INLINE void v_store(float *p, f32x16 a) {
    for (int i = 0; i < 4; i++) {
        vst1q_f32(p + 4 * i, a.q[i]);
    }
}
ALWAYS_INLINE f32x16 v_set1(float x) { EACH(vdupq_n_f32(x)); }
ALWAYS_INLINE f32x16 v_madd(f32x16 a, f32x16 b, f32x16 c) { EACH(vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_add(f32x16 a, f32x16 b) { EACH(vaddq_f32(a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_sub(f32x16 a, f32x16 b) { EACH(vsubq_f32(a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_mul(f32x16 a, f32x16 b) { EACH(vmulq_f32(a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_div(f32x16 a, f32x16 b) { EACH(vdivq_f32(a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_max(f32x16 a, f32x16 b) { EACH(vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_min(f32x16 a, f32x16 b) { EACH(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])); }
ALWAYS_INLINE f32x16 v_load_half(const uint16_t *p) { EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))); }
ALWAYS_INLINE void v_store_half(uint16_t *p, f32x16 a) {
    for (int i = 0; i < 4; i++) {
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
    }
}
ALWAYS_INLINE f32x16 v_load_int8(const int8_t *p) {
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return (f32x16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                     vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
ALWAYS_INLINE float32x4_t scale2_quarter(float32x4_t p, float32x4_t t) {
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(MAGIC_BITS));
    int32x4_t half = vshrq_n_s32(n, 1), bias = vdupq_n_s32(127);
    int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(n, half), bias), 23);
    return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}
ALWAYS_INLINE f32x16 v_scale2(f32x16 p, f32x16 t) { EACH(scale2_quarter(p.q[i], t.q[i])); }
ALWAYS_INLINE float v_sum(f32x16 a) {
    float32x4_t c = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
ALWAYS_INLINE f32x16 v_sum16(const f32x16 a[16]) {
    float64x2_t four[16];
    f32x16 sums;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        four[i] = vreinterpretq_f64_f32(vaddq_f32(vaddq_f32(a[i].q[0], a[i].q[2]), vaddq_f32(a[i].q[1], a[i].q[3])));
    }
#define HALF_OF(zip, i) vreinterpretq_f32_f64(zip(four[i], four[(i) + 1]))
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sums.q[i] = vpaddq_f32(vaddq_f32(HALF_OF(vzip1q_f64, 4 * i), HALF_OF(vzip2q_f64, 4 * i)),
                               vaddq_f32(HALF_OF(vzip1q_f64, 4 * i + 2), HALF_OF(vzip2q_f64, 4 * i + 2)));
    }
#undef HALF_OF
    return sums;
}

#else
typedef struct {
    float lane[LANES];
} f32x16;
#define EACH(expression)                  \
    f32x16 r;                             \
    for (int i = 0; i < LANES; i++) {     \
        r.lane[i] = (expression);         \
    }                                     \
    return r
ALWAYS_INLINE f32x16 v_load(const float *p) { EACH(p[i]); }
ALWAYS_INLINE void v_store(float *p, f32x16 a) { memcpy(p, a.lane, sizeof a.lane); }
ALWAYS_INLINE f32x16 v_set1(float x) { EACH(x); }
ALWAYS_INLINE f32x16 v_madd(f32x16 a, f32x16 b, f32x16 c) { EACH(fmaf(a.lane[i], b.lane[i], c.lane[i])); }
ALWAYS_INLINE f32x16 v_add(f32x16 a, f32x16 b) { EACH(a.lane[i] + b.lane[i]); }
ALWAYS_INLINE f32x16 v_sub(f32x16 a, f32x16 b) { EACH(a.lane[i] - b.lane[i]); }
ALWAYS_INLINE f32x16 v_mul(f32x16 a, f32x16 b) { EACH(a.lane[i] * b.lane[i]); }
ALWAYS_INLINE f32x16 v_div(f32x16 a, f32x16 b) { EACH(a.lane[i] / b.lane[i]); }
ALWAYS_INLINE f32x16 v_max(f32x16 a, f32x16 b) { EACH(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
ALWAYS_INLINE f32x16 v_min(f32x16 a, f32x16 b) { EACH(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
ALWAYS_INLINE f32x16 v_load_half(const uint16_t *p) { EACH(half_to_float(p[i])); }
ALWAYS_INLINE void v_store_half(uint16_t *p, f32x16 a) {
    for (int i = 0; i < LANES; i++) {
        p[i] = float_to_half(a.lane[i]);
    }
}
ALWAYS_INLINE f32x16 v_load_int8(const int8_t *p) { EACH((float)p[i]); }
ALWAYS_INLINE float scale2_one(float p, float t) {
    int32_t n = (int32_t)float_to_bits(t) - MAGIC_BITS, half = n >> 1;
    float first = bits_to_float((uint32_t)(half + 127) << 23), second = bits_to_float((uint32_t)(n - half + 127) << 23);
    return p * first * second;
}
ALWAYS_INLINE f32x16 v_scale2(f32x16 p, f32x16 t) { EACH(scale2_one(p.lane[i], t.lane[i])); }
ALWAYS_INLINE float v_sum(f32x16 a) {
    for (int half = LANES / 2; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            a.lane[i] = a.lane[i] + a.lane[i + half];
        }
    }
    return a.lane[0];
}
#endif

#if SIMD_PLAIN || SIMD_NEON
ALWAYS_INLINE float v_hmax(f32x16 a) {
    float lanes[LANES];
    v_store(lanes, a);
    for (int half = LANES / 2; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
        }
    }
    return lanes[0];
}
#endif

#if SIMD_PLAIN
ALWAYS_INLINE f32x16 v_sum16(const f32x16 a[16]) {
    float sums[LANES];
    for (int i = 0; i < LANES; i++) {
        sums[i] = v_sum(a[i]);
    }
    return v_load(sums);
}
#endif

ALWAYS_INLINE f32x16 v_zero(void) { return v_set1(0.0f); }

/* The first n lanes from memory, zeros in the others. */
ALWAYS_INLINE f32x16 v_load_n(const float *p, int n) {
    float lanes[LANES] = {0};
    memcpy(lanes, p, (size_t)n * sizeof *p);
    return v_load(lanes);
}

ALWAYS_INLINE void v_store_n(float *p, f32x16 a, int n) {
    float lanes[LANES];
    v_store(lanes, a);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

/* The canonical dot product of n floats, n a multiple of 16: lane j sums k = j mod 16 in rising k, then the tree. */
ALWAYS_INLINE float v_dot(const float *a, const float *b, size_t n) {
    f32x16 sum = v_zero();
    for (size_t k = 0; k < n; k += LANES) {
        sum = v_madd(v_load(a + k), v_load(b + k), sum);
    }
    return v_sum(sum);
}

#endif
