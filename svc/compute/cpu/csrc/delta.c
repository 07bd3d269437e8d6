/* Gated DeltaNet mixer, one call per layer (docs/model_math.md): norm, projections, convolution, gates, the recurrence token by token,
 * gated norm, output projection. Phases are parallel over tokens, or over (sequence, value head, panel of value columns) in the recurrence.
 *
 * State of a value head: [key_dim][value_dim], value columns in lanes. Sums over the key dimension run in rising k, one fused
 * multiply-add per k and column, so no horizontal sums and no dependence on the panel width. */
#include "simd_math.h"
#include "matmul.h"
#include "ops.h"
#include "snapshot_cells.h"
#include "journal.h"

#define PANEL 64 /* value columns at once: 64 x 128 floats are 32 KiB, which stay in L1 for all tokens */
#define WIDE_PANEL (SIMD_AVX512 ? 128 : PANEL) /* for a single token, which reads the state from memory: whole rows, if registers hold them */

typedef struct {
    runtime *rt;
    const delta_layer *l;
    const step_inputs *in;
    const caches *c;
    const int32_t *sequence;
    int channels, keys, values; /* 2 K + V, K, V */
    int padded_heads;           /* row length of beta, decay */
    int panel, task_panels;     /* columns of a panel, panels of a task */
    size_t recurrent_offset, conv_offset;
    float *raw;    /* [T][channels] before the convolution */
    float *mixed;  /* [T][channels] after convolution and SiLU; q and k normalised */
    float *gate;   /* [T][V] */
    float *beta;   /* [T][padded_heads] logits, then sigmoid */
    float *decay;  /* [T][padded_heads] alpha, then e^g */
    float *result; /* [T][V] */
} delta_job;

ALWAYS_INLINE float *live_state(const delta_job *j, int sequence) {
    return j->c->rows + (size_t)j->in->rows[sequence] * (size_t)j->c->state_elements;
}

/* This layer's part of the snapshot of a capture. */
ALWAYS_INLINE float *snapshot_part(const delta_job *j, int capture) {
    return snapshot_layer(j->c, j->c->snapshots, j->in->capture_snapshots[capture], j->l->index);
}

/* This layer's part of the journal's entry of a token; NULL if its sequence writes none. */
ALWAYS_INLINE float *journal_entry(const delta_job *j, int token) {
    int sequence = j->sequence[token];
    if (!(j->in->modes[sequence] & WRITES_JOURNAL)) {
        return NULL;
    }
    return journal_layer(j->c, j->in->rows[sequence], j->in->positions[token], j->l->index);
}

/* The raw convolution row `index` tokens after the first of the sequence; negative: rows kept from before. */
ALWAYS_INLINE const float *raw_row(const delta_job *j, int sequence, int index) {
    if (index >= 0) {
        return j->raw + (size_t)(j->in->cu_seqlens[sequence] + index) * (size_t)j->channels;
    }
    int kept = j->l->conv_kernel - 1;
    return live_state(j, sequence) + j->conv_offset + (size_t)(kept + index) * (size_t)j->channels;
}

/* -- convolution and gates, one token ---------------------------------------------------------------------------------------- */

static void convolve(const delta_job *j, int sequence, int index, float *out) {
    int taps = j->l->conv_kernel;
    for (int ch = 0; ch < j->channels; ch += LANES) {
        f32x16 sum = v_zero();
        for (int tap = 0; tap < taps; tap++) {
            const float *weights = j->l->conv + (size_t)tap * (size_t)j->channels;
            sum = v_madd(v_load(weights + ch), v_load(raw_row(j, sequence, index - taps + 1 + tap) + ch), sum);
        }
        v_store(out + ch, v_silu(sum));
    }
}

static void l2_normalise(float *head, int n, float epsilon, float factor) {
    f32x16 scale = v_set1(1.0f / sqrtf(v_dot(head, head, (size_t)n) + epsilon)), extra = v_set1(factor);
    for (int i = 0; i < n; i += LANES) {
        v_store(head + i, v_mul(v_mul(v_load(head + i), scale), extra));
    }
}

