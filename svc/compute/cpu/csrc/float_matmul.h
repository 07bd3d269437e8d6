/* Products with activations in floats. */
#ifndef HEADRACE_FLOAT_MATMUL_H
#define HEADRACE_FLOAT_MATMUL_H

#include "matmul.h"

#define FLOAT_ROWS 16 /* most rows of a tile */

/* Tokens of a group. */
int float_group(const product *p);
/* Floats of scratch that a tile of this product needs. */
size_t float_scratch(const product *p);
/* Up to FLOAT_ROWS rows and a group of tokens of a product. */
void float_product_tile(const runtime *rt, const product *p, int first_row, int first_token, float *scratch);

#endif
