/* Full attention, gated or not, one call per layer (docs/model_math.md). Keys and values of all tokens go to the pages first; attention
 * then reads only pages, so a result does not depend on the tokens that share a step.
 *
 * The canonical order for a query at position p: absolute segments of 512 positions; in a segment absolute tiles of 16 keys, online
 * softmax from tile to tile; segments are merged in rising order. Scores are canonical dot products over the head dimension, a value
 * column sums keys in rising order. Positions beyond p are never read (fresh pages may hold NaN). */
#include "attention_tile.h"
#include "kv_pages.h"
#include "matmul.h"
#include "ops.h"

#define SEGMENT 512 /* positions */
#define BLOCK 16    /* tokens whose queries share the loaded tiles */

typedef struct {
    runtime *rt;
    const attention_layer *l;
    const step_inputs *in;
    const caches *c;
    const int32_t *sequence;
    int query_width;        /* floats of a query head in `raw_query`: D, or 2 D with the gate */
    size_t query_ld, kv_ld; /* row lengths of raw_query; of raw_key and raw_value */
    size_t layer_offset;    /* of this layer's keys in a page, in elements */
    size_t values_offset;   /* from a layer's keys to its values */
    float *raw_query, *raw_key, *raw_value;
    float *query;  /* [T][H][D] normed, rotated, scaled */
    float *result; /* [T][H * D padded] */
    size_t result_ld;
    const struct block *blocks;
    int first_segment, num_segments; /* in flight, if segments are separate tasks */
    int is_last;                     /* these are the last segments */
    float *partial;                  /* [T][H][num_segments][D + 16]: values, then top and weight */
    float *total;                    /* [T][H][D + 16]: the same, of all segments so far */
} attention_job;

struct block {
    int sequence, first, count; /* tokens [first, first + count) of the step */
};

/* -- bias, norm, rotation, pages ----------------------------------------------------------------------------------------------- */

static void rotate(const attention_job *j, int token, float *head) {
    int pairs = j->l->rotary_dims / 2;
    const float *cosine = j->in->rope_cos + (size_t)token * (size_t)j->in->rope_pairs;
    const float *sine = j->in->rope_sin + (size_t)token * (size_t)j->in->rope_pairs;
    int step = j->l->interleaved ? 2 : 1, other = j->l->interleaved ? 1 : pairs; /* from pair to pair; to a pair's second half */
    for (int i = 0; i < pairs; i++) {
        float a = head[i * step], b = head[i * step + other];
        head[i * step] = a * cosine[i] - b * sine[i];
        head[i * step + other] = b * cosine[i] + a * sine[i];
    }
}

ALWAYS_INLINE const float *bias_of(const float *biases, int head, size_t dim) { return biases ? biases + (size_t)head * dim : NULL; }

static void add_bias(float *head, const float *bias, size_t dim) {
    for (size_t i = 0; bias && i < dim; i += LANES) {
        v_store(head + i, v_add(v_load(head + i), v_load(bias + i)));
    }
}

/* out = rotated(norm(head)) */
static void norm_and_turn(const attention_job *j, int token, const float *head, const float *norm, float *out) {
    if (norm) {
        rms_norm(head, norm, j->l->epsilon, j->l->head_dim, out);
    } else {
        memcpy(out, head, (size_t)j->l->head_dim * sizeof *out);
    }
    rotate(j, token, out);
}

ALWAYS_INLINE size_t cache_row(const attention_job *j, int sequence, int position, int kv_head) {
    int page = j->in->block_table[(size_t)sequence * (size_t)j->in->max_pages + (size_t)(position / j->c->page_tokens)];
    size_t row = (size_t)kv_head * (size_t)j->c->page_tokens + (size_t)(position % j->c->page_tokens);
    return (size_t)page * (size_t)j->c->page_elements + j->layer_offset + row * (size_t)j->c->kv_row_elements;
}

