// What the files of the runtime share. It is one shared library, linked by every compiled kernel module; one launch runs at a time.
#pragma once
#include "emu/core.h"

namespace emu {

constexpr size_t PAGE = 4096;
#ifdef EMU_CHECKED
constexpr size_t STACK = (256 << 10) + PAGE;
#else
// An odd number of pages: a stride of a power of two would alias in the TLB and the caches.
constexpr size_t STACK = (64 << 10) + PAGE;
#endif
constexpr unsigned MAX_THREADS = 1024;
constexpr size_t MAX_DYNAMIC = 256 << 10;

struct Block {
  unsigned num_warps, threads, alive, at_barrier;
  unsigned epoch;  // __syncthreads passed so far
  unsigned runnable_warps;
  uint64_t index;
  bool ended_early;  // a barrier was passed with some threads gone
  unsigned votes[2];  // __syncthreads_count: two, as one may be filled before all have read the other
};

extern const Launch* launch;  // the one that runs
extern Block block;
extern Fiber fibers[MAX_THREADS];
extern Warp warps[32];
extern Stats stats;
extern bool running;               // in a fiber, not in the launching code
extern volatile bool out_of_time;  // set by the timer
extern char* stacks;
extern char* dynamic_region;  // MAX_DYNAMIC bytes, then an inaccessible page

char* stack_of(const Fiber* fiber);
void fail_if_out_of_time();

// faults.cpp: signals become reports while an object of this class exists.
struct FaultGuard {
  FaultGuard();
  ~FaultGuard();
};

// checks.cpp, in the checked build only
#ifdef EMU_CHECKED
void checks_begin_launch();
void checks_begin_block();
void checks_end_launch();
int checks_report(char* text, size_t size);
void check_access(const void* address, size_t bytes, bool write, const void* caller);
void check_early_exit();
#else
inline void checks_begin_launch() {}
inline void checks_begin_block() {}
inline void checks_end_launch() {}
inline int checks_report(char*, size_t) { return 0; }
inline void check_access(const void*, size_t, bool, const void*) {}
inline void check_early_exit() {}
#endif

}  // namespace emu
