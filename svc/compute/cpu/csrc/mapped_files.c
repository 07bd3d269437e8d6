/* A last message about a mapped model file that was truncated: the system answers a read after the new end with SIGBUS, and the
 * process would otherwise die without a word. Everything in the handler is async-signal-safe. */
#define _GNU_SOURCE
#include "runtime.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define STDERR_PATIENCE_MS 1000 /* for a stderr without a reader */

typedef struct {
    uintptr_t start, end;
    const char *sentence;
} mapped_file;

typedef struct {
    int count;
    mapped_file files[];
} mapped_files;

static _Atomic(mapped_files *) known;
static struct sigaction previous;
static atomic_flag begun = ATOMIC_FLAG_INIT;

static void say(const char *sentence) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t left = strlen(sentence);
    while (left && poll(&out, 1, STDERR_PATIENCE_MS) == 1) {
        ssize_t written = write(STDERR_FILENO, sentence, left);
        if (written <= 0) {
            return;
        }
        sentence += written, left -= (size_t)written;
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    if (atomic_flag_test_and_set(&begun)) {
        return; /* another thread is at it: this one runs into the same error until that one has said it */
    }
    const mapped_files *all = atomic_load(&known);
    uintptr_t address = (uintptr_t)info->si_addr;
    for (int i = 0; all && info->si_code == BUS_ADRERR && i < all->count; i++) {
        if (all->files[i].start <= address && address < all->files[i].end) {
            say(all->files[i].sentence);
            break;
        }
    }
    sigaction(number, &previous, NULL); /* on return the read is tried again, and ends the process as it would have without us */
}

/* From now on a bus error at starts[i] .. starts[i] + sizes[i] says sentences[i] on stderr before it ends the process. Replaces what
 * was said for other files; the sentences stay the caller's. -1: no memory, or no handler could be set. */
EXPORT int hr_name_mapped_files(const uint64_t *starts, const uint64_t *sizes, const char *const *sentences, int count) {
    static int installed;
    mapped_files *all = malloc(sizeof *all + (size_t)count * sizeof *all->files);
    if (!all) {
        return -1;
    }
    all->count = count;
    for (int i = 0; i < count; i++) {
        all->files[i] = (mapped_file){(uintptr_t)starts[i], (uintptr_t)(starts[i] + sizes[i]), sentences[i]};
    }
    free(atomic_exchange(&known, all));
    if (!installed) {
        struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, &action, &previous)) {
            return -1;
        }
        installed = 1;
    }
    return 0;
}
