/* Takes live rows forward by replaying their journals: S = decay S + key delta', the operations of delta.c in the same order, so the
 * same bits. A task is a panel of a value head of a layer; it reads and writes its part of the state once, however many tokens there are. */
#include "journal.h"

#define PANEL 64 /* value columns at once, as in delta.c; no result depends on it */

typedef struct {
    const caches *c;
    int row, start, end, num_key_heads, grouped, panels;
    float *live;
} settle_job;

static void settle_panel(const settle_job *j, int layer, int head, int first, int width) {
    const caches *c = j->c;
    int key_head = key_head_of(head, c->num_value_heads, j->num_key_heads, j->grouped);
    size_t ld = (size_t)c->value_dim, recurrent = (size_t)c->num_value_heads * (size_t)c->key_dim * ld;
    float *state = j->live + (size_t)layer * (recurrent + (size_t)c->conv_elements) + (size_t)head * (size_t)c->key_dim * ld + (size_t)first;
    for (int position = j->start; position < j->end; position++) {
        const float *entry = journal_layer(c, j->row, position, layer), *key = entry + key_head * c->key_dim;
        const float *delta = entry + c->journal_key_elements + head * c->value_dim + first;
        const float *decays = entry + c->journal_key_elements + c->num_value_heads * c->value_dim + c->conv_channels;
        f32x16 decay = v_set1(decays[head]);
        for (int k = 0; k < c->key_dim; k++) {
            f32x16 factor = v_set1(key[k]);
            float *at = state + (size_t)k * ld;
            for (int i = 0; i < width; i += LANES) {
                v_store(at + i, v_madd(factor, v_load(delta + i), v_mul(decay, v_load(at + i))));
            }
        }
    }
}

/* The last raw rows of those kept and those of the journal. Shifting old rows down in place reads ahead of writing. */
static void settle_conv_rows(const settle_job *j, int layer) {
    const caches *c = j->c;
    size_t channels = (size_t)c->conv_channels, recurrent = (size_t)c->num_value_heads * (size_t)c->key_dim * (size_t)c->value_dim;
    int kept = (int)(c->conv_elements / c->conv_channels), count = j->end - j->start;
    float *rows = j->live + (size_t)(layer + 1) * recurrent + (size_t)layer * (size_t)c->conv_elements;
    for (int i = 0; i < kept; i++) {
        int index = count - kept + i; /* of a token after `start`; negative: of a row kept from before */
        size_t skip = (size_t)(c->journal_key_elements + c->num_value_heads * c->value_dim);
        const float *from = index < 0 ? rows + (size_t)(kept + index) * channels : journal_layer(c, j->row, j->start + index, layer) + skip;
        memmove(rows + (size_t)i * channels, from, channels * sizeof *rows);
    }
}

/* Panels of all heads of all layers, then a task a layer for its convolution rows, then the hidden row. */
static void settle_task(void *context, int task, int worker) {
    const settle_job *j = context;
    const caches *c = j->c;
    int per_layer = c->num_value_heads * j->panels, panels = c->num_delta_layers * per_layer;
    (void)worker;
    if (task < panels) {
        int first = task % j->panels * PANEL;
        settle_panel(j, task / per_layer, task % per_layer / j->panels, first, min_int(PANEL, c->value_dim - first));
    } else if (task < panels + c->num_delta_layers) {
        settle_conv_rows(j, task - panels);
    } else {
        size_t bytes = (size_t)(c->state_elements - c->hidden_offset) * sizeof *j->live;
        memcpy(j->live + c->hidden_offset, journal_hidden(c, j->row, j->end - 1), bytes);
    }
}

/* settles [n][3]: (row, start, end). */
EXPORT int hr_settle_rows(runtime *rt, const caches *c, const int32_t *settles, int n, int grouped) {
    for (int i = 0; i < n; i++, settles += 3) {
        settle_job j = {.c = c, .row = settles[0], .start = settles[1], .end = settles[2], .grouped = grouped};
        j.num_key_heads = c->key_dim ? (int)(c->journal_key_elements / c->key_dim) : 0;
        j.panels = div_up(c->value_dim, PANEL);
        j.live = c->rows + (size_t)j.row * (size_t)c->state_elements;
        size_t work = (size_t)(j.end - j.start) * (size_t)c->state_elements;
        run_tasks(rt, settle_task, &j, c->num_delta_layers * (c->num_value_heads * j.panels + 1) + 1, work);
    }
    return 0;
}
