/* From the residual stream to logits: the final norm and the product with the output matrix (lm_head). */
#include "matmul.h"
#include "ops.h"
#include "journal.h"

/* norm(hidden) [T][C] of each sequence's last token into its live row, of each captured token into its snapshot; by its mode, of each of
 * its tokens into the journal. */
EXPORT int hr_final_hidden(runtime *rt, const float *hidden, const float *weight, float epsilon, int size, const step_inputs *in, const caches *c) {
    (void)rt;
    for (int s = 0; s < in->num_sequences; s++) {
        for (int t = in->cu_seqlens[s]; in->modes[s] & WRITES_JOURNAL && t < in->cu_seqlens[s + 1]; t++) {
            rms_norm(hidden + (size_t)t * (size_t)size, weight, epsilon, size, journal_hidden(c, in->rows[s], in->positions[t]));
        }
        if (in->modes[s] & HOLDS_ROW) {
            continue;
        }
        float *row = c->rows + (int64_t)in->rows[s] * c->state_elements + c->hidden_offset;
        rms_norm(hidden + (size_t)(in->cu_seqlens[s + 1] - 1) * (size_t)size, weight, epsilon, size, row);
    }
    for (int i = 0; i < in->num_captures; i++) {
        float *snapshot = c->snapshots + (int64_t)in->capture_snapshots[i] * c->snapshot_elements + c->snapshot_hidden_offset;
        rms_norm(hidden + (size_t)in->capture_tokens[i] * (size_t)size, weight, epsilon, size, snapshot);
    }
    return 0;
}

/* out [n][C] = norm(hidden) of tokens[i]: the bits that hr_final_hidden gives the same token. */
EXPORT int hr_hidden_rows(runtime *rt, float *out, const float *hidden, const float *weight, float epsilon, int size, const int32_t *tokens, int n) {
    (void)rt;
    for (int i = 0; i < n; i++) {
        rms_norm(hidden + (size_t)tokens[i] * (size_t)size, weight, epsilon, size, out + (size_t)i * (size_t)size);
    }
    return 0;
}

/* out [T][rows] = weight . x[t], x [T][cols]; with `up`, SiLU(weight . x) * (up . x). */
EXPORT int hr_matmul(runtime *rt, float *out, const matrix *weight, const matrix *up, const float *x, int num_tokens) {
    arena_reset(rt);
    size_t ld = ROUND_LANES(weight->cols), size = (size_t)weight->cols;
    float *padded = arena_floats(rt, (size_t)num_tokens * ld);
    if (!padded) {
        return -1;
    }
    for (size_t t = 0; t < (size_t)num_tokens; t++) {
        memset(padded + t * ld, 0, ld * sizeof *padded);
        memcpy(padded + t * ld, x + t * size, size * sizeof *padded);
    }
    product p = {.weight = weight, .up = up, .x = padded, .ldx = ld, .num_tokens = num_tokens, .out = out, .ldo = (size_t)weight->rows};
    run_products(rt, &p, 1);
    return rt->out_of_memory ? -1 : 0;
}
