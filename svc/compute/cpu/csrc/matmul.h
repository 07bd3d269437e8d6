/* Products of weight matrices with the tokens of a step. */
#ifndef HEADRACE_MATMUL_H
#define HEADRACE_MATMUL_H

#include "runtime.h"

typedef struct {
    const matrix *weight;
    const matrix *up;       /* NULL, or a second matrix of the same shape: the result is SiLU(weight x) * up x */
    int expert;             /* index of the matrix in a stack */
    const float *x;         /* [..][ldx] activations, ldx >= ROUND_LANES(cols), zeros after cols */
    size_t ldx;
    const int32_t *gather;  /* NULL: token i is row i of x; else row gather[first + i] */
    int first, num_gathered; /* of the whole list `gather`, which several products have parts of */
    int num_tokens;
    float *out;             /* [..][ldo]; token i writes (adds to) row i */
    size_t ldo;
    int add;                /* out += instead of out = */
} product;

/* Computes all products as one parallel phase. Every output element is one canonical dot product (simd.h, int_matmul.c), for any number and
 * order of tokens, tiles and threads. */
void run_products(runtime *rt, const product *products, int count);

#endif
