/* Rows of a weight as floats: the embedding of a step's tokens, and any row for tests. */
#include "ops.h"

typedef struct {
    runtime *rt;
    float *hidden;
    const matrix *table;
    const step_inputs *in;
} embed_job;

static void embed_task(void *context, int token, int worker) {
    const embed_job *j = context;
    (void)worker;
    const uint8_t *row = j->table->data + j->in->tokens[token] * j->table->row_bytes;
    dequantizer(j->table->type)(row, j->hidden + (size_t)token * (size_t)j->table->cols, (size_t)j->table->cols, &j->rt->books);
}

EXPORT int hr_embed(runtime *rt, float *hidden, const matrix *table, const step_inputs *in) {
    embed_job j = {rt, hidden, table, in};
    run_tasks(rt, embed_task, &j, in->num_tokens, 4 * (size_t)in->num_tokens * (size_t)table->cols);
    return 0;
}

EXPORT int hr_supports(int type) { return dequantizer(type) != NULL; }

EXPORT int hr_dequantize(const runtime *rt, int type, const uint8_t *row, float *out, int64_t n) {
    dequantize_fn dequantize = dequantizer(type);
    if (dequantize) {
        dequantize(row, out, (size_t)n, &rt->books);
    }
    return dequantize ? 0 : -1;
}
