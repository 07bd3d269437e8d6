/* A whole forward in one call. Every call from Python starts with cold caches: 50 of them were a tenth of a small model's step. */
#include "ops.h"

enum { EMBED, DELTA_MIXER, ATTENTION_MIXER, DENSE_FFN, MOE_FFN, FINAL_HIDDEN };

typedef struct { /* the arguments of an operation, as far as it has them */
    const void *layer; /* its structure; for FINAL_HIDDEN the norm weights */
    const caches *c;
    int32_t operation, size;
    float epsilon;
} instruction;

static int run(runtime *e, const instruction *i, float *hidden, const step_inputs *in) {
    switch (i->operation) {
    case EMBED: return hr_embed(e, hidden, i->layer, in);
    case DELTA_MIXER: return hr_delta_mixer(e, hidden, i->layer, in, i->c);
    case ATTENTION_MIXER: return hr_attention_mixer(e, hidden, i->layer, in, i->c);
    case DENSE_FFN: return hr_dense_ffn(e, hidden, i->layer, in);
    case MOE_FFN: return hr_moe_ffn(e, hidden, i->layer, in);
    default: return hr_final_hidden(e, hidden, i->layer, i->epsilon, i->size, in, i->c);
    }
}

/* Runs operations one after the other, up to one that fails. */
EXPORT int hr_forward(runtime *e, const instruction *program, int count, float *hidden, const step_inputs *in) {
    int failed = 0;
    for (int i = 0; !failed && i < count; i++) {
        failed = run(e, program + i, hidden, in);
    }
    return failed;
}
