/* The vector functions of simd_math.h over an array, for tests. */
#include "runtime.h"
#include "simd_math.h"

/* out[i] = f(x[i]): 0 exp, 1 sigmoid, 2 SiLU, 3 softplus, 4 through half and back. */
EXPORT int hr_elementwise(int function, const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int count = n - i < LANES ? (int)(n - i) : LANES;
        f32x16 a = v_load_n(x + i, count);
        uint16_t halves[LANES];
        switch (function) {
        case 0: a = v_exp(a); break;
        case 1: a = v_sigmoid(a); break;
        case 2: a = v_silu(a); break;
        case 3: a = v_softplus(a); break;
        default: v_store_half(halves, a), a = v_load_half(halves); break;
        }
        v_store_n(out + i, a, count);
    }
    return 0;
}
