/* Calls the kernels for another process: commands come on standard input, results go to standard output, all in memory's format.
 *
 * command: int64 numbers {operation, type, rows, cols, tokens, kind, threads, bytes}, then `bytes` bytes, then `tokens * cols` floats.
 *   0 product: the bytes are one matrix (kind bit 0: activations in 8 bits; bit 1: a second one, up, follows in the bytes)
 *   1 dequantize `rows * cols` values    2 function number `type` of `rows * cols` floats in the bytes    3 codebook number `type` */
#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

enum { OPERATION, TYPE, ROWS, COLS, TOKENS, KIND, THREADS, BYTES, NUMBERS };

runtime *hr_open(int threads, int64_t least_shared_work, int64_t most_partial_bytes, int round_activations);
void hr_close(runtime *e);
int hr_runs(const char *level);
int hr_set_codebook(runtime *e, int index, const float *book);
int hr_dequantize(const runtime *e, int type, const uint8_t *row, float *out, int64_t n);
int hr_matmul(runtime *e, float *out, const matrix *weight, const matrix *up, const float *x, int num_tokens);
int hr_elementwise(int function, const float *x, float *out, int64_t n);

static void *take(int64_t bytes) {
    void *p = malloc((size_t)bytes + 1);
    if (!p || fread(p, 1, (size_t)bytes, stdin) != (size_t)bytes) {
        exit(3);
    }
    return p;
}

static float *books[6];

static int multiply(const int64_t *n, uint8_t *data, float *out) {
    float *x = take(n[TOKENS] * n[COLS] * (int64_t)sizeof *x);
    int two = (int)(n[KIND] >> 1);
    matrix weight = {.data = data, .row_bytes = n[BYTES] / (n[ROWS] << two), .type = (int)n[TYPE], .rows = (int)n[ROWS], .cols = (int)n[COLS], .experts = 1};
    matrix up = weight;
    up.data = data + n[BYTES] / 2;
    runtime *e = hr_open((int)n[THREADS], 0, 1 << 20, (int)(n[KIND] & 1));
    for (int i = 0; i < 6; i++) {
        hr_set_codebook(e, i, books[i]);
    }
    int error = hr_matmul(e, out, &weight, two ? &up : NULL, x, (int)n[TOKENS]);
    hr_close(e);
    free(x);
    return error;
}

int main(void) {
    int64_t n[NUMBERS];
    printf("%s\n", hr_runs("neon-dotprod") ? "neon-dotprod" : hr_runs("neon") ? "neon" : "base");
    while (fread(n, sizeof n, 1, stdin) == 1) {
        uint8_t *data = take(n[BYTES]);
        if (n[OPERATION] == 3) {
            books[n[TYPE]] = (float *)data;
            continue;
        }
        int64_t count = n[ROWS] * (n[OPERATION] ? n[COLS] : n[TOKENS]);
        float *out = malloc((size_t)count * sizeof *out);
        runtime e = {.books = {books[0], books[1], books[2], books[3], books[4], books[5]}};
        int error = n[OPERATION] == 0   ? multiply(n, data, out)
                    : n[OPERATION] == 1 ? hr_dequantize(&e, (int)n[TYPE], data, out, count)
                                        : hr_elementwise((int)n[TYPE], (float *)data, out, count);
        if (error || fwrite(out, sizeof *out, (size_t)count, stdout) != (size_t)count) {
            return 4;
        }
        free(out), free(data);
    }
    return 0;
}
