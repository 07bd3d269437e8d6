// Selection from one row of numbers by a block of whole warps: the largest ones, or the first at which the running sum passes a mark.
//
// Every decision is made on integers: values by their bits, weights in fixed point. Integer sums have no order, so the outcome
// does not depend on block size, thread order or other rows, although atomics fill the histograms.
//
// A "source" has `value(i)` and `id(i)`, ids ascending in i. "Better" means larger, among equals the lower id.
#pragma once
#include "warp.cuh"

constexpr u32 NOT_FINITE = 0xffffffffu;  // an order key that only NaN could have
constexpr int ALL_IDS = 0x7fffffff;
constexpr int LISTED = 2048;    // most candidates in shared memory
constexpr int NUM_BINS = 1024;  // of the rough histogram of distances below the best
constexpr float BINS_PER_UNIT = 8.f;

// A number that orders as the float does; -0 and 0 are equal.
__device__ __forceinline__ u32 order_key(float value) {
  const u32 bits = __float_as_uint(value);
  if (bits == 0x80000000u) return bits;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float key_value(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
__device__ __forceinline__ bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

// Larger means better. All ones if the value is not finite, which any maximum keeps.
__device__ __forceinline__ u64 ranked(float value, int id) { return (u64)order_key(value) << 32 | (u32)~id; }
__device__ __forceinline__ int ranked_id(u64 rank) { return (int)~(u32)rank; }
__device__ __forceinline__ float ranked_value(u64 rank) { return key_value((u32)(rank >> 32)); }

struct WholeRow {
  const float* values;
  __device__ __forceinline__ float value(int i) const { return values[i]; }
  __device__ __forceinline__ int id(int i) const { return i; }
};
struct Candidates {
  const float* values;
  const int* ids;
  __device__ __forceinline__ float value(int i) const { return values[i]; }
  __device__ __forceinline__ int id(int i) const { return ids[i]; }
};

// A selection from a row: all values above a key, and of the values at the key those with ids up to a limit.
struct Cut {
  u32 key;
  int last_id;
  __device__ __forceinline__ bool keeps(float value, int id) const {
    const u32 mine = order_key(value);
    return mine > key || (mine == key && id <= last_id);
  }
};
__device__ __forceinline__ Cut keep_all() { return Cut{0u, ALL_IDS}; }

struct SelectScratch {
  u64 bins[NUM_BINS];
  u64 parts[WARP];
  u64 left;
  int found;
  float values[LISTED];
  int ids[LISTED];
};

__device__ __forceinline__ u64 warp_sum_u64(u64 v) {
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
  return v;
}
__device__ __forceinline__ u64 warp_max_u64(u64 v) {
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2) {
    const u64 other = __shfl_xor_sync(ALL_LANES, v, offset);
    v = v < other ? other : v;
  }
  return v;
}
// The sum over this lane and those below it.
__device__ __forceinline__ u64 warp_prefix_u64(u64 v) {
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const u64 below = __shfl_up_sync(ALL_LANES, v, offset);
    if (lane_index() >= offset) v += below;
  }
  return v;
}

// Every thread gets the result; scratch is free again on return.
__device__ __forceinline__ u64 block_sum_u64(u64 v, u64* parts) {
  v = warp_sum_u64(v);
  if (lane_index() == 0) parts[warp_index()] = v;
  __syncthreads();
  v = warp_sum_u64(lane_index() < num_warps() ? parts[lane_index()] : 0);
  __syncthreads();
  return v;
}
__device__ __forceinline__ u64 block_max_u64(u64 v, u64* parts) {
  v = warp_max_u64(v);
  if (lane_index() == 0) parts[warp_index()] = v;
  __syncthreads();
  v = warp_max_u64(lane_index() < num_warps() ? parts[lane_index()] : 0);
  __syncthreads();
  return v;
}

// Each warp owns a run of indices, which keeps the order without a barrier per step.
struct Segment {
  int begin, end;
};
__device__ __forceinline__ Segment segment_of_warp(int n) {
  const int size = (int)ceil_div(ceil_div(n, WARP), num_warps()) * WARP;
  const int begin = min(n, warp_index() * size);
  return Segment{begin, min(n, begin + size)};
}

// The first index at which the running sum of weight(i) is above mark_of(sum of all), which must be below the sum of all.
template <class Weight, class Mark> __device__ __forceinline__ int first_above(int n, Weight weight, Mark mark_of, SelectScratch& scratch) {
  const Segment mine = segment_of_warp(n);
  u64 sum = 0;
  for (int i = mine.begin + lane_index(); i < mine.end; i += WARP) sum += weight(i);
  sum = warp_sum_u64(sum);
  if (lane_index() == 0) scratch.parts[warp_index()] = sum;
  __syncthreads();
  u64 before = 0, total = 0;
  for (int warp = 0; warp < num_warps(); warp++) {
    if (warp == warp_index()) before = total;
    total += scratch.parts[warp];
  }
  const u64 mark = mark_of(total);
  if (before <= mark && mark < before + sum) {  // one warp
    for (int start = mine.begin;; start += WARP) {
      const int i = start + lane_index();
      const u64 running = before + warp_prefix_u64(i < mine.end ? weight(i) : 0);
      const u32 above = __ballot_sync(ALL_LANES, running > mark);
      if (above) {
        if (lane_index() == 0) scratch.found = start + __ffs((int)above) - 1;
        break;
      }
      before = __shfl_sync(ALL_LANES, running, WARP - 1);
    }
  }
  __syncthreads();
  const int found = scratch.found;
  __syncthreads();
  return found;
}