static void token_task(void *context, int token, int worker) {
    const delta_job *j = context;
    const delta_layer *l = j->l;
    (void)worker;
    float *mixed = j->mixed + (size_t)token * (size_t)j->channels;
    int sequence = j->sequence[token];
    convolve(j, sequence, token - j->in->cu_seqlens[sequence], mixed);
    float query_factor = 1.0f / sqrtf((float)l->key_dim);
    for (int h = 0; h < l->num_key_heads; h++) {
        l2_normalise(mixed + h * l->key_dim, l->key_dim, l->epsilon, query_factor);
        l2_normalise(mixed + j->keys + h * l->key_dim, l->key_dim, l->epsilon, 1.0f);
    }
    for (int h = 0; h < l->num_value_heads; h += LANES) {
        int n = min_int(LANES, l->num_value_heads - h);
        float *beta = j->beta + (size_t)token * (size_t)j->padded_heads + h, *decay = j->decay + (beta - j->beta);
        v_store(beta, v_sigmoid(v_load_n(beta, n)));
        f32x16 step = v_softplus(v_add(v_load_n(decay, n), v_load_n(l->dt_bias + h, n)));
        v_store(decay, v_exp(v_mul(v_load_n(l->a + h, n), step)));
    }
    float *entry = journal_entry(j, token);
    if (entry) {
        memcpy(entry, mixed + j->keys, (size_t)j->keys * sizeof *entry);
        memcpy(entry + j->keys + j->values + j->channels, j->decay + (size_t)token * (size_t)j->padded_heads, (size_t)j->padded_heads * sizeof *entry);
    }
}

/* -- recurrence --------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *query, *key, *value;
    float decay, beta;
    float *result;
    float *delta; /* where the journal keeps it; NULL: nowhere */
} head_token;

/* A panel of `vectors` x 16 columns. Per token: S = decay S; seen = S'k; delta = beta (v - seen); S += k delta'; o = S'q.
 * One pass over the panel ends a token and begins the next, so that a prefill loads and stores the state once per token. */
#define EACH_VECTOR _Pragma("GCC unroll 8") for (int i = 0; i < vectors; i++)

/* Begins a token: `seen` of the decayed state, which is stored in `to` or, if that is NULL, computed again by `end_token`. */
ALWAYS_INLINE void begin_token(int vectors, int key_dim, const head_token *h, const float *from, size_t ld_from, float *to, f32x16 *seen) {
    f32x16 decay = v_set1(h->decay);
    EACH_VECTOR { seen[i] = v_zero(); }
    for (int k = 0; k < key_dim; k++) {
        f32x16 key = v_set1(h->key[k]);
        EACH_VECTOR {
            f32x16 decayed = v_mul(decay, v_load(from + (size_t)k * ld_from + i * LANES));
            if (to) {
                v_store(to + (size_t)k * (size_t)(vectors * LANES) + i * LANES, decayed);
            }
            seen[i] = v_madd(key, decayed, seen[i]);
        }
    }
}

/* Ends a token; `decay`: `from` has not decayed yet. With `next`, the stored state has decayed for the next token already.
 * `fetch`: a panel to prefetch, or NULL. */
ALWAYS_INLINE void end_token(int vectors, int key_dim, const head_token *h, const float *decay, const float *from, size_t ld_from, float *to, size_t ld_to, const head_token *next, const float *fetch, f32x16 *seen) {
    f32x16 delta[WIDE_PANEL / LANES], sum[WIDE_PANEL / LANES], beta = v_set1(h->beta), before = v_set1(decay ? *decay : 1.0f), after = v_set1(next ? next->decay : 1.0f);
    EACH_VECTOR {
        delta[i] = v_mul(beta, v_sub(v_load(h->value + i * LANES), seen[i]));
        sum[i] = seen[i] = v_zero();
    }
    if (h->delta) {
        EACH_VECTOR { v_store(h->delta + i * LANES, delta[i]); }
    }
    for (int k = 0; k < key_dim; k++) {
        f32x16 key = v_set1(h->key[k]), query = v_set1(h->query[k]), next_key = next ? v_set1(next->key[k]) : v_zero();
        EACH_VECTOR {
            if (fetch) {
                __builtin_prefetch(fetch + (size_t)k * ld_from + i * LANES, 0, 2);
            }
            f32x16 state = v_load(from + (size_t)k * ld_from + i * LANES);
            state = v_madd(key, delta[i], decay ? v_mul(before, state) : state);
            sum[i] = v_madd(query, state, sum[i]);
            if (next) {
                state = v_mul(after, state);
                seen[i] = v_madd(next_key, state, seen[i]);
            }
            v_store(to + (size_t)k * ld_to + i * LANES, state);
        }
    }
    EACH_VECTOR { v_store(h->result + i * LANES, sum[i]); }
}

