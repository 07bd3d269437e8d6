/* Weights in their file types. Numbers of types are GGML's, as in GGUF files. */
#ifndef HEADRACE_QUANT_H
#define HEADRACE_QUANT_H

#include <stddef.h>
#include <stdint.h>

#define NUM_TYPES 41

/* Codebooks of the IQ types, passed once by the host: floats [entries][8 or 4]. */
typedef struct {
    const float *iq2_xxs, *iq2_xs, *iq2_s, *iq3_xxs, *iq3_s, *iq1;
} codebooks;

/* Exactly dequantizes n values (a multiple of the type's block) of one row; bit for bit as svc/gguf/quant. */
typedef void (*dequantize_fn)(const uint8_t *restrict row, float *restrict out, size_t n, const codebooks *books);

dequantize_fn dequantizer(int type); /* NULL: type not supported */
/* Bytes of n values, a multiple of the type's block, of a supported type. */
size_t packed_bytes(int type, size_t n);

#endif