// The bin, counted from `first` in steps of `step` (1 or -1), in which the running sum reaches `target`. `target` is then reduced
// by the sum of the earlier bins. All bins together must reach it. Every thread gets the bin.
__device__ __forceinline__ int reaching_bin(SelectScratch& scratch, int num_bins, int first, int step, u64& target) {
  if (warp_index() == 0) {
    const int share = num_bins / WARP;
    u64 sum = 0;
    for (int i = 0; i < share; i++) sum += scratch.bins[first + step * (lane_index() * share + i)];
    const u64 running = warp_prefix_u64(sum);
    const u32 reached = __ballot_sync(ALL_LANES, running >= target);
    if (reached && lane_index() == __ffs((int)reached) - 1) {
      u64 left = target - (running - sum);
      int bin = first + step * lane_index() * share;
      for (; scratch.bins[bin] < left; bin += step) left -= scratch.bins[bin];
      scratch.found = bin;
      scratch.left = left;
    }
  }
  __syncthreads();
  const int bin = scratch.found;
  target = scratch.left;
  __syncthreads();
  return bin;
}

__device__ __forceinline__ void clear_bins(SelectScratch& scratch, int num_bins) {
  for (int i = threadIdx.x; i < num_bins; i += blockDim.x) scratch.bins[i] = 0;
  __syncthreads();
}

// The fewest best whose weights reach `target` (at least 1, at most the sum of all weights). Equal values with a weight
// have the same weight, and those without one have the highest ids.
template <class Source, class Weight>
__device__ __forceinline__ Cut cut_reaching(const Source& source, int n, Weight weight, u64 target, SelectScratch& scratch) {
  u32 key = 0, known = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear_bins(scratch, 256);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      const u32 mine = order_key(source.value(i));
      if ((mine & known) != key) continue;
      const u64 w = weight(i);
      if (w) atomicAdd(&scratch.bins[mine >> shift & 255], w);
    }
    __syncthreads();
    key |= (u32)reaching_bin(scratch, 256, 255, -1, target) << shift;
    known |= 255u << shift;
  }
  auto equal = [&](int i) -> u64 { return order_key(source.value(i)) == key ? weight(i) : 0; };
  const int last = first_above(n, equal, [target](u64) { return target - 1; }, scratch);
  return Cut{key, source.id(last)};
}

// Distance of a value below the best, in bins.
__device__ __forceinline__ int bin_of(float value, float best) { return (int)fminf((best - value) * BINS_PER_UNIT, (float)(NUM_BINS - 1)); }

// Fills the rough histogram. Near values share a bin, but the lanes of a warp rarely do, as they would with the leading bits.
template <class Weight> __device__ __forceinline__ void fill_bins(const float* row, int n, float best, Weight weight, SelectScratch& scratch) {
  clear_bins(scratch, NUM_BINS);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const u64 w = weight(i);
    if (w) atomicAdd(&scratch.bins[bin_of(row[i], best)], w);
  }
  __syncthreads();
}

// Lists the selected values in the order of ids and returns their number; more than LISTED are not listed.
template <class Wanted> __device__ __forceinline__ int list_candidates(const float* row, int n, Wanted wanted, SelectScratch& scratch) {
  const Segment mine = segment_of_warp(n);
  int count = 0;
  for (int start = mine.begin; start < mine.end; start += WARP) {
    const int i = start + lane_index();
    count += __popc(__ballot_sync(ALL_LANES, i < mine.end && wanted(i)));
  }
  if (lane_index() == 0) scratch.parts[warp_index()] = (u64)count;
  __syncthreads();
  int total = 0, place = 0;
  for (int warp = 0; warp < num_warps(); warp++) {
    if (warp == warp_index()) place = total;
    total += (int)scratch.parts[warp];
  }
  if (total <= LISTED) {
    for (int start = mine.begin; start < mine.end; start += WARP) {
      const int i = start + lane_index();
      const bool take = i < mine.end && wanted(i);
      const u32 takers = __ballot_sync(ALL_LANES, take);
      const int at = place + __popc(takers & ((1u << lane_index()) - 1));
      if (take) scratch.values[at] = row[i], scratch.ids[at] = i;
      place += __popc(takers);
    }
  }
  __syncthreads();
  return total;
}
