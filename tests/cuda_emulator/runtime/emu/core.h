// What kernels compiled for the CPU and the emulator's runtime share: the state of the running block and the calls into the
// scheduler.
//
// The threads of a block are fibers on one CPU thread. They run one at a time and switch only where CUDA lets threads wait for
// each other: at barriers and warp collectives. Whatever else they need from each other is a race, and the three orders of
// running make it show.
#pragma once
#include <cstddef>
#include <cstdint>

#define EMU_API __attribute__((visibility("default")))

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };

namespace emu {

struct Warp;

struct Fiber {
  void* stack_pointer;
  Warp* warp;
  unsigned lane;
  unsigned index;  // in the block
  uint3 thread;
  const char* waits_in;  // name of the collective it waits in, for reports
};

// Masks have one bit a lane.
struct Warp {
  unsigned runnable, waiting, existing, exited;
  unsigned index;
  unsigned sync_epoch;  // full __syncwarp passed so far: what orders memory between the lanes
  void* operand[32];
  unsigned mask[32];
  const void* operation[32];
};

struct Context {
  Fiber* current;
  uint3 block;
  dim3 block_dim, grid_dim;
  unsigned char* dynamic_shared;
  unsigned dynamic_bytes;
};

extern EMU_API Context context;

// Computes for all lanes of the mask at once, from and into what each lane's operand points to.
typedef void (*Collective)(void** operands, unsigned mask);

EMU_API void collective(unsigned mask, Collective compute, void* operand, const char* name);
EMU_API void syncthreads();
EMU_API int syncthreads_count(bool predicate);
EMU_API void syncwarp(unsigned mask);
EMU_API void cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes);
EMU_API void cp_async_commit();
EMU_API void cp_async_wait(int groups_left);
EMU_API void fail(const char* format, ...) __attribute__((format(printf, 1, 2), noreturn));

static inline int lane() { return (int)context.current->lane; }

// One kernel of a module. `types` spells each parameter: "f4" a float, "*cu1" a const unsigned char*.
struct KernelDescription {
  const char* name;
  void (*thunk)(void** arguments);
  int num_arguments;
  const char* const* types;
  int max_threads;  // as __launch_bounds__ promises
  const KernelDescription* next;
};

struct Range { uintptr_t low, high; uint64_t writable; };

// One launch, filled in by image.py (ctypes, the same order).
struct Launch {
  const KernelDescription* kernel;
  void** arguments;
  unsigned grid[3], block[3];
  unsigned dynamic_bytes;
  unsigned order;  // 0 forward, 1 reverse, 2 random
  unsigned seed;
  unsigned lazy_copies;  // cp.async happens at its wait, not at once
  double limit_s;        // CPU time
  uintptr_t image_low, image_high;  // of the module
  const Range* shared;              // its __shared__ variables
  uint64_t num_shared;
  const Range* arrays;  // what the arguments point to
  uint64_t num_arrays;
};

struct Stats { uint64_t blocks, barriers, collectives, read_bytes, written_bytes; };

}  // namespace emu