ALWAYS_INLINE head_token token_of_head(const delta_job *j, int token, int head, int column) {
    const delta_layer *l = j->l;
    int key_head = key_head_of(head, l->num_value_heads, l->num_key_heads, l->grouped_heads);
    float *entry = journal_entry(j, token);
    const float *mixed = j->mixed + (size_t)token * (size_t)j->channels;
    size_t gate = (size_t)token * (size_t)j->padded_heads + (size_t)head;
    return (head_token){
        .query = mixed + key_head * l->key_dim,
        .key = mixed + j->keys + key_head * l->key_dim,
        .value = mixed + 2 * j->keys + head * l->value_dim + column,
        .decay = j->decay[gate],
        .beta = j->beta[gate],
        .result = j->result + (size_t)token * (size_t)j->values + head * l->value_dim + column,
        .delta = entry ? entry + j->keys + head * l->value_dim + column : NULL,
    };
}

/* Runs a panel of one head through all tokens of its sequence. Between tokens the panel lives in compact scratch: rows of the live
 * state are value_dim apart, which would collide in the cache. */
ALWAYS_INLINE void run_panel(int vectors, const delta_job *j, int sequence, int head, int column, const float *fetch, float *panel) {
    const delta_layer *l = j->l;
    int first = j->in->cu_seqlens[sequence], last = j->in->cu_seqlens[sequence + 1] - 1, width = vectors * LANES;
    int capture = j->in->cu_captures[sequence], end_capture = j->in->cu_captures[sequence + 1];
    size_t place = j->recurrent_offset + ((size_t)head * (size_t)l->key_dim) * (size_t)l->value_dim + (size_t)column;
    const float *live = live_state(j, sequence) + place;
    size_t ld = (size_t)l->value_dim;
    int holds = j->in->modes[sequence] & HOLDS_ROW; /* then the last state goes where nobody looks */
    float *to = holds ? panel : live_state(j, sequence) + place;
    size_t ld_to = holds ? (size_t)width : ld;
    panel_place at = {head, column};
    head_token h = token_of_head(j, first, head, column);
    f32x16 seen[WIDE_PANEL / LANES];
    begin_token(vectors, l->key_dim, &h, live, ld, first < last ? panel : NULL, seen);
    for (int t = first; t < last; t++) {
        head_token next = token_of_head(j, t + 1, head, column);
        if (capture < end_capture && j->in->capture_tokens[capture] == t) {
            end_token(vectors, l->key_dim, &h, NULL, panel, (size_t)width, panel, (size_t)width, NULL, NULL, seen);
            for (; capture < end_capture && j->in->capture_tokens[capture] == t; capture++) {
                pack_panel(j->c, snapshot_part(j, capture), at, panel, (size_t)width, width);
            }
            begin_token(vectors, l->key_dim, &next, panel, (size_t)width, panel, seen);
        } else {
            end_token(vectors, l->key_dim, &h, NULL, panel, (size_t)width, panel, (size_t)width, &next, NULL, seen);
        }
        h = next;
    }
    if (first < last) {
        end_token(vectors, l->key_dim, &h, NULL, panel, (size_t)width, to, ld_to, NULL, fetch, seen);
    } else {
        end_token(vectors, l->key_dim, &h, &h.decay, live, ld, to, ld_to, NULL, fetch, seen);
    }
    for (; capture < end_capture; capture++) {
        pack_panel(j->c, snapshot_part(j, capture), at, to, ld_to, width);
    }
}

typedef void (*panel_fn)(const delta_job *j, int sequence, int head, int column, const float *fetch, float *panel);
#define RUN_PANEL(vectors)                                                                                                       \
    static void run_panel##vectors(const delta_job *j, int sequence, int head, int column, const float *fetch, float *panel) {   \
        run_panel(vectors, j, sequence, head, column, fetch, panel);                                                             \
    }
