/* A whole forward in one call. A call from Python starts with cold caches: 50 calls took a tenth of a small model's step. */
#include "ops.h"

enum { EMBED, DELTA_MIXER, ATTENTION_MIXER, DENSE_FFN, MOE_FFN, FINAL_HIDDEN };

typedef struct { /* an operation and its arguments; some have fewer */
    const void *layer; /* its structure; for FINAL_HIDDEN the norm weights */
    const caches *caches;
    int32_t operation, size;
    float epsilon;
} instruction;

static int run(runtime *rt, const instruction *i, float *hidden, const step_inputs *in) {
    switch (i->operation) {
    case EMBED: return hr_embed(rt, hidden, i->layer, in);
    case DELTA_MIXER: return hr_delta_mixer(rt, hidden, i->layer, in, i->caches);
    case ATTENTION_MIXER: return hr_attention_mixer(rt, hidden, i->layer, in, i->caches);
    case DENSE_FFN: return hr_dense_ffn(rt, hidden, i->layer, in);
    case MOE_FFN: return hr_moe_ffn(rt, hidden, i->layer, in);
    default: return hr_final_hidden(rt, hidden, i->layer, i->epsilon, i->size, in, i->caches);
    }
}

/* Runs operations in order and stops at one that fails. */
EXPORT int hr_forward(runtime *rt, const instruction *program, int count, float *hidden, const step_inputs *in) {
    int failed = 0;
    for (int i = 0; !failed && i < count; i++) {
        failed = run(rt, program + i, hidden, in);
    }
    return failed;
}
