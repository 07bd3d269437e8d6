// Fibers, barriers, warp collectives and asynchronous copies.
//
// The last thread to arrive somewhere goes on without a switch; all others leave their fiber for the next runnable one. A warp
// keeps its runnable lanes as bits, so finding the next one is a few instructions.
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime.h"
#include "switch.h"

namespace emu {

Context context;
const Launch* launch;
Block block;
Fiber fibers[MAX_THREADS];
Warp warps[32];
Stats stats;
bool running;
volatile bool out_of_time;
char* stacks;
char* dynamic_region;

namespace {

enum Order { FORWARD, REVERSE, RANDOM };

struct PendingCopy {
  void* shared;
  const void* global;
  unsigned bytes, source_bytes;
  int group;
  const void* caller;
};
std::vector<PendingCopy> pending[MAX_THREADS];
int copy_group[MAX_THREADS];

void* launcher_stack;
unsigned prepared_stacks;
bool abandoned;  // a launch was broken off: its fibers stand in mid-kernel
bool failed;
char failure[4096];
uint64_t random_state;

uint32_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 16);
}
unsigned nth_bit(uint32_t bits, unsigned n) {
  while (n--) bits &= bits - 1;
  return __builtin_ctz(bits);
}
uint32_t above(unsigned bit) { return (uint32_t)(~0ull << (bit + 1)); }
uint32_t below(unsigned bit) { return (1u << bit) - 1; }

// The runnable fiber that comes after a lane of a warp in the launch's order; nullptr when there is none in the block.
inline Fiber* next_fiber(Warp* warp, unsigned lane) {
  const unsigned order = launch->order;
  if (order == RANDOM) {
    if (!block.runnable_warps) return nullptr;
    warp = &warps[nth_bit(block.runnable_warps, random_bits() % __builtin_popcount(block.runnable_warps))];
    return &fibers[warp->index * 32 + nth_bit(warp->runnable, random_bits() % __builtin_popcount(warp->runnable))];
  }
  uint32_t lanes = warp->runnable & (order == FORWARD ? above(lane) : below(lane));
  if (!lanes) lanes = warp->runnable;
  if (!lanes) {
    uint32_t others = block.runnable_warps & (order == FORWARD ? above(warp->index) : below(warp->index));
    if (!others) others = block.runnable_warps;
    if (!others) return nullptr;
    warp = &warps[order == FORWARD ? __builtin_ctz(others) : 31 - __builtin_clz(others)];
    lanes = warp->runnable;
  }
  return &fibers[warp->index * 32 + (order == FORWARD ? __builtin_ctz(lanes) : 31 - __builtin_clz(lanes))];
}

inline void resume(void** save, Fiber* next) {
  context.current = next;
  emu_switch(save, next->stack_pointer);
}

void describe_deadlock(char* text, size_t size) {
  size_t n = 0;
  for (unsigned i = 0; i < block.num_warps && n + 200 < size; i++) {
    Warp& w = warps[i];
    n += snprintf(text + n, size - n, "\n  warp %u: ended %08x, at __syncthreads %08x, in a collective %08x", i, w.exited,
                  w.existing & ~w.exited & ~w.waiting, w.waiting);
    if (!w.waiting) continue;
    unsigned lane = __builtin_ctz(w.waiting);
    n += snprintf(text + n, size - n, " (%s with mask %08x)", fibers[i * 32 + lane].waits_in, w.mask[lane]);
  }
}

void wait_here(Fiber* me) {
  Warp* warp = me->warp;
  warp->runnable &= ~(1u << me->lane);
  if (!warp->runnable) block.runnable_warps &= ~(1u << warp->index);
  Fiber* next = next_fiber(warp, me->lane);
  if (__builtin_expect(!next, 0)) {
    char masks[3000] = "";
    describe_deadlock(masks, sizeof masks);
    fail("deadlock: no thread of the block can go on%s", masks);
  }
  resume(&me->stack_pointer, next);
}

// In random order the last to arrive is not always the first to go on.
void maybe_yield(Fiber* me) {
  if (launch->order != RANDOM) return;
  Fiber* next = next_fiber(me->warp, me->lane);
  if (next != me) resume(&me->stack_pointer, next);
}

void release_barrier() {
  stats.barriers++;
  block.at_barrier = 0;
  block.votes[++block.epoch & 1] = 0;
  for (unsigned i = 0; i < block.num_warps; i++) {
    warps[i].runnable = warps[i].existing & ~warps[i].exited;
    if (warps[i].runnable) block.runnable_warps |= 1u << i;
  }
}

void mark_early_exit() {
  if (block.ended_early) return;
  block.ended_early = true;
  check_early_exit();
}

void finish_copy(const PendingCopy& c) {
  memcpy(c.shared, c.global, c.source_bytes);
  memset((char*)c.shared + c.source_bytes, 0, c.bytes - c.source_bytes);
}

