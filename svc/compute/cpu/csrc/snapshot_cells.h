/* Recurrent states in snapshots, in the types of svc/memory/layout.py. `part`: a layer's part of a snapshot.
 *
 * 8 bits: a value column has the scale m / 127, m being its largest magnitude, and the numbers round(x * (127 / m)), ties to even. A
 * number that is not finite makes the scale, and so the restored column, NaN; m below 1e-30 gives zeros. */
#ifndef HEADRACE_SNAPSHOT_CELLS_H
#define HEADRACE_SNAPSHOT_CELLS_H

#include "runtime.h"

typedef struct { /* columns [column, column + width) of a value head */
    int head, column;
} panel_place;

ALWAYS_INLINE float *snapshot_layer(const caches *c, float *snapshots, int snapshot_id, int layer) {
    return snapshots + (size_t)snapshot_id * (size_t)c->snapshot_elements + (size_t)layer * (size_t)c->snapshot_layer_words;
}

/* Index of the panel's first number among those of the layer, [head][key_dim][value_dim]. */
ALWAYS_INLINE size_t panel_index(const caches *c, panel_place at) {
    return (size_t)at.head * (size_t)c->key_dim * (size_t)c->value_dim + (size_t)at.column;
}

ALWAYS_INLINE float *panel_scales(const caches *c, float *part, panel_place at) {
    return part + c->snapshot_scales_offset + (size_t)at.head * (size_t)c->value_dim + (size_t)at.column;
}

ALWAYS_INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits = float_to_bits(value), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

/* Sixteen columns of `rows` numbers, `ld` apart, to bytes `ld_to` apart. */
static inline void pack_columns(int8_t *to, size_t ld_to, float *scales, const float *from, size_t ld, int rows) {
    uint32_t most[LANES] = {0}; /* magnitudes compare like their bits, NaN above all */
    float inverse[LANES];
    for (int k = 0; k < rows; k++) {
        for (int i = 0; i < LANES; i++) {
            uint32_t magnitude = float_to_bits(from[(size_t)k * ld + (size_t)i]) & 0x7fffffff;
            most[i] = magnitude > most[i] ? magnitude : most[i];
        }
    }
    uint32_t used[LANES]; /* all bits set, or none */
    for (int i = 0; i < LANES; i++) {
        float largest = bits_to_float(most[i]);
        int is_finite = most[i] < 0x7f800000, is_used = is_finite && largest >= 1e-30f;
        used[i] = is_used ? 0xffffffffu : 0;
        inverse[i] = is_used ? 127.0f / largest : 0.0f;
        scales[i] = is_used ? largest / 127.0f : is_finite ? 0.0f : bits_to_float(0x7fc00000);
    }
    for (int k = 0; k < rows; k++) {
        for (int i = 0; i < LANES; i++) {
            float value = bits_to_float(float_to_bits(from[(size_t)k * ld + (size_t)i]) & used[i]);
            to[(size_t)k * ld_to + (size_t)i] = (int8_t)(float_to_bits(value * inverse[i] + MAGIC) - MAGIC_BITS);
        }
    }
}

/* `width` columns, a multiple of 16, of key_dim numbers that are `ld` apart in `from`. */
static inline void pack_panel(const caches *c, float *part, panel_place at, const float *from, size_t ld, int width) {
    size_t ld_to = (size_t)c->value_dim, first = panel_index(c, at);
    if (c->snapshot_type == SNAPSHOT_Q8) {
        for (int column = 0; column < width; column += LANES) {
            pack_columns((int8_t *)part + first + column, ld_to, panel_scales(c, part, at) + column, from + column, ld, c->key_dim);
        }
        return;
    }
    for (size_t k = 0; k < (size_t)c->key_dim; k++) {
        if (c->snapshot_type == SNAPSHOT_F32) {
            memcpy(part + first + k * ld_to, from + k * ld, (size_t)width * sizeof *from);
        } else {
            uint16_t *to = (uint16_t *)part + first + k * ld_to;
            for (int i = 0; i < width; i++) {
                to[i] = float_to_bf16(from[k * ld + (size_t)i]);
            }
        }
    }
}

#endif
