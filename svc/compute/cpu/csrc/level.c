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

#if defined(__x86_64__)
static int have_avx_vnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

/* Whether this processor can run the build of these sources for that level; an unknown one: no. */
EXPORT int hr_runs(const char *level) {
    if (!strcmp(level, "base")) {
        return 1;
    }
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    int vnni = v4 && __builtin_cpu_supports("avx512vnni");
    return !strcmp(level, "x86-64-v3") ? v3 : !strcmp(level, "x86-64-v3-avxvnni") ? v3 && have_avx_vnni() : !strcmp(level, "x86-64-v4") ? v4
         : !strcmp(level, "x86-64-v4-vnni") ? vnni : !strcmp(level, "x86-64-v4-amx") ? vnni && have_amx() : 0;
#elif defined(__aarch64__)
#if defined(__APPLE__)
    int dotprod = 1; /* every Apple processor has it */
#elif defined(__linux__)
    int dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    int dotprod = 0;
#endif
    return !strcmp(level, "neon") || (!strcmp(level, "neon-dotprod") && dotprod);
#else
    return 0;
#endif
}
