/* The memory of the runtime, and small helpers that all operations share. */
#include "runtime.h"

#include <stdlib.h>

struct arena_block {
    struct arena_block *next;
    size_t size, used; /* bytes after the header */
    _Alignas(64) char data[];
};

static struct arena_block *new_block(size_t size) {
    size = (size + 63) / 64 * 64;
    struct arena_block *block = aligned_alloc(64, sizeof *block + size);
    if (block) {
        *block = (struct arena_block){.size = size};
    }
    return block;
}

static void free_blocks(runtime *rt) {
    while (rt->arena) {
        struct arena_block *next = rt->arena->next;
        free(rt->arena);
        rt->arena = next;
    }
}

/* Replaces the several blocks of an operation by one of their total size, so that soon every operation fits into one block. */
void arena_reset(runtime *rt) {
    rt->out_of_memory = 0;
    if (rt->arena && rt->arena->next) {
        size_t total = 0;
        for (struct arena_block *b = rt->arena; b; b = b->next) {
            total += b->size;
        }
        free_blocks(rt);
        rt->arena = new_block(total);
    }
    if (rt->arena) {
        rt->arena->used = 0;
    }
}

void *arena_bytes(runtime *rt, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (!rt->arena || rt->arena->size - rt->arena->used < bytes) {
        struct arena_block *block = new_block(bytes > 1 << 20 ? bytes : 1 << 20);
        if (!block) {
            rt->out_of_memory = 1;
            return NULL;
        }
        block->next = rt->arena;
        rt->arena = block;
    }
    void *result = rt->arena->data + rt->arena->used;
    rt->arena->used += bytes;
    return result;
}

void reserve_scratch(runtime *rt, size_t floats) {
    if (floats <= rt->scratch_floats) {
        return;
    }
    floats = (floats + 1023) / 1024 * 1024;
    rt->scratch_floats = 0;
    for (int i = 0; i < pool_threads(rt->threads); i++) {
        free(rt->scratch[i]);
        rt->scratch[i] = aligned_alloc(64, floats * sizeof(float));
        if (!rt->scratch[i]) {
            rt->out_of_memory = 1;
            return;
        }
    }
    rt->scratch_floats = floats;
}

EXPORT runtime *hr_open(int threads, int64_t least_shared_work, int64_t most_partial_bytes, int round_activations) {
    runtime *rt = calloc(1, sizeof *rt);
    if (!rt || !(rt->threads = pool_open(threads))) {
        free(rt);
        return NULL;
    }
    rt->least_shared_work = (size_t)least_shared_work;
    rt->most_partial_bytes = (size_t)most_partial_bytes;
    rt->round_activations = round_activations;
    rt->scratch = calloc((size_t)pool_threads(rt->threads), sizeof *rt->scratch);
    if (!rt->scratch) {
        pool_close(rt->threads), free(rt);
        return NULL;
    }
    return rt;
}

EXPORT void hr_close(runtime *rt) {
    for (int i = 0; i < pool_threads(rt->threads); i++) {
        free(rt->scratch[i]);
    }
    pool_close(rt->threads);
    free_blocks(rt);
    free(rt->scratch), free(rt);
}

/* Sets codebook `index` in the order of struct codebooks; the caller owns the memory. */
EXPORT int hr_set_codebook(runtime *rt, int index, const float *book) {
    const float **books[] = {&rt->books.iq2_xxs, &rt->books.iq2_xs, &rt->books.iq2_s, &rt->books.iq3_xxs, &rt->books.iq3_s, &rt->books.iq1};
    *books[index] = book;
    return 0;
}

EXPORT int hr_threads(const runtime *rt) { return pool_threads(rt->threads); }

void rms_norm(const float *x, const float *weight, float epsilon, int n, float *y) {
    int whole = n / LANES * LANES, rest = n - whole;
    f32x16 sum = v_zero();
    for (int i = 0; i < whole; i += LANES) {
        sum = v_madd(v_load(x + i), v_load(x + i), sum);
    }
    f32x16 tail = v_load_n(x + whole, rest);
    sum = v_madd(tail, tail, sum);
    f32x16 scale = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + epsilon));
    for (int i = 0; i < whole; i += LANES) {
        v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
    }
    if (rest) {
        v_store_n(y + whole, v_mul(v_mul(tail, scale), v_load_n(weight + whole, rest)), rest);
    }
}

typedef struct {
    const float *hidden, *weight;
    float epsilon;
    int size;
    float *out;
} norm_job;

static void norm_task(void *context, int token, int worker) {
    const norm_job *job = context;
    (void)worker;
    size_t size = (size_t)job->size, ld = ROUND_LANES(size);
    float *out = job->out + (size_t)token * ld;
    rms_norm(job->hidden + (size_t)token * size, job->weight, job->epsilon, job->size, out);
    memset(out + size, 0, (ld - size) * sizeof *out);
}

void norm_tokens(runtime *rt, const float *hidden, const float *weight, float epsilon, int num_tokens, int size, float *out) {
    norm_job job = {hidden, weight, epsilon, size, out};
    run_tasks(rt, norm_task, &job, num_tokens, 4 * (size_t)num_tokens * (size_t)size);
}

int32_t *sequence_of_token(runtime *rt, const step_inputs *in) {
    int32_t *sequence = arena_bytes(rt, (size_t)in->num_tokens * sizeof *sequence);
    for (int s = 0; sequence && s < in->num_sequences; s++) {
        for (int t = in->cu_seqlens[s]; t < in->cu_seqlens[s + 1]; t++) {
            sequence[t] = s;
        }
    }
    return sequence;
}

#ifndef HEADRACE_SOURCES
#define HEADRACE_SOURCES "" /* compiled by something else than setup.py */
#endif

/* The sources that this library was built from: source_hash.py. */
EXPORT const char *hr_sources(void) { return HEADRACE_SOURCES; }
