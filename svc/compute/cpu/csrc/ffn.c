/* Feed-forward layers: dense SwiGLU and mixture of experts (docs/model_math.md). */
#include "simd_math.h"
#include "matmul.h"
#include "ops.h"

/* Zeroes the padding after each row of a matrix [rows][ld], as products require. */
static void clear_padding(float *x, size_t rows, size_t columns, size_t ld) {
    for (size_t r = 0; columns < ld && r < rows; r++) {
        memset(x + r * ld + columns, 0, (ld - columns) * sizeof *x);
    }
}

/* hidden [T][C] += down(SiLU(gate x) * up x), x = norm(hidden). */
EXPORT int hr_dense_ffn(runtime *rt, float *hidden, const dense_layer *l, const step_inputs *in) {
    arena_reset(rt);
    size_t tokens = (size_t)in->num_tokens, ld = ROUND_LANES(l->gate.cols), inner_ld = ROUND_LANES(l->gate.rows);
    float *normed = arena_floats(rt, tokens * ld), *inner = arena_floats(rt, tokens * inner_ld);
    if (rt->out_of_memory) {
        return -1;
    }
    clear_padding(inner, tokens, (size_t)l->gate.rows, inner_ld);
    norm_tokens(rt, hidden, l->input_norm, l->epsilon, in->num_tokens, l->gate.cols, normed);
    product first = {.weight = &l->gate, .up = &l->up, .x = normed, .ldx = ld, .num_tokens = in->num_tokens, .out = inner, .ldo = inner_ld};
    run_products(rt, &first, 1);
    product second = {.weight = &l->down, .x = inner, .ldx = inner_ld, .num_tokens = in->num_tokens,
                      .out = hidden, .ldo = (size_t)l->down.rows, .add = 1};
    if (!rt->out_of_memory) {
        run_products(rt, &second, 1);
    }
    return rt->out_of_memory ? -1 : 0;
}

/* -- mixture of experts ------------------------------------------------------------------------------------------------------ */

typedef struct {
    runtime *rt;
    const moe_layer *l;
    int num_tokens, size;
    float *hidden;
    float *router;        /* [T][E] logits */
    float *shared_router; /* [T] logits */
    int32_t *expert;      /* [T][k] by falling logit */
    float *weight;        /* [T][k] */
    int32_t *place;       /* [T][k] row among the (token, rank) pairs sorted by expert */
    float *routed;        /* [T * k][C] by place */
    float *shared;        /* [T][C] */
} moe_job;

/* The k largest logits, ties to the lower index, and the softmax over them. A NaN is never larger than anything. */
static void route_task(void *context, int token, int worker) {
    const moe_job *j = context;
    const moe_layer *l = j->l;
    (void)worker;
    const float *logits = j->router + (size_t)token * (size_t)l->num_experts;
    int32_t *experts = j->expert + (size_t)token * (size_t)l->num_used;
    float *weights = j->weight + (size_t)token * (size_t)l->num_used, sum = 0.0f;
    int count = 0;
    for (int i = 0; i < l->num_experts; i++) { /* `experts`: the best so far, in order */
        int place = count < l->num_used ? count++ : count;
        for (; place > 0 && logits[i] > logits[experts[place - 1]]; place--) {
            if (place < l->num_used) {
                experts[place] = experts[place - 1];
            }
        }
        if (place < l->num_used) {
            experts[place] = i;
        }
    }
    for (int rank = 0; rank < l->num_used; rank++) {
        weights[rank] = exp_one(logits[experts[rank]] - logits[experts[0]]);
        sum += weights[rank];
    }
    for (int rank = 0; rank < l->num_used; rank++) {
        weights[rank] = weights[rank] / sum * l->weights_scale;
    }
}

/* Counting sort of the (token, rank) pairs by expert. first [E + 1]; token_of [T * k]. */
static void group_by_expert(moe_job *j, int32_t *first, int32_t *token_of) {
    int pairs = j->num_tokens * j->l->num_used, experts = j->l->num_experts;
    memset(first, 0, (size_t)(experts + 1) * sizeof *first);
    for (int i = 0; i < pairs; i++) {
        first[j->expert[i] + 1]++;
    }
    for (int x = 0; x < experts; x++) {
        first[x + 1] += first[x];
    }
    for (int i = 0; i < pairs; i++) { /* first[x] moves to the end of expert x ... */
        j->place[i] = first[j->expert[i]]++;
        token_of[j->place[i]] = i / j->l->num_used;
    }
    memmove(first + 1, first, (size_t)experts * sizeof *first); /* ... which is the beginning of the next */
    first[0] = 0;
}

/* hidden += sum over ranks, in rank order, plus the gated shared expert. */
static void combine_task(void *context, int token, int worker) {
    const moe_job *j = context;
    const moe_layer *l = j->l;
    (void)worker;
    float *hidden = j->hidden + (size_t)token * (size_t)j->size, shared_weight = 0.0f;
    if (l->has_shared) {
        shared_weight = sigmoid_one(j->shared_router[token]);
    }
    for (int i = 0; i < j->size; i += LANES) {
        int n = min_int(LANES, j->size - i);
        f32x16 sum = v_zero();
        for (int rank = 0; rank < l->num_used; rank++) {
            size_t pair = (size_t)token * (size_t)l->num_used + (size_t)rank;
            sum = v_madd(v_set1(j->weight[pair]), v_load_n(j->routed + (size_t)j->place[pair] * (size_t)j->size + i, n), sum);
        }
        if (l->has_shared) {
            sum = v_madd(v_set1(shared_weight), v_load_n(j->shared + (size_t)token * (size_t)j->size + i, n), sum);
        }
        v_store_n(hidden + i, v_add(v_load_n(hidden + i, n), sum), n);
    }
}

