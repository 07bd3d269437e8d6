// The checked build. Kernels are compiled with -fsanitize=thread and some of -fsanitize=undefined, but linked with neither library: the
// hooks are here. Every load and store of a kernel comes by, and is held against
//  - bounds: it must lie in an array of the launch, in shared memory or on the thread's own stack; arrays given as const are not written;
//  - initialisation: shared memory is written in this block before it is read;
//  - order: two accesses of the same byte, one of them a write, must be by the same thread, or have __syncthreads between them, or
//    __syncwarp if they are of one warp. Global memory has no order between blocks at all. Atomics do not conflict with each other.
// For that every byte has a shadow cell with its last write and its last read.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "runtime.h"

namespace emu {
namespace {

// Who else read since, as bits of Access::others: only the last reader is kept in full.
enum { OTHER_LANES = 1, OTHER_WARPS = 2, OTHER_BLOCKS = 4 };

struct Access {
  uint32_t block;   // index + 1
  uint16_t thread;  // index + 1; 0: there was none
  uint16_t block_epoch, warp_epoch;
  uint8_t atomic, others;
  uint32_t pc;  // offset in the module
};
struct Cell { Access write, read; };

struct Array {
  uintptr_t low, high;
  bool writable;
  Cell* cells;  // of `low`; nullptr where nothing can be written
};
struct Shadow {
  uintptr_t low, high;
  Cell* cells;
};

std::vector<Array> arrays;    // writable ones first: where a const view overlaps one, order matters
std::vector<Shadow> shadows;  // of all writable memory, each byte once
const Array* last_array;
Cell* dynamic_cells;
std::map<uintptr_t, Cell*> image_cells;  // by load address; most of it is never touched
Cell* this_image;
uintptr_t runtime_low, runtime_high;
uint64_t last_shared;
bool active;

// ---- reports

char report_text[16384];
size_t report_length;
unsigned num_problems;
std::vector<std::pair<const char*, uint32_t>> reported;  // each kind of problem once a place

void append(const char* format, auto... values) {
  if (report_length + 1 >= sizeof report_text) return;
  int n = snprintf(report_text + report_length, sizeof report_text - report_length, format, values...);
  report_length = std::min(report_length + (size_t)n, sizeof report_text - 1);
}
bool is_new(const char* kind, uint32_t place) {
  num_problems++;
  if (std::find(reported.begin(), reported.end(), std::make_pair(kind, place)) != reported.end()) return false;
  reported.push_back({kind, place});
  return true;
}
void append_thread() {
  const uint3 &b = context.block, &t = context.current->thread;
  append(", block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

// How far an address is outside of [low, high).
size_t distance(uintptr_t address, uintptr_t low, uintptr_t high) {
  return address < low ? low - address : address < high ? 0 : address - high + 1;
}
void append_place(uintptr_t address) {
  uintptr_t dynamic = (uintptr_t)dynamic_region;
  if (address >= dynamic && address < dynamic + MAX_DYNAMIC + PAGE) {
    append("byte %ld of %u of dynamic shared memory", (long)(address - (uintptr_t)context.dynamic_shared), context.dynamic_bytes);
    return;
  }
  for (uint64_t i = 0; i < launch->num_shared; i++) {
    const Range& r = launch->shared[i];
    if (distance(address, r.low, r.high) <= PAGE) {
      append("byte %ld of %ld of <shared %lu>", (long)(address - r.low), (long)(r.high - r.low), (unsigned long)i);
      return;
    }
  }
  const Array* nearest = nullptr;
  for (const Array& a : arrays)
    if (!nearest || distance(address, a.low, a.high) < distance(address, nearest->low, nearest->high)) nearest = &a;
  if (nearest && distance(address, nearest->low, nearest->high) < (1 << 20))
    append("byte %ld of an array of %ld bytes", (long)(address - nearest->low), (long)(nearest->high - nearest->low));
  else
    append("address %p, near no array of the launch", (void*)address);
}
void report(const char* kind, uintptr_t address, size_t bytes, uint32_t pc, const Access* other = nullptr) {
  if (!is_new(kind, pc)) return;
  append("\n  %s of %zu bytes at <pc 0x%x>: ", kind, bytes, pc);
  append_place(address);
  append_thread();
  if (other) append("; the other access at <pc 0x%x> by block %u, thread %u", other->pc, other->block - 1, other->thread - 1);
}
[[noreturn]] void stop_out_of_bounds(bool write, uintptr_t address, size_t bytes, uint32_t pc) {
  report(write ? "out-of-bounds write" : "out-of-bounds read", address, bytes, pc);
  fail("stopped at an out-of-bounds access%s", report_text);
}

// ---- order

// Whether whatever `me` does now comes after `earlier`.
bool ordered(const Access& earlier, const Access& me, bool shared) {
  if (!earlier.thread) return true;
  if (earlier.block != me.block) return shared;  // shared memory of another block is other memory
  if (earlier.thread == me.thread || earlier.block_epoch != me.block_epoch) return true;
  bool same_warp = (earlier.thread - 1) / 32 == (me.thread - 1) / 32;
  return same_warp && earlier.warp_epoch != me.warp_epoch;
}
// The same for the readers that `read.others` stands for.
bool other_readers_ordered(const Access& read, const Access& me, bool shared) {
  if (!read.thread) return true;
  if (!shared && (read.others & OTHER_BLOCKS)) return false;
  if (read.block != me.block || read.block_epoch != me.block_epoch) return true;
  return !(read.others & OTHER_WARPS) && !((read.others & OTHER_LANES) && read.warp_epoch == me.warp_epoch);
}
uint8_t others_after(const Access& read, const Access& me, bool shared) {
  if (!read.thread) return 0;
  if (read.block != me.block) return shared ? 0 : OTHER_BLOCKS;
  uint8_t others = read.others & OTHER_BLOCKS;
  if (read.block_epoch != me.block_epoch) return others;
  others |= read.others & OTHER_WARPS;
  bool same_epoch = read.warp_epoch == me.warp_epoch;
  if (same_epoch) others |= read.others & OTHER_LANES;
  if (read.thread == me.thread) return others;
  if ((read.thread - 1) / 32 != (me.thread - 1) / 32) return others | OTHER_WARPS;
  return same_epoch ? others | OTHER_LANES : others;
}

void check_read(Cell& cell, const Access& me, uintptr_t address, size_t bytes, bool shared) {
  if (shared && (!cell.write.thread || cell.write.block != me.block))
    report("read of shared memory that was never written", address, bytes, me.pc);
  if (!(me.atomic && cell.write.atomic) && !ordered(cell.write, me, shared))
    report("race: read after write", address, bytes, me.pc, &cell.write);
  uint8_t others = others_after(cell.read, me, shared);
  cell.read = me;
  cell.read.others = others;
}
void check_write(Cell& cell, const Access& me, uintptr_t address, size_t bytes, bool shared) {
  if (!(me.atomic && cell.write.atomic) && !ordered(cell.write, me, shared))
    report("race: write after write", address, bytes, me.pc, &cell.write);
  bool safe = ordered(cell.read, me, shared) && other_readers_ordered(cell.read, me, shared);
  if (!safe && !(me.atomic && cell.read.atomic)) report("race: write after read", address, bytes, me.pc, &cell.read);
  cell.write = me;
}

// ---- bounds: the shadow cells of an address; nullptr for memory that needs none

bool in_image(uintptr_t address) { return address >= launch->image_low && address < launch->image_high; }

Cell* shared_cells(uintptr_t address, size_t bytes, bool write, uint32_t pc) {
  auto inside = [&](const Range& r) { return address >= r.low && address + bytes <= r.high; };
  if (last_shared >= launch->num_shared || !inside(launch->shared[last_shared])) {
    last_shared = 0;
    while (last_shared < launch->num_shared && !inside(launch->shared[last_shared])) last_shared++;
  }
  if (last_shared < launch->num_shared) return this_image + (address - launch->image_low);
  bool near_shared = false;
  for (uint64_t i = 0; i < launch->num_shared; i++)
    near_shared |= distance(address + (address < launch->shared[i].low ? bytes : 0), launch->shared[i].low, launch->shared[i].high) <= 64;
  if (!write && !near_shared) return nullptr;  // constants and tables
  stop_out_of_bounds(write, address, bytes, pc);
}

const Array* find_array(uintptr_t address, size_t bytes) {
  auto inside = [&](const Array& a) { return address >= a.low && address + bytes <= a.high; };
  if (last_array && inside(*last_array)) return last_array;
  for (const Array& a : arrays)
    if (inside(a)) return last_array = &a;
  return nullptr;
}

void access(uintptr_t address, size_t bytes, bool write, bool atomic, uintptr_t from, size_t alignment) {
  if (!active || !running) return;
  if (address >= (uintptr_t)stacks && address < (uintptr_t)stacks + STACK * MAX_THREADS) return;
  if (address >= runtime_low && address < runtime_high) return;  // threadIdx and the like
  fail_if_out_of_time();
  uint32_t pc = (uint32_t)(from - launch->image_low);
  if (alignment > 1 && address % alignment) report(write ? "misaligned write" : "misaligned read", address, bytes, pc);
  uintptr_t dynamic = (uintptr_t)dynamic_region, first = (uintptr_t)context.dynamic_shared;
  Cell* cells;
  bool shared = true;
  if (address >= dynamic && address < dynamic + MAX_DYNAMIC + PAGE) {
    if (address < first || address + bytes > first + context.dynamic_bytes) stop_out_of_bounds(write, address, bytes, pc);
    cells = dynamic_cells + (address - dynamic);
  } else if (in_image(address)) {
    cells = shared_cells(address, bytes, write, pc);
  } else {
    shared = false;
    const Array* array = find_array(address, bytes);
    if (!array) stop_out_of_bounds(write, address, bytes, pc);
    (write ? stats.written_bytes : stats.read_bytes) += bytes;
    if (write && !array->writable) report("write into a const array", address, bytes, pc);
    cells = array->cells ? array->cells + (address - array->low) : nullptr;
  }
  if (!cells) return;
  const Fiber* f = context.current;
  Access me{(uint32_t)block.index + 1, (uint16_t)(f->index + 1), (uint16_t)block.epoch, (uint16_t)f->warp->sync_epoch, atomic, 0, pc};
  for (size_t i = 0; i < bytes; i++)
    (write ? check_write : check_read)(cells[i], me, address + i, bytes, shared);
}

// ---- shadows of a launch

Cell* map_cells(size_t bytes) {
  return (Cell*)mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
void forget(Cell* cells, size_t bytes) {  // whole pages only: neighbours share the others, and stamps of older blocks say nothing there
  uintptr_t low = ((uintptr_t)cells + PAGE - 1) & ~(PAGE - 1), high = (uintptr_t)(cells + bytes) & ~(PAGE - 1);
  if (low < high) madvise((void*)low, high - low, MADV_DONTNEED);
  for (char* p = (char*)cells; p < (char*)std::min(low, (uintptr_t)(cells + bytes)); p++) *p = 0;
  for (char* p = (char*)std::max(high, (uintptr_t)cells); p < (char*)(cells + bytes); p++) *p = 0;
}

void map_arrays() {
  arrays.clear();
  shadows.clear();
  for (uint64_t i = 0; i < launch->num_arrays; i++) {
    const Range& r = launch->arrays[i];
    if (r.low < r.high) arrays.push_back({r.low, r.high, r.writable != 0, nullptr});
  }
  std::sort(arrays.begin(), arrays.end(), [](const Array& a, const Array& b) {
    return a.writable != b.writable ? a.writable : a.low != b.low ? a.low < b.low : a.high > b.high;
  });
  for (const Array& a : arrays) {
    if (!a.writable) break;
    if (!shadows.empty() && a.low < shadows.back().high)
      shadows.back().high = std::max(shadows.back().high, a.high);
    else
      shadows.push_back({a.low, a.high, nullptr});
  }
  for (Shadow& s : shadows) s.cells = map_cells(s.high - s.low);
  for (Array& a : arrays)
    for (const Shadow& s : shadows)
      if (a.writable && a.low >= s.low && a.high <= s.high) a.cells = s.cells + (a.low - s.low);
  last_array = nullptr;
}

int find_runtime(dl_phdr_info* info, size_t, void*) {
  uintptr_t here = (uintptr_t)&find_runtime, low = ~0ul, high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    low = std::min<uintptr_t>(low, info->dlpi_addr + segment.p_vaddr);
    high = std::max<uintptr_t>(high, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
  }
  if (here < low || here >= high) return 0;
  runtime_low = low;
  runtime_high = high;
  return 1;
}

}  // namespace

void checks_begin_launch() {
  if (!runtime_low) dl_iterate_phdr(find_runtime, nullptr);
  if (!dynamic_cells) dynamic_cells = map_cells(MAX_DYNAMIC);
  forget(dynamic_cells, MAX_DYNAMIC);
  Cell*& image = image_cells[launch->image_low];
  if (!image) image = map_cells(launch->image_high - launch->image_low);
  this_image = image;
  for (uint64_t i = 0; i < launch->num_shared; i++)
    forget(this_image + (launch->shared[i].low - launch->image_low), launch->shared[i].high - launch->shared[i].low);
  map_arrays();
  last_shared = 0;
  num_problems = 0;
  reported.clear();
  report_length = 0;
  report_text[0] = 0;
  active = true;
}

void checks_begin_block() {}

void checks_end_launch() {
  active = false;
  for (Shadow& s : shadows) munmap(s.cells, (s.high - s.low) * sizeof(Cell));
}

int checks_report(char* text, size_t size) {
  if (!num_problems) return 0;
  snprintf(text, size, "%u problem(s)%s", num_problems, report_text);
  return 1;
}

void check_access(const void* address, size_t bytes, bool write, const void* caller) {
  if (bytes) access((uintptr_t)address, bytes, write, false, (uintptr_t)caller, 1);
}

void check_early_exit() {
  if (!active || !is_new("early exit", 0)) return;
  append("\n  __syncthreads was reached by only some threads of the block, the others have ended");
  append_thread();
}

static void undefined(const char* what, const char* file, unsigned line) {
  if (!active || !running || !is_new(what, line)) return;
  const char* slash = file ? strrchr(file, '/') : nullptr;
  append("\n  undefined behaviour: %s at %s:%u", what, slash ? slash + 1 : file ? file : "?", line);
  append_thread();
}

}  // namespace emu

// ---- hooks of -fsanitize=thread

#define HOOK extern "C" EMU_API
#define HERE (uintptr_t)__builtin_return_address(0)
#define READ(p, n, alignment) emu::access((uintptr_t)(p), n, false, false, HERE, alignment)
#define WRITE(p, n, alignment) emu::access((uintptr_t)(p), n, true, false, HERE, alignment)

HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_vptr_update(void**, void*) {}
HOOK void __tsan_vptr_read(void**) {}
HOOK void __tsan_read_range(void* p, size_t n) { if (n) READ(p, n, 1); }
HOOK void __tsan_write_range(void* p, size_t n) { if (n) WRITE(p, n, 1); }
HOOK void __tsan_atomic_thread_fence(int) {}
HOOK void __tsan_atomic_signal_fence(int) {}

#define SIZED(n)                                                           \
  HOOK void __tsan_read##n(void* p) { READ(p, n, n); }                     \
  HOOK void __tsan_write##n(void* p) { WRITE(p, n, n); }                   \
  HOOK void __tsan_read_write##n(void* p) { READ(p, n, n); WRITE(p, n, n); } \
  HOOK void __tsan_unaligned_read##n(void* p) { READ(p, n, 1); }           \
  HOOK void __tsan_unaligned_write##n(void* p) { WRITE(p, n, 1); }         \
  HOOK void __tsan_unaligned_read_write##n(void* p) { READ(p, n, 1); WRITE(p, n, 1); } \
  HOOK void __tsan_volatile_read##n(void* p) { READ(p, n, n); }            \
  HOOK void __tsan_volatile_write##n(void* p) { WRITE(p, n, n); }
SIZED(1) SIZED(2) SIZED(4) SIZED(8) SIZED(16)

#define ATOMIC(bits, T)                                                                                                   \
  static void atomic_access(const volatile T* p, bool write, uintptr_t from) {                                            \
    emu::access((uintptr_t)p, sizeof(T), write, true, from, sizeof(T));                                                   \
  }                                                                                                                       \
  HOOK T __tsan_atomic##bits##_load(const volatile T* p, int) { atomic_access(p, false, HERE); return *p; }               \
  HOOK void __tsan_atomic##bits##_store(volatile T* p, T v, int) { atomic_access(p, true, HERE); *p = v; }                \
  HOOK T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { atomic_access(p, true, HERE); T o = *p; *p = v; return o; } \
  HOOK T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { atomic_access(p, true, HERE); T o = *p; *p = o + v; return o; } \
  static int exchange_if(volatile T* p, T* expected, T v, uintptr_t from) {                                               \
    atomic_access(p, true, from);                                                                                         \
    bool same = *p == *expected;                                                                                          \
    if (same) *p = v; else *expected = *p;                                                                                \
    return same;                                                                                                          \
  }                                                                                                                       \
  HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) { return exchange_if(p, e, v, HERE); } \
  HOOK int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) { return exchange_if(p, e, v, HERE); } \
  HOOK T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T e, T v, int, int) { exchange_if(p, &e, v, HERE); return e; }
