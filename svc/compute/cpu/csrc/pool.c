/* See pool.h. Owner of all state: struct pool.
 *
 * `job` packs (number of tasks, next task) into one word. A worker takes a ticket by adding one; a ticket below the number of tasks is
 * valid, and the caller cannot publish the next job before every valid ticket is done, so fn and context are stable while it is held.
 * The caller therefore never waits for late workers, and after a fork (no workers in the child) the caller just runs all tasks. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define TASK_BITS 31
#define TASK_MASK ((UINT64_C(1) << TASK_BITS) - 1)
#define SPINS 1000 /* 15 to 50 microseconds: longer than the gap between two phases of a step */

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

struct pool {
    _Alignas(64) atomic_uint_fast64_t job;
    _Alignas(64) atomic_int done; /* finished tasks of this job */
    atomic_int sleepers;          /* workers waiting on `wake` */
    atomic_int caller_sleeps;
    atomic_int stop;
    task_fn fn;
    void *context;
    int num_workers;
    pid_t owner;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
    pthread_t *threads;
    struct slot {
        pool *owner;
        int index;
    } *slots;
};

static int work_waits(pool *p) {
    uint64_t job = atomic_load(&p->job);
    return (job & TASK_MASK) < (job >> TASK_BITS & TASK_MASK) || atomic_load(&p->stop);
}

static void finish_task(pool *p, int num_tasks) {
    if (atomic_fetch_add(&p->done, 1) + 1 == num_tasks && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->mutex);
    }
}

static void take_tasks(pool *p, int worker) {
    for (;;) {
        uint64_t job = atomic_fetch_add(&p->job, 1);
        int task = (int)(job & TASK_MASK), num_tasks = (int)(job >> TASK_BITS & TASK_MASK);
        if (task >= num_tasks) {
            return;
        }
        p->fn(p->context, task, worker);
        finish_task(p, num_tasks);
    }
}

static void *worker_main(void *argument) {
    struct slot *slot = argument;
    pool *p = slot->owner;
    while (!atomic_load(&p->stop)) {
        int spins = 0;
        while (spins < SPINS && !work_waits(p)) {
            RELAX();
            spins++;
        }
        if (!work_waits(p)) {
            pthread_mutex_lock(&p->mutex);
            atomic_fetch_add(&p->sleepers, 1);
            while (!work_waits(p)) {
                pthread_cond_wait(&p->wake, &p->mutex);
            }
            atomic_fetch_sub(&p->sleepers, 1);
            pthread_mutex_unlock(&p->mutex);
        }
        if (!atomic_load(&p->stop)) {
            take_tasks(p, slot->index);
        }
    }
    return NULL;
}

pool *pool_open(int threads) {
    pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) {
        return NULL;
    }
    int wanted = threads > 1 ? threads - 1 : 0;
    *p = (pool){.owner = getpid(), .threads = calloc((size_t)wanted + 1, sizeof *p->threads),
                .slots = calloc((size_t)wanted + 1, sizeof *p->slots)};
    if (!p->threads || !p->slots) {
        free(p->threads), free(p->slots), free(p);
        return NULL;
    }
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->finished, NULL);
    /* Signals belong to the interpreter's threads. Not those of a thread's own fault: blocked, they kill without their handlers. */
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sigdelset(&blocked, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (int i = 0; i < wanted; i++) {
        p->slots[i] = (struct slot){p, i + 1};
        if (pthread_create(&p->threads[i], NULL, worker_main, &p->slots[i])) {
            break;
        }
        p->num_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return p;
}

void pool_close(pool *p) {
    if (p->owner == getpid()) { /* a forked child has no workers to join */
        pthread_mutex_lock(&p->mutex);
        atomic_store(&p->stop, 1);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
        for (int i = 0; i < p->num_workers; i++) {
            pthread_join(p->threads[i], NULL);
        }
        pthread_cond_destroy(&p->wake);
        pthread_cond_destroy(&p->finished);
        pthread_mutex_destroy(&p->mutex);
    }
    free(p->threads), free(p->slots), free(p);
}

int pool_threads(const pool *p) { return p->num_workers + 1; }

static void wait_until_done(pool *p, int num_tasks) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load(&p->done) == num_tasks) {
            return;
        }
        RELAX();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->done) != num_tasks) {
        pthread_cond_wait(&p->finished, &p->mutex);
    }
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->mutex);
}

void pool_run(pool *p, task_fn fn, void *context, int num_tasks) {
    if (num_tasks == 1 || p->num_workers == 0) {
        for (int task = 0; task < num_tasks; task++) {
            fn(context, task, 0);
        }
        return;
    }
    if (num_tasks <= 0) {
        return;
    }
    p->fn = fn;
    p->context = context;
    atomic_store(&p->done, 0);
    atomic_store(&p->job, (uint64_t)num_tasks << TASK_BITS);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
    take_tasks(p, 0);
    wait_until_done(p, num_tasks);
}
