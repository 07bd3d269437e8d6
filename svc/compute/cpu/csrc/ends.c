/* Where a step begins and ends: embedding, final norm, logits, copies of cache blocks; and what tests look through. */
#define _GNU_SOURCE
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include "lane_math.h"
#include "matmul.h"
#include "ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

typedef struct {
    engine *e;
    float *hidden;
    const matrix *table;
    const step_inputs *in;
} embed_job;

static void embed_task(void *context, int token, int worker) {
    const embed_job *j = context;
    (void)worker;
    const uint8_t *row = j->table->data + j->in->tokens[token] * j->table->row_bytes;
    dequantizer(j->table->type)(row, j->hidden + (size_t)token * (size_t)j->table->cols, (size_t)j->table->cols, &j->e->books);
}

EXPORT int hr_embed(engine *e, float *hidden, const matrix *table, const step_inputs *in) {
    embed_job j = {e, hidden, table, in};
    run_tasks(e, embed_task, &j, in->num_tokens, 4 * (size_t)in->num_tokens * (size_t)table->cols);
    return 0;
}

/* norm(hidden) [T][C] of each sequence's last token into its live row, of each captured token into its snapshot. */
EXPORT int hr_final_hidden(engine *e, const float *hidden, const float *weight, float epsilon, int size, const step_inputs *in, const caches *c) {
    (void)e;
    for (int s = 0; s < in->num_sequences; s++) {
        float *row = c->rows + (int64_t)in->rows[s] * c->state_elements + c->hidden_offset;
        rms_norm(hidden + (size_t)(in->cu_seqlens[s + 1] - 1) * (size_t)size, weight, epsilon, size, row);
    }
    for (int i = 0; i < in->num_captures; i++) {
        float *snapshot = c->snapshots + (int64_t)in->capture_snapshots[i] * c->state_elements + c->hidden_offset;
        rms_norm(hidden + (size_t)in->capture_tokens[i] * (size_t)size, weight, epsilon, size, snapshot);
    }
    return 0;
}

/* out [n][C] = norm(hidden) of tokens[i]: the bits that hr_final_hidden gives the same token. */
EXPORT int hr_hidden_rows(engine *e, float *out, const float *hidden, const float *weight, float epsilon, int size, const int32_t *tokens, int n) {
    (void)e;
    for (int i = 0; i < n; i++) {
        rms_norm(hidden + (size_t)tokens[i] * (size_t)size, weight, epsilon, size, out + (size_t)i * (size_t)size);
    }
    return 0;
}

/* out [T][rows] = weight . x[t], x [T][cols]; with `up`, SiLU(weight . x) * (up . x). */
EXPORT int hr_matmul(engine *e, float *out, const matrix *weight, const matrix *up, const float *x, int num_tokens) {
    arena_reset(e);
    size_t ld = ROUND_LANES(weight->cols), size = (size_t)weight->cols;
    float *padded = arena_floats(e, (size_t)num_tokens * ld);
    if (!padded) {
        return -1;
    }
    for (size_t t = 0; t < (size_t)num_tokens; t++) {
        memset(padded + t * ld, 0, ld * sizeof *padded);
        memcpy(padded + t * ld, x + t * size, size * sizeof *padded);
    }
    product p = {.weight = weight, .up = up, .x = padded, .ldx = ld, .num_tokens = num_tokens, .out = out, .ldo = (size_t)weight->rows};
    run_products(e, &p, 1);
    return e->out_of_memory ? -1 : 0;
}

/* -- copies ------------------------------------------------------------------------------------------------------------------------ */

#define PIECE ((size_t)1 << 20)

typedef struct {
    char *to;
    const char *from;
    size_t bytes;
} copy_job;

static void copy_task(void *context, int task, int worker) {
    const copy_job *j = context;
    (void)worker;
    size_t start = (size_t)task * PIECE, rest = j->bytes - start;
    memcpy(j->to + start, j->from + start, rest < PIECE ? rest : PIECE);
}

/* Block pairs[2 i + from_side] of `from` to block pairs[2 i + 1 - from_side] of `to`, one pair after the other. */
EXPORT int hr_copy_blocks(engine *e, char *to, const char *from, const int32_t *pairs, int n, int from_side, int64_t block_bytes) {
    for (int i = 0; i < n; i++) {
        copy_job j = {to + pairs[2 * i + 1 - from_side] * block_bytes, from + pairs[2 * i + from_side] * block_bytes, (size_t)block_bytes};
        if (j.to != j.from) {
            pool_run(e->threads, copy_task, &j, (int)((j.bytes + PIECE - 1) / PIECE));
        }
    }
    return 0;
}

/* -- for tests and for the loader ----------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Whether the matrix unit for bytes is there; the system gives its registers (component 18) only to a process that asks for them. */
static int have_amx(void) {
#ifdef __linux__
    unsigned a, b, c, d;
    unsigned tile_and_int8 = 3u << 24;
    int request_permission = 0x1023;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile_and_int8) == tile_and_int8 &&
           syscall(SYS_arch_prctl, request_permission, 18) == 0;
#else
    return 0;
#endif
}
#endif

/* The best build of these sources that this processor can run. */
EXPORT const char *hr_best_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return !__builtin_cpu_supports("avx512vnni") ? "x86-64-v4" : have_amx() ? "x86-64-v4-amx" : "x86-64-v4-vnni";
    }
    return v3 ? "x86-64-v3" : "base";
#elif defined(__aarch64__) && defined(__APPLE__)
    return "neon-dotprod"; /* since their first one */
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? "neon-dotprod" : "neon";
#elif defined(__aarch64__)
    return "neon";
#else
    return "base";
#endif
}

EXPORT int hr_supports(int type) { return dequantizer(type) != NULL; }

EXPORT int hr_dequantize(const engine *e, int type, const uint8_t *row, float *out, int64_t n) {
    dequantize_fn dequantize = dequantizer(type);
    if (dequantize) {
        dequantize(row, out, (size_t)n, &e->books);
    }
    return dequantize ? 0 : -1;
}

/* out[i] = f(x[i]): 0 exp, 1 sigmoid, 2 SiLU, 3 softplus, 4 through half and back. */
EXPORT int hr_elementwise(int function, const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int count = n - i < LANES ? (int)(n - i) : LANES;
        f32x16 a = v_load_n(x + i, count);
        uint16_t halves[LANES];
        switch (function) {
        case 0: a = v_exp(a); break;
        case 1: a = v_sigmoid(a); break;
        case 2: a = v_silu(a); break;
        case 3: a = v_softplus(a); break;
        default: v_store_half(halves, a), a = v_load_half(halves); break;
        }
        v_store_n(out + i, a, count);
    }
    return 0;
}
