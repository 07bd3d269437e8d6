/* exp and related functions on sixteen lanes: the same bits in every build, because they use only fused multiply-adds and IEEE-exact
 * operations, never libm. A lane's result does not depend on its neighbours. NaN stays NaN. */
#ifndef HEADRACE_SIMD_MATH_H
#define HEADRACE_SIMD_MATH_H

#include "simd.h"

/* e^x within 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor series of e^r (next term < 6e-9 relative).
 * Below -104 the result is 0, above 88.73 infinity. */
ALWAYS_INLINE f32x16 v_exp(f32x16 x) {
    x = v_max(v_set1(-105.0f), v_min(v_set1(89.0f), x)); /* this operand order lets NaN through */
    f32x16 t = v_madd(x, v_set1(0x1.715476p+0f), v_set1(MAGIC));
    f32x16 n = v_sub(t, v_set1(MAGIC));
    f32x16 r = v_madd(n, v_set1(-0x1.62e400p-1f), x); /* ln 2 in two parts, the first with few bits: n times it is exact */
    r = v_madd(n, v_set1(-0x1.7f7d1cp-20f), r);
    f32x16 p = v_set1(1.0f / 5040.0f);
    p = v_madd(p, r, v_set1(1.0f / 720.0f));
    p = v_madd(p, r, v_set1(1.0f / 120.0f));
    p = v_madd(p, r, v_set1(1.0f / 24.0f));
    p = v_madd(p, r, v_set1(1.0f / 6.0f));
    p = v_madd(p, r, v_set1(0.5f));
    p = v_add(v_madd(v_mul(r, r), p, r), v_set1(1.0f));
    return v_scale2(p, t);
}

ALWAYS_INLINE f32x16 v_sigmoid(f32x16 x) {
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

ALWAYS_INLINE f32x16 v_silu(f32x16 x) {
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* log(1 + e) for e in [0, 1]: 2 atanh(s), s = e / (2 + e) <= 1/3, by its series (next term < 3e-9 relative). */
ALWAYS_INLINE f32x16 v_log1p_unit(f32x16 e) {
    f32x16 s = v_div(e, v_add(v_set1(2.0f), e)), s2 = v_mul(s, s);
    f32x16 p = v_set1(2.0f / 17.0f);
    p = v_madd(p, s2, v_set1(2.0f / 15.0f));
    p = v_madd(p, s2, v_set1(2.0f / 13.0f));
    p = v_madd(p, s2, v_set1(2.0f / 11.0f));
    p = v_madd(p, s2, v_set1(2.0f / 9.0f));
    p = v_madd(p, s2, v_set1(2.0f / 7.0f));
    p = v_madd(p, s2, v_set1(2.0f / 5.0f));
    p = v_madd(p, s2, v_set1(2.0f / 3.0f));
    return v_madd(v_mul(p, s2), s, v_add(s, s));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): no overflow, full relative accuracy at both ends. */
ALWAYS_INLINE f32x16 v_softplus(f32x16 x) {
    f32x16 minus_abs = v_min(v_sub(v_zero(), x), x);
    return v_add(v_max(v_zero(), x), v_log1p_unit(v_exp(minus_abs)));
}

ALWAYS_INLINE float exp_one(float x) {
    float lanes[LANES];
    v_store(lanes, v_exp(v_set1(x)));
    return lanes[0];
}

ALWAYS_INLINE float sigmoid_one(float x) {
    float lanes[LANES];
    v_store(lanes, v_sigmoid(v_set1(x)));
    return lanes[0];
}

#endif
