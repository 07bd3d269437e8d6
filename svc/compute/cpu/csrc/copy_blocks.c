/* Copies of pages and state rows inside the machine's memory. */
#include "runtime.h"

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

/* Block pairs[2 i + from_side] of `from` to block pairs[2 i + 1 - from_side] of `to`, in order. */
EXPORT int hr_copy_blocks(runtime *rt, char *to, const char *from, const int32_t *pairs, int n, int from_side, int64_t block_bytes) {
    for (int i = 0; i < n; i++) {
        copy_job j = {to + pairs[2 * i + 1 - from_side] * block_bytes, from + pairs[2 * i + from_side] * block_bytes, (size_t)block_bytes};
        if (j.to != j.from) {
            pool_run(rt->threads, copy_task, &j, (int)((j.bytes + PIECE - 1) / PIECE));
        }
    }
    return 0;
}