RUN_PANEL(1)
RUN_PANEL(2)
RUN_PANEL(4)
#if SIMD_AVX512
RUN_PANEL(8)
#else
#define run_panel8 run_panel4
#endif

/* The last raw rows after each captured token, then after the last token. Shifting old rows down in place reads ahead of writing. */
static void keep_conv_rows(const delta_job *j, int sequence) {
    int kept = j->l->conv_kernel - 1, first = j->in->cu_seqlens[sequence];
    size_t bytes = (size_t)j->channels * sizeof(float);
    for (int capture = j->in->cu_captures[sequence]; capture < j->in->cu_captures[sequence + 1]; capture++) {
        int count = j->in->capture_tokens[capture] - first + 1;
        for (int i = 0; i < kept; i++) {
            float *target = snapshot_part(j, capture) + j->c->snapshot_conv_offset + (size_t)i * (size_t)j->channels;
            memcpy(target, raw_row(j, sequence, count - kept + i), bytes);
        }
    }
    int count = j->in->cu_seqlens[sequence + 1] - first, mode = j->in->modes[sequence];
    for (int i = 0; mode & WRITES_JOURNAL && i < count; i++) {
        memcpy(journal_entry(j, first + i) + j->keys + j->values, raw_row(j, sequence, i), bytes);
    }
    for (int i = 0; !(mode & HOLDS_ROW) && i < kept; i++) {
        float *target = live_state(j, sequence) + j->conv_offset + (size_t)i * (size_t)j->channels;
        memmove(target, raw_row(j, sequence, count - kept + i), bytes);
    }
}

ALWAYS_INLINE int panels_per_head(const delta_job *j) { return div_up(j->l->value_dim, j->panel); }

ALWAYS_INLINE int tasks_per_sequence(const delta_job *j) { return div_up(j->l->num_value_heads * panels_per_head(j), j->task_panels) + 1; }

/* A panel at a time; narrower ones cover the rest of a head. */
static void run_columns(const delta_job *j, int sequence, int head, int column, const float *fetch, float *panel) {
    for (int left = min_int(j->panel, j->l->value_dim - column); left;) {
        int width = left >= WIDE_PANEL ? WIDE_PANEL : left >= 64 ? 64 : left >= 32 ? 32 : 16;
        panel_fn run = width == 128 ? run_panel8 : width == 64 ? run_panel4 : width == 32 ? run_panel2 : run_panel1;
        run(j, sequence, head, column, fetch, panel);
        column += width;
        left -= width;
    }
}

static void recurrence_task(void *context, int task, int worker) {
    const delta_job *j = context;
    int tasks = tasks_per_sequence(j), sequence = task / tasks, first = task % tasks * j->task_panels;
    if (task % tasks == tasks - 1) {
        keep_conv_rows(j, sequence);
        return;
    }
    int end = min_int(first + j->task_panels, j->l->num_value_heads * panels_per_head(j));
    for (int i = first; i < end; i++) {
        int head = i / panels_per_head(j), column = i % panels_per_head(j) * j->panel;
        const float *states = live_state(j, sequence) + j->recurrent_offset; /* [heads][key_dim][value_dim] */
        int fetches = i + 1 < end && j->panel == j->l->value_dim;
        const float *fetch = fetches ? states + (size_t)(head + 1) * (size_t)j->l->key_dim * (size_t)j->l->value_dim : NULL;
        run_columns(j, sequence, head, column, fetch, j->rt->scratch[worker]);
    }
}

/* A single token reads whole states once, so a task is several neighbouring heads; more tokens work in the cache. */
static void plan_recurrence(delta_job *j) {
    int single = j->in->num_tokens == j->in->num_sequences;
    j->panel = single ? WIDE_PANEL : PANEL;
    int panels = j->in->num_sequences * j->l->num_value_heads * panels_per_head(j), wanted = panels / (4 * pool_threads(j->rt->threads));
    j->task_panels = single ? min_int(wanted < 1 ? 1 : wanted, 8) : 1;
}

/* -- output ------------------------------------------------------------------------------------------------------------------- */

