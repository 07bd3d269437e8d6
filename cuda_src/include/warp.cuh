// Reductions over a warp and over a block. The order of additions is fixed: equal inputs give equal bits.
#pragma once
#include "common.cuh"

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr int WARP = 32;

__device__ __forceinline__ int lane_index() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp_index() { return threadIdx.x / WARP; }
__device__ __forceinline__ int num_warps() { return (blockDim.x + WARP - 1) / WARP; }

// Every lane gets the result, with the same bits. Called by all 32 lanes.
__device__ __forceinline__ float warp_sum(float v) {
#ifdef EMU_FAST_REDUCE  // the emulator's quick build: the five shuffles in one rendezvous, same order
  return emu::warp_sum(v);
#else
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
  return v;
#endif
}

__device__ __forceinline__ float warp_max(float v) {
#ifdef EMU_FAST_REDUCE
  return emu::warp_max(v);
#else
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, offset));
  return v;
#endif
}

// Over groups of `WIDTH` neighbouring lanes (a power of two).
template <int WIDTH> __device__ __forceinline__ float group_sum(float v) {
#pragma unroll
  for (int offset = WIDTH / 2; offset; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
  return v;
}
template <int WIDTH> __device__ __forceinline__ float group_max(float v) {
#pragma unroll
  for (int offset = WIDTH / 2; offset; offset /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, offset));
  return v;
}

// Over a one-dimensional block of whole warps. `scratch`: 32 floats of shared memory, free again on return. Every thread gets
// the result.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (lane_index() == 0) scratch[warp_index()] = v;
  __syncthreads();
  v = warp_sum(lane_index() < num_warps() ? scratch[lane_index()] : 0.f);
  __syncthreads();  // the next call may write scratch
  return v;
}

__device__ __forceinline__ float block_max(float v, float* scratch) {
  v = warp_max(v);
  if (lane_index() == 0) scratch[warp_index()] = v;
  __syncthreads();
  v = warp_max(lane_index() < num_warps() ? scratch[lane_index()] : -INFINITY);
  __syncthreads();
  return v;
}
