/* For tests/bench/machine_limits.py: the integer products of a build, without loads, unpacking or stores. */
#include "runtime.h"
#include "int_amx.h"

#define CHAINS 12 /* independent sums: enough to hide the latency of one */

typedef struct {
    int rounds;
    int32_t *out; /* [tasks]; otherwise the compiler would drop the work */
} peak_job;

#ifdef __AMX_INT8__
#define PER_ROUND (4 * 16 * 16 * 64)

static void peak_task(void *context, int task, int worker) {
    const peak_job *j = context;
    _Alignas(64) int8_t bytes[16][64];
    int32_t sums[16][16];
    (void)worker;
    memset(bytes, 1, sizeof bytes);
    begin_tiles(64);
    _tile_loadd(4, bytes, 64);
    _tile_loadd(5, bytes, 64);
    _tile_loadd(6, bytes, 64);
    _tile_loadd(7, bytes, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < j->rounds; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    end_tiles();
    j->out[task] = sums[0][0];
}
#else
#define PER_ROUND (CHAINS * 4 * INT_LANES)

static void peak_task(void *context, int task, int worker) {
    const peak_job *j = context;
    ints sums[CHAINS], w = EACH_BYTE(3), x = EACH_BYTE(2);
    (void)worker;
    UNROLL
    for (int c = 0; c < CHAINS; c++) {
        sums[c] = i_set1(c);
    }
    for (int i = 0; i < j->rounds; i++) {
        UNROLL
        for (int c = 0; c < CHAINS; c++) {
#if DIRECT_DOT
            sums[c] = i_dot(sums[c], w, x);
#else
            sums[c] = i_pairs(sums[c], i_products(w, x), w);
#endif
        }
    }
    int32_t lanes[INT_LANES], total = 0;
    for (int c = 0; c < CHAINS; c++) {
        i_store(lanes, sums[c]);
        total += lanes[0];
    }
    j->out[task] = total;
}
#endif

/* Runs on every thread; `multiply_adds` counts all of them. */
EXPORT int hr_integer_peak(runtime *rt, int rounds, int64_t *multiply_adds) {
    arena_reset(rt);
    int threads = pool_threads(rt->threads);
    peak_job j = {rounds, arena_bytes(rt, (size_t)threads * sizeof(int32_t))};
    if (!j.out) {
        return -1;
    }
    pool_run(rt->threads, peak_task, &j, threads);
    *multiply_adds = (int64_t)threads * rounds * PER_ROUND;
    return 0;
}
