/* The operations of a forward, each with hidden [T][C] in its first argument; see the files that define them. */
#ifndef HEADRACE_OPS_H
#define HEADRACE_OPS_H

#include "runtime.h"

EXPORT int hr_embed(runtime *rt, float *hidden, const matrix *table, const step_inputs *in);
EXPORT int hr_delta_mixer(runtime *rt, float *hidden, const delta_layer *l, const step_inputs *in, const caches *c);
EXPORT int hr_attention_mixer(runtime *rt, float *hidden, const attention_layer *l, const step_inputs *in, const caches *c);
EXPORT int hr_dense_ffn(runtime *rt, float *hidden, const dense_layer *l, const step_inputs *in);
EXPORT int hr_moe_ffn(runtime *rt, float *hidden, const moe_layer *l, const step_inputs *in);
EXPORT int hr_final_hidden(runtime *rt, const float *hidden, const float *weight, float epsilon, int size, const step_inputs *in, const caches *c);

#endif
