/* The builds of these sources that the processor can run. */
#define _GNU_SOURCE
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include "runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#if defined(__x86_64__)
/* Whether there is a matrix unit for bytes; the system grants its registers (component 18) only to a process that asks. */
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
    return "neon-dotprod"; /* every Apple processor has it */
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? "neon-dotprod" : "neon";
#elif defined(__aarch64__)
    return "neon";
#else
    return "base";
#endif
}