static void prepare_task(void *context, int token, int worker) {
    const attention_job *j = context;
    const attention_layer *l = j->l;
    size_t dim = (size_t)l->head_dim;
    float *buffer = j->rt->scratch[worker];
    f32x16 scale = v_set1(1.0f / sqrtf((float)l->head_dim));
    for (int h = 0; h < l->num_heads; h++) {
        float *raw = j->raw_query + (size_t)token * j->query_ld + (size_t)(h * j->query_width);
        float *query = j->query + ((size_t)token * (size_t)l->num_heads + (size_t)h) * dim;
        add_bias(raw, bias_of(l->query_bias, h, dim), dim);
        norm_and_turn(j, token, raw, l->query_norm, query);
        for (size_t i = 0; i < dim; i += LANES) {
            v_store(query + i, v_mul(v_load(query + i), scale));
        }
    }
    for (int h = 0; h < l->num_kv_heads; h++) {
        size_t place = cache_row(j, j->sequence[token], j->in->positions[token], h);
        float *key = j->raw_key + (size_t)token * j->kv_ld + (size_t)h * dim, *value = j->raw_value + (size_t)token * j->kv_ld + (size_t)h * dim;
        add_bias(key, bias_of(l->key_bias, h, dim), dim);
        add_bias(value, bias_of(l->value_bias, h, dim), dim);
        norm_and_turn(j, token, key, l->key_norm, buffer);
        kv_write_row(j->c, place, buffer, l->head_dim);
        kv_write_row(j->c, place + j->values_offset, value, l->head_dim);
    }
}

/* -- a block of queries ----------------------------------------------------------------------------------------------------------- */

/* Divides by the weights, applies the output gate and stores the head's result. */
static void finish_query(const attention_job *j, int token, int head, const softmax_state *state, const float *sum) {
    size_t dim = (size_t)j->l->head_dim;
    float *out = j->result + (size_t)token * j->result_ld + (size_t)head * dim;
    const float *gate = j->raw_query + (size_t)token * j->query_ld + (size_t)(head * j->query_width) + dim;
    f32x16 weight = v_set1(state->weight);
    for (size_t d = 0; d < dim; d += LANES) {
        f32x16 value = v_div(v_load(sum + d), weight);
        v_store(out + d, j->l->gated ? v_mul(value, v_sigmoid(v_load(gate + d))) : value);
    }
}

typedef struct {
    float *keys, *values;      /* [D / 16][TILE][16]; [TILE][D] */
    float *sums, *totals;      /* [BLOCK * group][D]: of this segment; of the segments before */
    softmax_state *sum_states, *total_states;
} block_scratch;

static size_t block_scratch_floats(const attention_layer *l) {
    size_t dim = (size_t)l->head_dim, queries = (size_t)BLOCK * (size_t)(l->num_heads / l->num_kv_heads);
    return 2 * TILE * dim + 2 * queries * dim + 4 * queries;
}

static block_scratch carve(const attention_job *j, int worker) {
    size_t dim = (size_t)j->l->head_dim, queries = (size_t)BLOCK * (size_t)(j->l->num_heads / j->l->num_kv_heads);
    float *p = j->rt->scratch[worker];
    block_scratch s = {.keys = p, .values = p + TILE * dim, .sums = p + 2 * TILE * dim};
    s.totals = s.sums + queries * dim;
    s.sum_states = (softmax_state *)(s.totals + queries * dim);
    s.total_states = s.sum_states + queries;
    return s;
}

/* All queries of the block through the tiles of one segment; leaves sums and sum_states. */
static void attend_segment(const attention_job *j, const struct block *b, int kv_head, int segment, const block_scratch *s) {
    const attention_layer *l = j->l;
    int group = l->num_heads / l->num_kv_heads, last = j->in->positions[b->first + b->count - 1];
    size_t dim = (size_t)l->head_dim, row = (size_t)j->c->kv_row_elements;
    for (int q = 0; q < b->count * group; q++) {
        s->sum_states[q] = nothing;
        memset(s->sums + (size_t)q * dim, 0, dim * sizeof(float));
    }
    int end = min_int((segment + 1) * SEGMENT, last + 1);
    for (int start = segment * SEGMENT; start < end; start += TILE) {
        int present = min_int(TILE, end - start);
        size_t place = cache_row(j, b->sequence, start, kv_head); /* a tile is inside one page, its rows contiguous */
        for (int i = 0; i < present; i++) {
            kv_read_row(j->c, place + (size_t)i * row, s->keys + i * LANES, TILE * LANES, l->head_dim);
            kv_read_row(j->c, place + (size_t)i * row + j->values_offset, s->values + (size_t)i * dim, LANES, l->head_dim);
        }
        for (int q = 0; q < b->count * group; q++) {
            int token = b->first + q / group, head = kv_head * group + q % group;
            int num_keys = min_int(TILE, j->in->positions[token] - start + 1);
            if (num_keys > 0) {
                const float *query = j->query + ((size_t)token * (size_t)l->num_heads + (size_t)head) * dim;
                attend_tile(query, s->keys, s->values, num_keys, dim, s->sum_states + q, s->sums + (size_t)q * dim);
            }
        }
    }
}

