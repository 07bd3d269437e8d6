// Small kernels for the tests of the emulated device.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(64) add(float* y, const float* x, float value, int n) {
  i64 i = global_thread();
  if (i < n) y[i] = x[i] + value;
}

// Which thread ran when: each takes a number.
extern "C" __global__ void __launch_bounds__(64) number(int* turns, int* counter) { turns[global_thread()] = atomicAdd(counter, 1); }

extern "C" __global__ void __launch_bounds__(2 * 32) bounded(int* y) { y[threadIdx.x] = 1; }

extern "C" __global__ void fixed_shared(float* y) {
  __shared__ float s[8];
  y[threadIdx.x] = s[threadIdx.x];
}
