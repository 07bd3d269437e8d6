/* The integer lanes of simd_ints.h on NEON: four rows. Weights are signed bytes there, so that SDOT takes them; processors without it
 * multiply to 16 bits and add pairs, which fit into 16 bits: 2 x 128 x 127 is the maximum. */
#ifndef HEADRACE_SIMD_INTS_NEON_H
#define HEADRACE_SIMD_INTS_NEON_H

#include "simd.h"

#define INT_LANES 4
#define DIRECT_DOT 1
#define SIGNED_WEIGHTS 1
typedef int32x4_t ints;
typedef float32x4_t floats;
ALWAYS_INLINE ints i_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
ALWAYS_INLINE void i_store(void *p, ints a) { vst1q_u8(p, vreinterpretq_u8_s32(a)); }
ALWAYS_INLINE ints i_set1(int32_t x) { return vdupq_n_s32(x); }
ALWAYS_INLINE ints i_and(ints a, ints b) { return vandq_s32(a, b); }
ALWAYS_INLINE ints i_or(ints a, ints b) { return vorrq_s32(a, b); }
ALWAYS_INLINE ints i_xor(ints a, ints b) { return veorq_s32(a, b); }
ALWAYS_INLINE ints i_add(ints a, ints b) { return vaddq_s32(a, b); }
ALWAYS_INLINE ints i_sub(ints a, ints b) { return vsubq_s32(a, b); }
ALWAYS_INLINE ints i_mul(ints a, ints b) { return vmulq_s32(a, b); }
ALWAYS_INLINE ints i_max(ints a, ints b) { return vmaxq_s32(a, b); }
ALWAYS_INLINE ints i_left(ints a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
ALWAYS_INLINE ints i_right(ints a, int n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n))); }
ALWAYS_INLINE ints i_right_signed(ints a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }
ALWAYS_INLINE ints i_lookup(const int8_t *table, ints index) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(index)));
}
ALWAYS_INLINE floats i_floats(ints a) { return vcvtq_f32_s32(a); }
ALWAYS_INLINE floats i_as_floats(ints a) { return vreinterpretq_f32_s32(a); }
ALWAYS_INLINE floats i_halves(ints a) { return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(a))); }
ALWAYS_INLINE floats f_load(const float *p) { return vld1q_f32(p); }
ALWAYS_INLINE void f_store(float *p, floats a) { vst1q_f32(p, a); }
ALWAYS_INLINE floats f_set1(float x) { return vdupq_n_f32(x); }
ALWAYS_INLINE floats f_mul(floats a, floats b) { return vmulq_f32(a, b); }
ALWAYS_INLINE floats f_madd(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE floats f_minus_madd(floats a, floats b, floats c) { return vfmsq_f32(c, a, b); } /* c - a * b */

/* sum + the dot product of the four signed bytes in each lane */
ALWAYS_INLINE ints i_dot(ints sum, ints w, ints x) {
    int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, a, b);
#else
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}

/* sum + the two products of signed 16-bit halves in each lane */
ALWAYS_INLINE ints i_pairs(ints sum, ints a, ints b) {
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}

ALWAYS_INLINE ints i_gather_halves(const uint8_t *p, size_t stride) {
    uint32_t halves[4];
    for (size_t r = 0; r < 4; r++) {
        halves[r] = (uint32_t)p[r * stride] | (uint32_t)p[r * stride + 1] << 8;
    }
    return i_load(halves);
}

/* Quarters are single rows here. */
ALWAYS_INLINE ints quarter_rows(const uint8_t *row, size_t stride) {
    (void)stride;
    return i_load(row);
}
ALWAYS_INLINE ints i_repeat16(const int8_t *p) { return i_load(p); }
ALWAYS_INLINE ints i_sum_quarters(const ints q[4]) { return vpaddq_s32(vpaddq_s32(q[0], q[1]), vpaddq_s32(q[2], q[3])); }

/* 16 bytes of each of four rows, `stride` apart -> lane r of out[j] = the j-th 32 bits of row r. */
ALWAYS_INLINE void transpose_piece(const uint8_t *rows, size_t stride, ints out[4]) {
    ints a = i_load(rows), b = i_load(rows + stride), c = i_load(rows + 2 * stride), d = i_load(rows + 3 * stride);
    int64x2_t even[2] = {vreinterpretq_s64_s32(vtrn1q_s32(a, b)), vreinterpretq_s64_s32(vtrn1q_s32(c, d))};
    int64x2_t odd[2] = {vreinterpretq_s64_s32(vtrn2q_s32(a, b)), vreinterpretq_s64_s32(vtrn2q_s32(c, d))};
    out[0] = vreinterpretq_s32_s64(vzip1q_s64(even[0], even[1]));
    out[1] = vreinterpretq_s32_s64(vzip1q_s64(odd[0], odd[1]));
    out[2] = vreinterpretq_s32_s64(vzip2q_s64(even[0], even[1]));
    out[3] = vreinterpretq_s32_s64(vzip2q_s64(odd[0], odd[1]));
}

#endif