// Where every fiber lives: one kernel thread after the other.
void fiber_main() {
  for (;;) {
    launch->kernel->thunk(launch->arguments);
    Fiber* me = context.current;
    Warp* warp = me->warp;
    if (!pending[me->index].empty()) fail("the thread ends with cp.async copies that it has not waited for");
    copy_group[me->index] = 0;
    unsigned bit = 1u << me->lane;
    warp->exited |= bit;
    warp->runnable &= ~bit;
    if (!warp->runnable) block.runnable_warps &= ~(1u << warp->index);
    if (!--block.alive) {
      emu_switch(&me->stack_pointer, launcher_stack);
      continue;
    }
    if (block.at_barrier == block.alive) {
      mark_early_exit();
      release_barrier();
    }
    Fiber* next = next_fiber(warp, me->lane);
    if (!next) {
      char masks[3000] = "";
      describe_deadlock(masks, sizeof masks);
      fail("deadlock: the other threads of the block wait for one that has ended%s", masks);
    }
    resume(&me->stack_pointer, next);
  }
}

void start_fiber(unsigned index) {
  size_t colour = index * 7 % 61 * 64;  // equal offsets on all stacks would share few cache sets
  fibers[index].stack_pointer = emu_first_frame(stacks + STACK * (index + 1) - colour, fiber_main);
}

void prepare_stacks(unsigned threads) {
  if (!stacks) {
    auto map = [](size_t bytes) {
      return (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    stacks = map(STACK * MAX_THREADS);
    dynamic_region = map(MAX_DYNAMIC + PAGE);
    mprotect(dynamic_region + MAX_DYNAMIC, PAGE, PROT_NONE);
  }
  for (; prepared_stacks < threads; prepared_stacks++) {
    mprotect(stacks + STACK * prepared_stacks, PAGE, PROT_NONE);
    start_fiber(prepared_stacks);
  }
  if (!abandoned) return;
  for (unsigned i = 0; i < prepared_stacks; i++) {
    start_fiber(i);
    pending[i].clear();
    copy_group[i] = 0;
  }
  abandoned = false;
}

void prepare_threads(unsigned threads) {
  const unsigned* size = launch->block;
  block.num_warps = (threads + 31) / 32;
  for (unsigned i = 0; i < threads; i++) {
    Fiber& f = fibers[i];
    f.warp = &warps[i / 32];
    f.lane = i % 32;
    f.index = i;
    f.thread = {i % size[0], i / size[0] % size[1], i / (size[0] * size[1])};
  }
}

// Shared memory of a new block is NaN in every float format.
void poison_shared() {
  memset(context.dynamic_shared, 0xff, context.dynamic_bytes);
  for (uint64_t i = 0; i < launch->num_shared; i++)
    memset((void*)launch->shared[i].low, 0xff, launch->shared[i].high - launch->shared[i].low);
}

void run_block(uint64_t index, unsigned threads) {
  const unsigned* grid = launch->grid;
  context.block = {(unsigned)(index % grid[0]), (unsigned)(index / grid[0] % grid[1]), (unsigned)(index / grid[0] / grid[1])};
  unsigned num_warps = block.num_warps;
  block = {num_warps, threads, threads, 0, 0, num_warps == 32 ? ~0u : (1u << num_warps) - 1, index, false, {0, 0}};
  for (unsigned i = 0; i < num_warps; i++) {
    unsigned lanes = threads - 32 * i;
    Warp& w = warps[i];
    w.existing = w.runnable = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    w.waiting = w.exited = w.sync_epoch = 0;
    w.index = i;
  }
  poison_shared();
  checks_begin_block();
  Fiber* first = launch->order == FORWARD ? &fibers[0] : launch->order == REVERSE ? &fibers[threads - 1] : next_fiber(&warps[0], 0);
  running = true;
  resume(&launcher_stack, first);
  running = false;
  stats.blocks++;
}

uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

void run_grid() {
  const unsigned* b = launch->block;
  const unsigned threads = b[0] * b[1] * b[2];
  const uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  prepare_stacks(threads);
  prepare_threads(threads);
  context.block_dim = {b[0], b[1], b[2]};
  context.grid_dim = {launch->grid[0], launch->grid[1], launch->grid[2]};
  // Dynamic shared memory ends at the inaccessible page, but for alignment.
  context.dynamic_bytes = launch->dynamic_bytes;
  context.dynamic_shared = (unsigned char*)dynamic_region + MAX_DYNAMIC - ((launch->dynamic_bytes + 15) & ~15u);
  random_state = launch->seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
  uint64_t stride = 1, start = 0;
  if (launch->order == RANDOM) {
    start = random_bits() % blocks;
    do stride = random_bits() | 1u;
    while (common_divisor(stride, blocks) != 1);
  }
  checks_begin_launch();
  for (uint64_t i = 0; i < blocks && !failed; i++) {
    uint64_t index = launch->order == REVERSE ? blocks - 1 - i : (start + i * stride) % blocks;
    run_block(index, threads);
  }
  checks_end_launch();
}

}  // namespace

char* stack_of(const Fiber* fiber) { return stacks + STACK * (fiber - fibers); }

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int n = vsnprintf(failure, sizeof failure, format, arguments);
  va_end(arguments);
  const uint3 &at = context.block, &thread = context.current->thread;
  if (n < (int)sizeof failure)
    snprintf(failure + n, sizeof failure - n, " [block (%u,%u,%u) thread (%u,%u,%u)]", at.x, at.y, at.z, thread.x, thread.y, thread.z);
  failed = abandoned = true;
  void* never_resumed;
  emu_switch(&never_resumed, launcher_stack);
  __builtin_unreachable();
}

