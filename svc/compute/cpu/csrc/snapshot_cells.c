/* State rows to snapshots of a more compact type and back; where a snapshot is a copy of a row, copy_blocks.c does it. */
#include "snapshot_cells.h"

typedef struct {
    const caches *c;
    float *row, *snapshot;
    int to_row;
} row_job;

ALWAYS_INLINE void copy_words(const row_job *j, float *in_row, float *in_snapshot, int64_t words) {
    memcpy(j->to_row ? in_row : in_snapshot, j->to_row ? in_snapshot : in_row, (size_t)words * sizeof(float));
}

static void unpack_head(const caches *c, float *to, float *part, int head) {
    panel_place at = {head, 0};
    size_t first = panel_index(c, at), count = (size_t)c->key_dim * (size_t)c->value_dim;
    if (c->snapshot_type == SNAPSHOT_BF16) {
        const uint16_t *from = (const uint16_t *)part + first;
        for (size_t i = 0; i < count; i++) {
            to[i] = bits_to_float((uint32_t)from[i] << 16);
        }
        return;
    }
    const int8_t *from = (const int8_t *)part + first;
    const float *scales = panel_scales(c, part, at);
    for (int k = 0; k < c->key_dim; k++, to += c->value_dim, from += c->value_dim) {
        for (int i = 0; i < c->value_dim; i += LANES) {
            v_store(to + i, v_mul(v_load_int8(from + i), v_load(scales + i)));
        }
    }
}

/* Heads of all layers; then a task a layer for its convolution rows; then the hidden row. */
static void row_task(void *context, int task, int worker) {
    const row_job *j = context;
    const caches *c = j->c;
    int heads = c->num_delta_layers * c->num_value_heads, is_head = task < heads;
    int layer = is_head ? task / c->num_value_heads : task - heads, head = task % c->num_value_heads;
    (void)worker;
    if (layer == c->num_delta_layers) {
        copy_words(j, j->row + c->hidden_offset, j->snapshot + c->snapshot_hidden_offset, c->state_elements - c->hidden_offset);
        return;
    }
    size_t head_elements = (size_t)c->key_dim * (size_t)c->value_dim, recurrent = (size_t)c->num_value_heads * head_elements;
    float *in_row = j->row + (size_t)layer * (recurrent + (size_t)c->conv_elements), *part = snapshot_layer(c, j->snapshot, 0, layer);
    if (!is_head) {
        copy_words(j, in_row + recurrent, part + c->snapshot_conv_offset, c->conv_elements);
    } else if (j->to_row) {
        unpack_head(c, in_row + (size_t)head * head_elements, part, head);
    } else {
        pack_panel(c, part, (panel_place){head, 0}, in_row + (size_t)head * head_elements, (size_t)c->value_dim, c->value_dim);
    }
}

static void run_pairs(runtime *rt, const caches *c, float *snapshots, const int32_t *pairs, int n, int to_row) {
    int tasks = c->num_delta_layers * (c->num_value_heads + 1) + 1;
    for (int i = 0; i < n; i++) {
        row_job j = {.c = c, .to_row = to_row};
        j.row = c->rows + (size_t)pairs[2 * i] * (size_t)c->state_elements;
        j.snapshot = snapshots + (size_t)pairs[2 * i + 1] * (size_t)c->snapshot_elements;
        run_tasks(rt, row_task, &j, tasks, (size_t)c->state_elements);
    }
}

/* pairs [n][2]: (row, snapshot). */
EXPORT int hr_save_rows(runtime *rt, const caches *c, const int32_t *pairs, int n) {
    run_pairs(rt, c, c->snapshots, pairs, n, 0);
    return 0;
}

/* The reverse, from any array of snapshots. */
EXPORT int hr_restore_rows(runtime *rt, const caches *c, float *snapshots, const int32_t *pairs, int n) {
    run_pairs(rt, c, snapshots, pairs, n, 1);
    return 0;
}
