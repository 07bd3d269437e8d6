/* Rounds activations to 8 bits, with one scale for each block of the weights that they meet. */
#include "int_activations.h"

#include "int_matmul.h"

int int_block(int type) {
    switch (type) {
    case Q4_K: case Q5_K: case Q6_K: case IQ4_XS: return 256;
    case Q8_0: case Q4_0: case Q5_0: case IQ4_NL: case MXFP4: return 32;
    default: return 0;
    }
}

size_t int_unit_bytes(int block) { return block == 256 ? sizeof(block256) : sizeof(blocks32); }

/* Rounds n values to the nearest multiple of the result, ties to even. Infinity and NaN make the scale, and so all sums, NaN;
 * magnitudes below 1e-30 become zero. */
ALWAYS_INLINE float round_values(const float *x, int n, int8_t *q) {
    uint32_t largest = 0; /* magnitudes compare like their bits, NaN above all */
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    float most = bits_to_float(largest);
    if (!(most >= 1e-30f && largest < 0x7f800000)) {
        memset(q, 0, (size_t)n);
        return largest < 0x7f800000 ? 0.0f : bits_to_float(0x7fc00000);
    }
    float inverse = 127.0f / most;
    for (int i = 0; i < n; i++) {
        q[i] = (int8_t)(float_to_bits(x[i] * inverse + MAGIC) - MAGIC_BITS);
    }
    return most / 127.0f;
}

ALWAYS_INLINE int sum_of(const int8_t *q, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += q[i];
    }
    return sum;
}

void int_quantize(const float *x, int block, int cols, uint8_t *out, size_t stride) {
    for (int first = 0; first < cols; first += 256, x += 256, out += stride) {
        if (block == 32) {
            blocks32 *b = (blocks32 *)out;
            for (int i = 0; i < min_int(256, cols - first) / 32; i++) {
                b->d[i] = round_values(x + 32 * i, 32, b->q + 32 * i);
                b->sums[i] = sum_of(b->q + 32 * i, 32);
            }
        } else {
            block256 *b = (block256 *)out;
            b->d = round_values(x, 256, b->q);
            for (int i = 0; i < 16; i++) {
                b->sums16[i] = (int16_t)sum_of(b->q + 16 * i, 16);
            }
            for (int i = 0; i < 8; i++) {
                b->sums32[i] = (int16_t)(b->sums16[2 * i] + b->sums16[2 * i + 1]);
            }
        }
    }
}