void fail_if_out_of_time() {
  if (__builtin_expect(out_of_time, 0)) fail("did not end within %g seconds of CPU time", launch->limit_s);
}

void collective(unsigned mask, Collective compute, void* operand, const char* name) {
  fail_if_out_of_time();
  Fiber* me = context.current;
  Warp* warp = me->warp;
  const unsigned bit = 1u << me->lane;
  mask &= warp->existing;
  if (__builtin_expect(!(mask & bit), 0)) fail("%s: mask %08x does not name the calling lane %u", name, mask, me->lane);
  warp->operand[me->lane] = operand;
  warp->mask[me->lane] = mask;
  warp->operation[me->lane] = (const void*)compute;
  me->waits_in = name;
  warp->waiting |= bit;
  if ((warp->waiting & mask) != mask) {
    wait_here(me);
    return;
  }
  for (unsigned left = mask; left; left &= left - 1) {
    unsigned l = __builtin_ctz(left);
    if (warp->mask[l] != mask || warp->operation[l] != (const void*)compute)
      fail("the warp diverged: lane %u is in %s with mask %08x, lane %u in %s with mask %08x", me->lane, name, mask, l,
           fibers[warp->index * 32 + l].waits_in, warp->mask[l]);
  }
  stats.collectives++;
  if (compute)
    compute(warp->operand, mask);
  else if (mask == (warp->existing & ~warp->exited))
    warp->sync_epoch++;
  warp->waiting &= ~mask;
  warp->runnable |= mask;
  block.runnable_warps |= 1u << warp->index;
  maybe_yield(me);
}

void syncwarp(unsigned mask) { collective(mask, nullptr, nullptr, "__syncwarp"); }

void syncthreads() {
  fail_if_out_of_time();
  Fiber* me = context.current;
  if (block.alive < block.threads) mark_early_exit();
  if (++block.at_barrier == block.alive) {
    release_barrier();
    maybe_yield(me);
  } else {
    wait_here(me);
  }
}

int syncthreads_count(bool predicate) {
  unsigned& votes = block.votes[block.epoch & 1];
  votes += predicate;
  syncthreads();
  int count = (int)votes;
  syncthreads();  // nobody votes again before all have read
  return count;
}

// Lazy: what is not waited for stays NaN. Eager: what is overwritten too early is lost at once. To the checks the shared bytes are written
// at any time from the copy to its wait: once at either end.
void cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
  const void* caller = __builtin_return_address(0);
  if (((uintptr_t)shared | (uintptr_t)global) % bytes) fail("cp.async of %u bytes: %p or %p is not aligned", bytes, shared, global);
  check_access(global, source_bytes, false, caller);
  check_access(shared, bytes, true, caller);
  unsigned me = context.current->index;
  pending[me].push_back({shared, global, bytes, source_bytes, copy_group[me], caller});
  if (launch->lazy_copies)
    memset(shared, 0xff, bytes);
  else
    finish_copy(pending[me].back());
}

void cp_async_commit() { copy_group[context.current->index]++; }

void cp_async_wait(int groups_left) {
  unsigned me = context.current->index;
  auto& copies = pending[me];
  size_t done = 0;
  for (; done < copies.size() && copies[done].group < copy_group[me] - groups_left; done++) {
    check_access(copies[done].shared, copies[done].bytes, true, copies[done].caller);
    if (launch->lazy_copies) finish_copy(copies[done]);
  }
  copies.erase(copies.begin(), copies.begin() + done);
}

}  // namespace emu

extern "C" EMU_API int emu_launch(const emu::Launch* launch, emu::Stats* stats, char* text, size_t size) {
  emu::launch = launch;
  emu::stats = {};
  emu::failed = emu::out_of_time = false;
  {
    emu::FaultGuard guard;
    emu::run_grid();
  }
  emu::running = false;
  *stats = emu::stats;
  if (!emu::failed) return emu::checks_report(text, size);
  snprintf(text, size, "%s", emu::failure);
  return 1;
}
