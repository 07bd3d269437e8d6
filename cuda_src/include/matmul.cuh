// Shared by the matrix kernels: how a finished value is written to the output.
#pragma once
#include "common.cuh"

// `other` is [T, R] like the output, and may be the output itself.
enum { STORE = 0, ADD = 1, GATE = 2 };  // out = v; out = other + v; out = silu(other) * v

__device__ __forceinline__ void finish(float* out, const float* other, i64 at, float v, int mode) {
  out[at] = mode == ADD ? other[at] + v : mode == GATE ? silu(other[at]) * v : v;
}
