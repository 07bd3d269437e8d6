/* A small persistent thread pool. Threads take the tasks of a job from one counter, in no fixed order, so a task must own the memory it
 * writes. The calling thread works too; a pool of one thread has no workers. */
#ifndef HEADRACE_POOL_H
#define HEADRACE_POOL_H

typedef struct pool pool;
typedef void (*task_fn)(void *context, int task, int worker); /* worker in [0, threads): index of private scratch */

pool *pool_open(int threads); /* NULL: out of memory. Fewer threads if the system refuses some. */
void pool_close(pool *p);
int pool_threads(const pool *p);
void pool_run(pool *p, task_fn fn, void *context, int num_tasks); /* returns when all tasks are done; one caller at a time */

#endif
