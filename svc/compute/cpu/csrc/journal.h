/* The journal: what each token changes in a live row, so that a row can be taken to any of the last tokens (svc/memory/layout.py). A
 * layer's part of an entry: key [H_k * D_k], delta [H_v * D_v], raw convolution row [channels], decay [H_v]; the hidden row is last. */
#ifndef HEADRACE_JOURNAL_H
#define HEADRACE_JOURNAL_H

#include "runtime.h"

ALWAYS_INLINE float *journal_token(const caches *c, int row, int position) {
    return c->journal + ((size_t)row * (size_t)c->journal_tokens + (size_t)(position % c->journal_tokens)) * (size_t)c->journal_elements;
}

ALWAYS_INLINE float *journal_layer(const caches *c, int row, int position, int layer) {
    return journal_token(c, row, position) + (size_t)layer * (size_t)c->journal_layer_elements;
}

ALWAYS_INLINE float *journal_hidden(const caches *c, int row, int position) {
    return journal_token(c, row, position) + (size_t)c->num_delta_layers * (size_t)c->journal_layer_elements;
}

/* The key head of a value head. */
ALWAYS_INLINE int key_head_of(int head, int num_value_heads, int num_key_heads, int grouped) {
    return grouped ? head / (num_value_heads / num_key_heads) : head % num_key_heads;
}

#endif