static void route(moe_job *j, const float *normed, size_t ld) {
    product products[] = {
        {.weight = &j->l->router, .x = normed, .ldx = ld, .num_tokens = j->num_tokens, .out = j->router, .ldo = (size_t)j->l->num_experts},
        {.weight = &j->l->shared_router, .x = normed, .ldx = ld, .num_tokens = j->num_tokens, .out = j->shared_router, .ldo = 1},
    };
    run_products(j->rt, products, j->l->has_shared ? 2 : 1);
    if (!j->rt->out_of_memory) {
        run_tasks(j->rt, route_task, j, j->num_tokens, 16 * (size_t)j->num_tokens * (size_t)j->l->num_experts);
    }
}

/* Gate and up of every expert with its tokens (and the shared expert with all) as one phase, then down as another. */
static void run_experts(moe_job *j, const float *normed, size_t ld) {
    const moe_layer *l = j->l;
    runtime *rt = j->rt;
    size_t pairs = (size_t)j->num_tokens * (size_t)l->num_used, tokens = (size_t)j->num_tokens;
    size_t inner_ld = ROUND_LANES(l->gate.rows), shared_ld = l->has_shared ? ROUND_LANES(l->shared_gate.rows) : 0;
    int32_t *first = arena_bytes(rt, (size_t)(l->num_experts + 1) * sizeof *first), *token_of = arena_bytes(rt, pairs * sizeof *token_of);
    float *inner = arena_floats(rt, pairs * inner_ld), *shared_inner = arena_floats(rt, tokens * shared_ld);
    product *up = arena_bytes(rt, (size_t)(l->num_experts + 1) * sizeof *up), *down = arena_bytes(rt, (size_t)(l->num_experts + 1) * sizeof *down);
    if (rt->out_of_memory) {
        return;
    }
    clear_padding(inner, pairs, (size_t)l->gate.rows, inner_ld);
    group_by_expert(j, first, token_of);
    int count = 0;
    if (l->has_shared) {
        clear_padding(shared_inner, tokens, (size_t)l->shared_gate.rows, shared_ld);
        up[count] = (product){.weight = &l->shared_gate, .up = &l->shared_up, .x = normed, .ldx = ld, .num_tokens = j->num_tokens,
                              .out = shared_inner, .ldo = shared_ld};
        down[count++] = (product){.weight = &l->shared_down, .x = shared_inner, .ldx = shared_ld, .num_tokens = j->num_tokens,
                                  .out = j->shared, .ldo = (size_t)j->size};
    }
    for (int x = 0; x < l->num_experts; x++) {
        int begin = first[x], n = first[x + 1] - begin;
        if (n) {
            float *part = inner + (size_t)begin * inner_ld;
            up[count] = (product){.weight = &l->gate, .up = &l->up, .expert = x, .x = normed, .ldx = ld, .gather = token_of,
                                    .first = begin, .num_gathered = (int)pairs,
                                  .num_tokens = n, .out = part, .ldo = inner_ld};
            down[count++] = (product){.weight = &l->down, .expert = x, .x = part, .ldx = inner_ld, .num_tokens = n,
                                      .out = j->routed + (size_t)begin * (size_t)j->size, .ldo = (size_t)j->size};
        }
    }
    run_products(rt, up, count);
    if (!rt->out_of_memory) {
        run_products(rt, down, count);
    }
}

/* hidden [T][C] += experts(norm(hidden)). */
EXPORT int hr_moe_ffn(runtime *rt, float *hidden, const moe_layer *l, const step_inputs *in) {
    arena_reset(rt);
    int size = l->router.cols;
    size_t tokens = (size_t)in->num_tokens, ld = ROUND_LANES(size), pairs = tokens * (size_t)l->num_used;
    moe_job j = {.rt = rt, .l = l, .num_tokens = in->num_tokens, .size = size, .hidden = hidden};
    float *normed = arena_floats(rt, tokens * ld);
    j.router = arena_floats(rt, tokens * (size_t)l->num_experts);
    j.shared_router = arena_floats(rt, tokens);
    j.expert = arena_bytes(rt, pairs * sizeof *j.expert);
    j.weight = arena_floats(rt, pairs);
    j.place = arena_bytes(rt, pairs * sizeof *j.place);
    j.routed = arena_floats(rt, pairs * (size_t)size);
    j.shared = arena_floats(rt, l->has_shared ? tokens * (size_t)size : 0);
    if (rt->out_of_memory) {
        return -1;
    }
    norm_tokens(rt, hidden, l->input_norm, l->epsilon, in->num_tokens, size, normed);
    route(&j, normed, ld);
    if (!rt->out_of_memory) {
        run_experts(&j, normed, ld);
    }
    if (rt->out_of_memory) {
        return -1;
    }
    run_tasks(rt, combine_task, &j, in->num_tokens, 2 * pairs * (size_t)size);
    return 0;
}
