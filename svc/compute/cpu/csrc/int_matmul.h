/* Products with activations rounded to 8 bits. */
#ifndef HEADRACE_INT_MATMUL_H
#define HEADRACE_INT_MATMUL_H

#include "matmul.h"

#define INT_ROWS 16           /* rows of a tile; matrices with fewer are computed in floats */
#define INT_TOKENS 256        /* tokens a tile's sums are kept for; with more it is unpacked again */
#define INT_SCRATCH (2 * INT_TOKENS * INT_ROWS)

/* Columns that share one scale of the activations, as this type wants them: 256, 32, or 0 for a type without an integer kernel. */
int int_block(int type);
/* Bytes of one token's `cols` activations in blocks of `block`. */
size_t int_row_bytes(int block, int cols);
void int_quantize(const float *x, int block, int cols, void *out);
/* One tile of a product whose activations stand quantized at x, row_bytes apart; `scratch` holds INT_SCRATCH floats. */
void int_product_tile(const product *p, const uint8_t *x, size_t row_bytes, int first_row, float *scratch);

#endif
