// Barriers and warp collectives. A collective is one rendezvous: each lane leaves a pointer to its operand, the last one
// computes for all.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include "core.h"

static inline void __syncthreads() { emu::syncthreads(); }
static inline int __syncthreads_count(int predicate) { return emu::syncthreads_count(predicate != 0); }
static inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
static inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::syncwarp(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

namespace emu {

template <class F> static inline void for_lanes(unsigned mask, F f) {
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

template <class T> struct Shuffle { T value, result; int source; };

template <class T> static void shuffle_all(void** operands, unsigned mask) {
  for_lanes(mask, [&](int reader) {
    auto* mine = (Shuffle<T>*)operands[reader];
    if (!(mask >> mine->source & 1)) fail("lane %d shuffles from lane %d, which does not take part", reader, mine->source);
    mine->result = ((Shuffle<T>*)operands[mine->source])->value;
  });
}
template <class T> static inline T shuffle(unsigned mask, T value, int source, const char* name) {
  Shuffle<T> operand{value, value, source};
  collective(mask, shuffle_all<T>, &operand, name);
  return operand.result;
}

struct Ballot { bool predicate; unsigned result; };
static inline void ballot_all(void** operands, unsigned mask) {
  unsigned votes = 0;
  for_lanes(mask, [&](int l) { votes |= (unsigned)((Ballot*)operands[l])->predicate << l; });
  for_lanes(mask, [&](int l) { ((Ballot*)operands[l])->result = votes; });
}

template <class T> static void match_all_lanes(void** operands, unsigned mask) {
  for_lanes(mask, [&](int l) {
    auto* mine = (Shuffle<T>*)operands[l];
    mine->source = 0;
    for_lanes(mask, [&](int other) {
      if (!memcmp(&((Shuffle<T>*)operands[other])->value, &mine->value, sizeof(T))) mine->source |= 1u << other;
    });
  });
}

enum { ADD, MAX, MIN, AND, OR, XOR };
template <int OP, class T> static inline T combine(T a, T b) {
  if constexpr (OP == ADD) return a + b;
  if constexpr (OP == MAX) return std::max(a, b);
  if constexpr (OP == MIN) return std::min(a, b);
  if constexpr (OP == AND) return a & b;
  if constexpr (OP == OR) return a | b;
  if constexpr (OP == XOR) return a ^ b;
}
template <int OP, class T> static void reduce_all(void** operands, unsigned mask) {
  T total = *(T*)operands[__builtin_ctz(mask)];
  for_lanes(mask & (mask - 1), [&](int l) { total = combine<OP>(total, *(T*)operands[l]); });
  for_lanes(mask, [&](int l) { *(T*)operands[l] = total; });
}
template <int OP, class T> static inline T reduce(unsigned mask, T value, const char* name) {
  collective(mask, reduce_all<OP, T>, &value, name);
  return value;
}

// A whole butterfly of shuffles in one rendezvous, in the same order of additions (include/warp.cuh, fast build only).
template <bool IS_MAX> static void butterfly_all(void** operands, unsigned mask) {
  float now[32], next[32];
  if (mask != ~0u) fail("a warp reduction by %08x, not by all lanes", mask);
  for (int l = 0; l < 32; l++) now[l] = *(float*)operands[l];
  for (int offset = 16; offset; offset >>= 1) {
    for (int l = 0; l < 32; l++) next[l] = IS_MAX ? fmaxf(now[l], now[l ^ offset]) : now[l] + now[l ^ offset];
    memcpy(now, next, sizeof now);
  }
  for (int l = 0; l < 32; l++) *(float*)operands[l] = now[l];
}
static inline float warp_sum(float value) { collective(~0u, butterfly_all<false>, &value, "warp_sum"); return value; }
static inline float warp_max(float value) { collective(~0u, butterfly_all<true>, &value, "warp_max"); return value; }

}  // namespace emu

template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emu::shuffle(mask, value, (emu::lane() & ~(width - 1)) | (source & (width - 1)), "__shfl_sync");
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int l = emu::lane(), inside = l & (width - 1);
  return emu::shuffle(mask, value, inside + (int)delta < width ? l + (int)delta : l, "__shfl_down_sync");
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int l = emu::lane(), inside = l & (width - 1);
  return emu::shuffle(mask, value, inside >= (int)delta ? l - (int)delta : l, "__shfl_up_sync");
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  int l = emu::lane(), source = l ^ lanes;
  return emu::shuffle(mask, value, (source & ~(width - 1)) > (l & ~(width - 1)) ? l : source, "__shfl_xor_sync");
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  emu::Ballot operand{predicate != 0, 0};
  emu::collective(mask, emu::ballot_all, &operand, "__ballot_sync");
  return operand.result;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value) {
  emu::Shuffle<T> operand{value, value, 0};
  emu::collective(mask, emu::match_all_lanes<T>, &operand, "__match_any_sync");
  return (unsigned)operand.source;
}
#if __CUDA_ARCH__ >= 800  // as in CUDA; int and unsigned only
#define EMU_REDUCE(name, OP)                                                                                                   \
  static inline int name(unsigned mask, int value) { return emu::reduce<emu::OP>(mask, value, #name); }                        \
  static inline unsigned name(unsigned mask, unsigned value) { return emu::reduce<emu::OP>(mask, value, #name); }
EMU_REDUCE(__reduce_add_sync, ADD)
EMU_REDUCE(__reduce_max_sync, MAX)
EMU_REDUCE(__reduce_min_sync, MIN)
EMU_REDUCE(__reduce_and_sync, AND)
EMU_REDUCE(__reduce_or_sync, OR)
EMU_REDUCE(__reduce_xor_sync, XOR)
#undef EMU_REDUCE
#endif
