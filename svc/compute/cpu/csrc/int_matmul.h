/* Products with activations rounded to 8 bits. */
#ifndef HEADRACE_INT_MATMUL_H
#define HEADRACE_INT_MATMUL_H

#include "matmul.h"

#define INT_ROWS 16           /* rows of a tile; matrices with fewer are computed in floats */
#define INT_TOKENS 256        /* tokens a tile's sums are kept for; with more it is unpacked again */
#define INT_SCRATCH (2 * INT_TOKENS * INT_ROWS)

enum { Q4_0 = 2, Q5_0 = 6, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, MXFP4 = 39 }; /* GGUF type ids */

/* Columns per scale of the activations for this type of weights: 256, 32, or 0 for a type without an integer kernel. */
int int_block(int type);
/* Bytes of one unit of one row of activations (int_activations.h). */
size_t int_unit_bytes(int block);
/* Rounds one row of activations; its next unit is `stride` bytes on. */
void int_quantize(const float *x, int block, int cols, uint8_t *out, size_t stride);
/* Quantized activations of a product: its token i is row i of the units, or row gather[i]. */
typedef struct {
    const uint8_t *units; /* [units][num_rows], and INT_PADDING more that may be read but do not count */
    size_t num_rows;
    const int32_t *gather;
} int_source;

#define INT_PADDING 32

/* Whether products of this many tokens need them contiguous, not gathered. */
int int_wants_gathered(int num_tokens);
/* Rows of a product, first_row a multiple of INT_ROWS; `scratch` holds INT_SCRATCH floats. */
void int_product_rows(const product *p, const int_source *x, int first_row, int num_rows, float *scratch);

#endif