static void block_task(void *context, int task, int worker) {
    const attention_job *j = context;
    const struct block *b = j->blocks + task / j->l->num_kv_heads;
    int kv_head = task % j->l->num_kv_heads, group = j->l->num_heads / j->l->num_kv_heads;
    int last = j->in->positions[b->first + b->count - 1];
    size_t dim = (size_t)j->l->head_dim;
    block_scratch s = carve(j, worker);
    for (int q = 0; q < b->count * group; q++) {
        s.total_states[q] = nothing;
        memset(s.totals + (size_t)q * dim, 0, dim * sizeof(float));
    }
    for (int segment = 0; segment * SEGMENT <= last; segment++) {
        attend_segment(j, b, kv_head, segment, &s);
        for (int q = 0; q < b->count * group; q++) {
            if (segment * SEGMENT <= j->in->positions[b->first + q / group]) {
                merge(s.total_states + q, s.totals + (size_t)q * dim, s.sum_states + q, s.sums + (size_t)q * dim, dim);
            }
        }
    }
    for (int q = 0; q < b->count * group; q++) {
        finish_query(j, b->first + q / group, kv_head * group + q % group, s.total_states + q, s.totals + (size_t)q * dim);
    }
}

/* -- long contexts, few tokens: segments as separate tasks, merged afterwards in the same order ------------------------------------
 *
 * A range of segments at a time: the partial results of all would be gigabytes for a long prompt after a long context. */

ALWAYS_INLINE size_t partial_floats(const attention_layer *l) { return (size_t)(l->head_dim + LANES); }

ALWAYS_INLINE size_t query_index(const attention_job *j, int token, int head) {
    return (size_t)token * (size_t)j->l->num_heads + (size_t)head;
}

static void segment_task(void *context, int task, int worker) {
    const attention_job *j = context;
    int index = task % j->num_segments, segment = j->first_segment + index, unit = task / j->num_segments;
    const struct block *b = j->blocks + unit / j->l->num_kv_heads;
    int kv_head = unit % j->l->num_kv_heads, group = j->l->num_heads / j->l->num_kv_heads;
    size_t dim = (size_t)j->l->head_dim;
    if (segment * SEGMENT > j->in->positions[b->first + b->count - 1]) {
        return;
    }
    block_scratch s = carve(j, worker);
    attend_segment(j, b, kv_head, segment, &s);
    for (int q = 0; q < b->count * group; q++) {
        size_t query = query_index(j, b->first + q / group, kv_head * group + q % group);
        float *partial = j->partial + (query * (size_t)j->num_segments + (size_t)index) * partial_floats(j->l);
        memcpy(partial, s.sums + (size_t)q * dim, dim * sizeof *partial);
        memcpy(partial + dim, s.sum_states + q, sizeof *s.sum_states);
    }
}

static void merge_task(void *context, int query, int worker) {
    const attention_job *j = context;
    int token = query / j->l->num_heads, head = query % j->l->num_heads;
    size_t dim = (size_t)j->l->head_dim, size = partial_floats(j->l);
    float *total = j->total + (size_t)query * size;
    softmax_state state = nothing;
    (void)worker;
    if (j->first_segment == 0) {
        memset(total, 0, dim * sizeof *total);
    } else {
        memcpy(&state, total + dim, sizeof state);
    }
    const float *partial = j->partial + (size_t)query * (size_t)j->num_segments * size;
    for (int i = 0; i < j->num_segments && (j->first_segment + i) * SEGMENT <= j->in->positions[token]; i++, partial += size) {
        softmax_state other;
        memcpy(&other, partial + dim, sizeof other);
        merge(&state, total, &other, partial, dim);
    }
    if (j->is_last) {
        finish_query(j, token, head, &state, total);
    } else {
        memcpy(total + dim, &state, sizeof state);
    }
}

static void attend_by_segments(attention_job *j, int tasks, int segments) {
    runtime *rt = j->rt;
    size_t queries = (size_t)j->in->num_tokens * (size_t)j->l->num_heads, size = queries * partial_floats(j->l);
    size_t most = rt->most_partial_bytes / (size * sizeof(float));
    int at_once = most < 1 ? 1 : most < (size_t)segments ? (int)most : segments;
    j->total = arena_floats(rt, size);
    j->partial = arena_floats(rt, size * (size_t)at_once);
    if (rt->out_of_memory) {
        return;
    }
    for (int first = 0; first < segments; first += at_once) {
        j->first_segment = first;
        j->num_segments = min_int(at_once, segments - first);
        j->is_last = first + j->num_segments == segments;
        pool_run(rt->threads, segment_task, j, tasks * j->num_segments);
        pool_run(rt->threads, merge_task, j, (int)queries);
    }
}

