/* The runtime's memory, and the small helpers all ops share. */
#include "runtime.h"

#include <stdlib.h>

struct arena_block {
    struct arena_block *next;
    size_t size, used; /* bytes behind the header */
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

static void free_blocks(runtime *e) {
    while (e->arena) {
        struct arena_block *next = e->arena->next;
        free(e->arena);
        e->arena = next;
    }
}

/* After an op that needed several blocks, one block of their sum takes their place: soon every op finds all it needs in one. */
void arena_reset(runtime *e) {
    e->out_of_memory = 0;
    if (e->arena && e->arena->next) {
        size_t total = 0;
        for (struct arena_block *b = e->arena; b; b = b->next) {
            total += b->size;
        }
        free_blocks(e);
        e->arena = new_block(total);
    }
    if (e->arena) {
        e->arena->used = 0;
    }
}

void *arena_bytes(runtime *e, size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (!e->arena || e->arena->size - e->arena->used < bytes) {
        struct arena_block *block = new_block(bytes > 1 << 20 ? bytes : 1 << 20);
        if (!block) {
            e->out_of_memory = 1;
            return NULL;
        }
        block->next = e->arena;
        e->arena = block;
    }
    void *result = e->arena->data + e->arena->used;
    e->arena->used += bytes;
    return result;
}

void reserve_scratch(runtime *e, size_t floats) {
    if (floats <= e->scratch_floats) {
        return;
    }
    floats = (floats + 1023) / 1024 * 1024;
    e->scratch_floats = 0;
    for (int i = 0; i < pool_threads(e->threads); i++) {
        free(e->scratch[i]);
        e->scratch[i] = aligned_alloc(64, floats * sizeof(float));
        if (!e->scratch[i]) {
            e->out_of_memory = 1;
            return;
        }
    }
    e->scratch_floats = floats;
}

EXPORT runtime *hr_open(int threads, int64_t least_shared_work, int64_t most_partial_bytes, int round_activations) {
    runtime *e = calloc(1, sizeof *e);
    if (!e || !(e->threads = pool_open(threads))) {
        free(e);
        return NULL;
    }
    e->least_shared_work = (size_t)least_shared_work;
    e->most_partial_bytes = (size_t)most_partial_bytes;
    e->round_activations = round_activations;
    e->scratch = calloc((size_t)pool_threads(e->threads), sizeof *e->scratch);
    if (!e->scratch) {
        pool_close(e->threads), free(e);
        return NULL;
    }
    return e;
}

EXPORT void hr_close(runtime *e) {
    for (int i = 0; i < pool_threads(e->threads); i++) {
        free(e->scratch[i]);
    }
    pool_close(e->threads);
    free_blocks(e);
    free(e->scratch), free(e);
}

/* Book number `index` in the order of struct codebooks; the memory stays the caller's. */
EXPORT int hr_set_codebook(runtime *e, int index, const float *book) {
    const float **books[] = {&e->books.iq2_xxs, &e->books.iq2_xs, &e->books.iq2_s, &e->books.iq3_xxs, &e->books.iq3_s, &e->books.iq1};
    *books[index] = book;
    return 0;
}

EXPORT int hr_threads(const runtime *e) { return pool_threads(e->threads); }

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

void norm_tokens(runtime *e, const float *hidden, const float *weight, float epsilon, int num_tokens, int size, float *out) {
    norm_job job = {hidden, weight, epsilon, size, out};
    run_tasks(e, norm_task, &job, num_tokens, 4 * (size_t)num_tokens * (size_t)size);
}

int32_t *sequence_of_token(runtime *e, const step_inputs *in) {
    int32_t *sequence = arena_bytes(e, (size_t)in->num_tokens * sizeof *sequence);
    for (int s = 0; sequence && s < in->num_sequences; s++) {
        for (int t = in->cu_seqlens[s]; t < in->cu_seqlens[s + 1]; t++) {
            sequence[t] = s;
        }
    }
    return sequence;
}
