// (token, rank) pairs in the order of their experts, so that each expert's rows are contiguous. Stable, and without atomics that could
// change the order: pair t * k + r comes before later pairs of the same expert. n = T k pairs, E experts.
//
//  moe_sort_few                           up to FEW pairs in one block
//  moe_count, moe_offsets, moe_scatter    any number, CHUNK pairs a block (moe_offsets: one block)
//
// offsets [E + 1]: expert e has sorted[offsets[e] .. offsets[e + 1]); the last is the number of pairs that have an expert. sorted [n]:
// pairs, then -1. positions [n] (or nullptr): index of each pair in `sorted`, -1 for pairs without an expert (padding).
#include "warp.cuh"

constexpr int MOST_EXPERTS = 1024;
constexpr int FEW = 2048;
constexpr int CHUNK = 1024;
constexpr int THREADS = 512;

// The sum over lower lanes.
__device__ __forceinline__ int warp_prefix_before(int v) {
  int running = v;
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const int below = __shfl_up_sync(ALL_LANES, running, offset);
    if (lane_index() >= offset) running += below;
  }
  return running - v;
}

__device__ __forceinline__ void count_pairs(int* counts, const int* experts, int begin, int end, int E) {
  for (int e = threadIdx.x; e < E; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x)
    if (experts[i] >= 0) atomicAdd(&counts[experts[i]], 1);
  __syncthreads();
}

// One warp: turns counts into the first place of each expert. Returns the total.
__device__ __forceinline__ int counts_to_offsets(int* counts, int E) {
  const int share = (E + WARP - 1) / WARP, begin = min(E, lane_index() * share), end = min(E, begin + share);
  int sum = 0;
  for (int e = begin; e < end; e++) sum += counts[e];
  const int before = warp_prefix_before(sum);
  int running = before;
  for (int e = begin; e < end; e++) {
    const int count = counts[e];
    counts[e] = running;
    running += count;
  }
  return __shfl_sync(ALL_LANES, running, WARP - 1);
}

// One warp, in order; next[e]: place of the next pair of expert e.
__device__ __forceinline__ void place_pairs(int* sorted, int* positions, int* next, const int* experts, int begin, int end) {
  for (int start = begin; start < end; start += WARP) {
    const int i = start + lane_index(), expert = i < end ? experts[i] : -1;
    const u32 peers = __match_any_sync(ALL_LANES, expert), below = peers & ((1u << lane_index()) - 1);
    const int at = expert >= 0 ? next[expert] + __popc(below) : -1;
    if (expert >= 0) sorted[at] = i;
    if (positions && i < end) positions[i] = at;
    __syncwarp();
    if (expert >= 0 && !below) next[expert] += __popc(peers);
    __syncwarp();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
moe_sort_few(int* __restrict__ offsets, int* __restrict__ sorted, int* __restrict__ positions, const int* __restrict__ experts, int n, int E) {
  __shared__ int next[MOST_EXPERTS];
  __shared__ int total;
  count_pairs(next, experts, 0, n, E);
  if (warp_index() == 0) {
    const int all = counts_to_offsets(next, E);
    if (lane_index() == 0) total = all;
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= E; e += blockDim.x) offsets[e] = e < E ? next[e] : total;
  for (int i = total + threadIdx.x; i < n; i += blockDim.x) sorted[i] = -1;
  __syncthreads();
  if (warp_index() == 0) place_pairs(sorted, positions, next, experts, 0, n);
}

// counts [chunks][E]
extern "C" __global__ void __launch_bounds__(THREADS)
moe_count(int* __restrict__ counts, const int* __restrict__ experts, int n, int E) {
  __shared__ int mine[MOST_EXPERTS];
  const int begin = blockIdx.x * CHUNK;
  count_pairs(mine, experts, begin, min(n, begin + CHUNK), E);
  for (int e = threadIdx.x; e < E; e += blockDim.x) counts[(i64)blockIdx.x * E + e] = mine[e];
}

// Turns counts into the first place of each chunk's pairs, relative to the expert's first.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_offsets(int* __restrict__ offsets, int* __restrict__ sorted, int* __restrict__ counts, int num_chunks, int n, int E) {
  __shared__ int totals[MOST_EXPERTS];
  __shared__ int total;
  for (int e = threadIdx.x; e < E; e += blockDim.x) {
    int running = 0;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
      const int count = counts[(i64)chunk * E + e];
      counts[(i64)chunk * E + e] = running;
      running += count;
    }
    totals[e] = running;
  }
  __syncthreads();
  if (warp_index() == 0) {
    const int all = counts_to_offsets(totals, E);
    if (lane_index() == 0) total = all;
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= E; e += blockDim.x) offsets[e] = e < E ? totals[e] : total;
  for (int i = total + threadIdx.x; i < n; i += blockDim.x) sorted[i] = -1;
}

// A warp per chunk.
extern "C" __global__ void __launch_bounds__(32)
moe_scatter(int* __restrict__ sorted, int* __restrict__ positions, const int* __restrict__ offsets, const int* __restrict__ counts,
            const int* __restrict__ experts, int n, int E) {
  __shared__ int next[MOST_EXPERTS];
  const int begin = blockIdx.x * CHUNK;
  for (int e = threadIdx.x; e < E; e += WARP) next[e] = offsets[e] + counts[(i64)blockIdx.x * E + e];
  __syncwarp();
  place_pairs(sorted, positions, next, experts, begin, min(n, begin + CHUNK));
}