static void gated_norm_task(void *context, int token, int worker) {
    const delta_job *j = context;
    (void)worker;
    for (int h = 0; h < j->l->num_value_heads; h++) {
        size_t place = (size_t)token * (size_t)j->values + (size_t)(h * j->l->value_dim);
        float *x = j->result + place;
        rms_norm(x, j->l->output_norm, j->l->epsilon, j->l->value_dim, x);
        for (int i = 0; i < j->l->value_dim; i += LANES) {
            v_store(x + i, v_mul(v_load(x + i), v_silu(v_load(j->gate + place + i))));
        }
    }
}

static void project(delta_job *j, const float *normed, size_t ld) {
    const delta_layer *l = j->l;
    int tokens = j->in->num_tokens;
    product products[] = {
        {.weight = &l->qkv, .x = normed, .ldx = ld, .num_tokens = tokens, .out = j->raw, .ldo = (size_t)j->channels},
        {.weight = &l->gate, .x = normed, .ldx = ld, .num_tokens = tokens, .out = j->gate, .ldo = (size_t)j->values},
        {.weight = &l->beta, .x = normed, .ldx = ld, .num_tokens = tokens, .out = j->beta, .ldo = (size_t)j->padded_heads},
        {.weight = &l->alpha, .x = normed, .ldx = ld, .num_tokens = tokens, .out = j->decay, .ldo = (size_t)j->padded_heads},
    };
    run_products(j->rt, products, 4);
}

/* hidden [T][C] += mixer(norm(hidden)); advances live rows and writes captured snapshots. key_dim and value_dim are multiples of 16. */
EXPORT int hr_delta_mixer(runtime *rt, float *hidden, const delta_layer *l, const step_inputs *in, const caches *c) {
    arena_reset(rt);
    size_t tokens = (size_t)in->num_tokens, ld = ROUND_LANES(l->qkv.cols);
    delta_job j = {.rt = rt, .l = l, .in = in, .c = c, .sequence = sequence_of_token(rt, in)};
    j.keys = l->num_key_heads * l->key_dim;
    j.values = l->num_value_heads * l->value_dim;
    j.channels = 2 * j.keys + j.values;
    j.padded_heads = (int)ROUND_LANES(l->num_value_heads);
    size_t recurrent = (size_t)l->key_dim * (size_t)j.values, conv = (size_t)(l->conv_kernel - 1) * (size_t)j.channels;
    j.recurrent_offset = (size_t)l->index * (recurrent + conv);
    j.conv_offset = j.recurrent_offset + recurrent;
    float *normed = arena_floats(rt, tokens * ld);
    j.raw = arena_floats(rt, tokens * (size_t)j.channels);
    j.mixed = arena_floats(rt, tokens * (size_t)j.channels);
    j.gate = arena_floats(rt, tokens * (size_t)j.values);
    j.result = arena_floats(rt, tokens * (size_t)j.values);
    j.beta = arena_floats(rt, tokens * (size_t)j.padded_heads);
    j.decay = arena_floats(rt, tokens * (size_t)j.padded_heads);
    reserve_scratch(rt, (size_t)WIDE_PANEL * (size_t)l->key_dim);
    if (rt->out_of_memory) {
        return -1;
    }
    norm_tokens(rt, hidden, l->input_norm, l->epsilon, in->num_tokens, l->qkv.cols, normed);
    project(&j, normed, ld);
    if (rt->out_of_memory) {
        return -1; /* no state has changed yet */
    }
    run_tasks(rt, token_task, &j, in->num_tokens, 8 * tokens * (size_t)j.channels);
    plan_recurrence(&j);
    run_tasks(rt, recurrence_task, &j, in->num_sequences * tasks_per_sequence(&j), 6 * tokens * recurrent);
    run_tasks(rt, gated_norm_task, &j, in->num_tokens, 6 * tokens * (size_t)j.values);
    product output = {.weight = &l->output, .x = j.result, .ldx = (size_t)j.values, .num_tokens = in->num_tokens,
                      .out = hidden, .ldo = (size_t)l->output.rows, .add = 1};
    run_products(rt, &output, 1);
    return rt->out_of_memory ? -1 : 0;
}
