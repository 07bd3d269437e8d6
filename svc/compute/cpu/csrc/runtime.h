/* The structures that Python passes in (mirrored in svc/compute/cpu/structs.py), and the runtime: thread pool and scratch memory.
 *
 * Operations return 0, or -1 if there was no memory for scratch. All pointers belong to the caller and stay valid during a call.
 * Letters: T tokens, C hidden size, B sequences, P page tokens; rows of activations inside an operation are padded to whole lanes. */
#ifndef HEADRACE_RUNTIME_H
#define HEADRACE_RUNTIME_H

#include "simd.h"
#include "pool.h"
#include "quant.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct { /* a matrix [rows][cols], or `experts` of them, in its file type */
    const uint8_t *data;
    int64_t row_bytes, expert_bytes;
    int32_t type, rows, cols, experts;
} matrix;

typedef struct { /* svc/compute/step_inputs.py */
    const int32_t *tokens, *positions, *cu_seqlens, *rows, *modes, *block_table, *capture_tokens, *capture_snapshots, *cu_captures;
    const float *rope_cos, *rope_sin; /* [T][rope_pairs] */
    int32_t num_tokens, num_sequences, max_pages, num_captures, rope_pairs;
} step_inputs;

enum { KV_F32, KV_F16, KV_Q8_0, KV_Q4_0 };
enum { SNAPSHOT_F32, SNAPSHOT_BF16, SNAPSHOT_Q8 };
enum { WRITES_JOURNAL = 1, HOLDS_ROW = 2 }; /* bits of a sequence's mode */

typedef struct { /* svc/memory/layout.py */
    void *kv;
    float *rows, *snapshots, *journal;
    int64_t page_elements, state_elements, hidden_offset;
    int64_t snapshot_elements, snapshot_layer_words;              /* of a snapshot; of one DeltaNet layer in it */
    int64_t snapshot_scales_offset, snapshot_conv_offset;         /* in a layer's part, behind its recurrent state */
    int64_t snapshot_hidden_offset;
    int64_t conv_elements;                                        /* of one DeltaNet layer */
    int64_t journal_elements, journal_layer_elements;             /* of one token; of one DeltaNet layer in it */
    int64_t journal_tokens, journal_key_elements, conv_channels;
    int32_t kv_type, kv_row_elements, page_tokens, snapshot_type, num_delta_layers, num_value_heads, key_dim, value_dim;
} caches;

typedef struct {
    int32_t index, num_key_heads, num_value_heads, key_dim, value_dim, conv_kernel, grouped_heads;
    float epsilon;
    const float *input_norm, *conv /* [conv_kernel][channels] */, *a, *dt_bias, *output_norm;
    matrix qkv, gate, beta, alpha, output;
} delta_layer;

typedef struct {
    int32_t index, num_heads, num_kv_heads, head_dim, rotary_dims, gated, interleaved;
    float epsilon;
    const float *input_norm;
    const float *query_norm, *key_norm, *query_bias, *key_bias, *value_bias; /* NULL if the architecture has none */
    matrix query, key, value, output;
} attention_layer;

typedef struct {
    float epsilon;
    const float *input_norm;
    matrix gate, up, down;
} dense_layer;

typedef struct {
    int32_t num_experts, num_used, has_shared;
    float weights_scale, epsilon;
    const float *input_norm;
    matrix router, gate, up, down;
    matrix shared_router /* one row */, shared_gate, shared_up, shared_down;
} moe_layer;

typedef struct {
    pool *threads;
    size_t least_shared_work;  /* see run_tasks */
    size_t most_partial_bytes; /* scratch for segments of attention in flight; one segment of all queries is always allowed */
    int round_activations;     /* integer products for the types of weights that have a kernel (int_matmul.c) */
    codebooks books;
    float **scratch; /* one block per thread, of scratch_floats */
    size_t scratch_floats;
    struct arena_block *arena;
    int out_of_memory;
} runtime;

/* Arena: memory of one operation, freed all at once when the next one begins. NULL (and out_of_memory) if there is none. */
void arena_reset(runtime *rt);
void *arena_bytes(runtime *rt, size_t bytes);
ALWAYS_INLINE float *arena_floats(runtime *rt, size_t count) { return arena_bytes(rt, count * sizeof(float)); }
/* At least `floats` of private scratch for every thread; call it outside of tasks. */
void reserve_scratch(runtime *rt, size_t floats);

/* Runs tasks on all threads, or on this one if handing them out would take longer than the work itself: `work` is the rough total in
 * multiply-adds. No result depends on it. */
ALWAYS_INLINE void run_tasks(runtime *rt, task_fn fn, void *context, int num_tasks, size_t work) {
    if (work < rt->least_shared_work) {
        for (int task = 0; task < num_tasks; task++) {
            fn(context, task, 0);
        }
    } else {
        pool_run(rt->threads, fn, context, num_tasks);
    }
}

ALWAYS_INLINE int div_up(int a, int b) { return (a + b - 1) / b; }
ALWAYS_INLINE int min_int(int a, int b) { return a < b ? a : b; }

/* y = x * rsqrt(mean(x^2) + epsilon) * weight, n values; y may be x. */
void rms_norm(const float *x, const float *weight, float epsilon, int n, float *y);
/* out [T][ROUND_LANES(C)] = rms_norm of each row of hidden [T][C], zeros after C. */
void norm_tokens(runtime *rt, const float *hidden, const float *weight, float epsilon, int num_tokens, int size, float *out);
/* Index of the sequence of each token, [T]. */
int32_t *sequence_of_token(runtime *rt, const step_inputs *in);

#endif