ATOMIC(8, uint8_t) ATOMIC(16, uint16_t) ATOMIC(32, uint32_t) ATOMIC(64, uint64_t)

// ---- hooks of -fsanitize=undefined: the first field of each one's data is where it is

struct Location { const char* file; unsigned line, column; };
#define UNDEFINED(name, what)                                                                                    \
  HOOK void __ubsan_handle_##name(Location* at, ...) { emu::undefined(what, at->file, at->line); }               \
  HOOK void __ubsan_handle_##name##_abort(Location* at, ...) { emu::undefined(what, at->file, at->line); }
UNDEFINED(type_mismatch_v1, "misaligned or null pointer")
UNDEFINED(pointer_overflow, "pointer overflow")
UNDEFINED(out_of_bounds, "array index out of bounds")
UNDEFINED(shift_out_of_bounds, "shift by too much or by a negative number")
UNDEFINED(add_overflow, "signed overflow")
UNDEFINED(sub_overflow, "signed overflow")
UNDEFINED(mul_overflow, "signed overflow")
UNDEFINED(negate_overflow, "signed overflow")
UNDEFINED(divrem_overflow, "division by zero")
UNDEFINED(float_cast_overflow, "float too large for the integer")
UNDEFINED(load_invalid_value, "invalid value of a bool or enum")
UNDEFINED(builtin_unreachable, "code that cannot be reached")
UNDEFINED(missing_return, "a function ends without its value")