/* -- the operation --------------------------------------------------------------------------------------------------------------------- */

static struct block *make_blocks(runtime *rt, const step_inputs *in, int *count) {
    *count = 0;
    for (int s = 0; s < in->num_sequences; s++) {
        *count += div_up(in->cu_seqlens[s + 1] - in->cu_seqlens[s], BLOCK);
    }
    struct block *blocks = arena_bytes(rt, (size_t)*count * sizeof *blocks), *next = blocks;
    for (int s = 0; blocks && s < in->num_sequences; s++) {
        for (int first = in->cu_seqlens[s]; first < in->cu_seqlens[s + 1]; first += BLOCK) {
            *next++ = (struct block){s, first, min_int(BLOCK, in->cu_seqlens[s + 1] - first)};
        }
    }
    return blocks;
}

/* The highest position of the step, plus one. */
static int end_of_step(const step_inputs *in) {
    int last = 0;
    for (int t = 0; t < in->num_tokens; t++) {
        last = in->positions[t] > last ? in->positions[t] : last;
    }
    return last + 1;
}

static void attend(attention_job *j, int num_blocks) {
    int tasks = num_blocks * j->l->num_kv_heads, end = end_of_step(j->in), segments = div_up(end, SEGMENT);
    if (segments > 1 && tasks < 4 * pool_threads(j->rt->threads)) {
        attend_by_segments(j, tasks, segments);
    } else {
        size_t queries = (size_t)j->in->num_tokens * (size_t)j->l->num_heads;
        run_tasks(j->rt, block_task, j, tasks, 2 * queries * (size_t)end * (size_t)j->l->head_dim);
    }
}

/* hidden [T][C] += attention(norm(hidden)). head_dim is a multiple of 16. */
EXPORT int hr_attention_mixer(runtime *rt, float *hidden, const attention_layer *l, const step_inputs *in, const caches *c) {
    arena_reset(rt);
    int num_blocks, size = l->query.cols;
    size_t tokens = (size_t)in->num_tokens, ld = ROUND_LANES(size), dim = (size_t)l->head_dim;
    attention_job j = {.rt = rt, .l = l, .in = in, .c = c, .sequence = sequence_of_token(rt, in), .blocks = make_blocks(rt, in, &num_blocks)};
    j.query_width = l->head_dim * (l->gated ? 2 : 1);
    j.query_ld = (size_t)(l->num_heads * j.query_width);
    j.kv_ld = (size_t)l->num_kv_heads * dim;
    j.values_offset = (size_t)l->num_kv_heads * (size_t)c->page_tokens * (size_t)c->kv_row_elements;
    j.layer_offset = (size_t)l->index * 2 * j.values_offset;
    j.result_ld = (size_t)l->num_heads * dim;
    float *normed = arena_floats(rt, tokens * ld);
    j.raw_query = arena_floats(rt, tokens * j.query_ld);
    j.raw_key = arena_floats(rt, tokens * j.kv_ld);
    j.raw_value = arena_floats(rt, tokens * j.kv_ld);
    j.query = arena_floats(rt, tokens * j.result_ld);
    j.result = arena_floats(rt, tokens * j.result_ld);
    reserve_scratch(rt, block_scratch_floats(l));
    if (rt->out_of_memory) {
        return -1;
    }
    norm_tokens(rt, hidden, l->input_norm, l->epsilon, in->num_tokens, size, normed);
    product inputs[] = {
        {.weight = &l->query, .x = normed, .ldx = ld, .num_tokens = in->num_tokens, .out = j.raw_query, .ldo = j.query_ld},
        {.weight = &l->key, .x = normed, .ldx = ld, .num_tokens = in->num_tokens, .out = j.raw_key, .ldo = j.kv_ld},
        {.weight = &l->value, .x = normed, .ldx = ld, .num_tokens = in->num_tokens, .out = j.raw_value, .ldo = j.kv_ld},
    };
    run_products(rt, inputs, 3);
    if (rt->out_of_memory) {
        return -1;
    }
    run_tasks(rt, prepare_task, &j, in->num_tokens, 8 * tokens * j.query_ld);
    attend(&j, num_blocks);
    product output = {.weight = &l->output, .x = j.result, .ldx = j.result_ld, .num_tokens = in->num_tokens,
                      .out = hidden, .ldo = (size_t)size, .add = 1};
    if (!rt->out_of_memory) {
        run_products(rt, &output, 1);
    }
    return rt->out_of_memory ? -1 : 0;
}
