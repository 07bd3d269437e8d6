// One mistake a kernel, and one kernel without. x[512], y[512]; two blocks of 256 threads, each reversing its half unless said otherwise.
#include "common.cuh"
#include "ptx.cuh"

#define BEGIN                                     \
  const int t = threadIdx.x, at = blockIdx.x * 256; \
  (void)n;

extern "C" __global__ void __launch_bounds__(256) correct(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t] = x[at + t];
  __syncthreads();
  y[at + t] = s[255 - t];
}

extern "C" __global__ void __launch_bounds__(256) no_barrier_before_read(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t] = x[at + t];
  y[at + t] = s[255 - t];
}

extern "C" __global__ void __launch_bounds__(256) no_barrier_before_write(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  float sum = 0.f;
  for (int i = 0; i < 4; i++) {
    s[t] = x[at + t] * (i + 1);
    __syncthreads();
    sum += s[255 - t];
  }
  y[at + t] = sum;
}

// A reduction as it was written when the lanes of a warp ran in step.
extern "C" __global__ void __launch_bounds__(256) no_syncwarp(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t] = x[at + t];
  __syncthreads();
  for (int offset = 16; offset; offset /= 2)
    if (t % 32 < offset) s[t] += s[t + offset];
  __syncthreads();
  y[at + t] = s[t / 32 * 32];
}

extern "C" __global__ void __launch_bounds__(256) shuffle_as_barrier(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t] = x[at + t];
  int other = __shfl_xor_sync(0xffffffffu, t, 1);
  y[at + t] = s[other];
}

extern "C" __global__ void __launch_bounds__(256) shared_one_too_far(const float* x, float* y, int n) {
  __shared__ float s[256], next[256];
  BEGIN
  next[t] = 0.f;
  s[t + 1] = x[at + t];
  __syncthreads();
  y[at + t] = s[255 - t + (t == 255)] + next[t];
}

extern "C" __global__ void __launch_bounds__(256) shared_far_out(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t + 40 * (t == 255)] = x[at + t];
  __syncthreads();
  y[at + t] = s[(255 - t) % 255];
}

// Launched with 1008 bytes.
extern "C" __global__ void __launch_bounds__(256) dynamic_shared_too_small(const float* x, float* y, int n) {
  DYNAMIC_SHARED(float, s);
  BEGIN
  s[t] = x[at + t];
  __syncthreads();
  y[at + t] = s[255 - t];
}

extern "C" __global__ void __launch_bounds__(256) write_one_too_far(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i + 1] = x[i];
}

extern "C" __global__ void __launch_bounds__(256) read_one_too_far(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i + 1] * 0.f;
}

extern "C" __global__ void __launch_bounds__(256) read_far_out(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i + 5000] * 0.f;
}

extern "C" __global__ void __launch_bounds__(256) misaligned_vector(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (4 * i + 5 < n) {
    float4 v = *reinterpret_cast<const float4*>(x + 4 * i + 1);
    y[4 * i] = v.x + v.w;
  }
}

extern "C" __global__ void __launch_bounds__(256) shared_never_written(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  if (t < 200) s[t] = x[at + t];
  __syncthreads();
  y[at + t] = s[255 - t];
}

extern "C" __global__ void __launch_bounds__(256) barrier_in_a_branch(const float* x, float* y, int n) {
  __shared__ float s[256];
  BEGIN
  s[t] = x[at + t];
  if (t < 128) __syncthreads();
  y[at + t] = s[255 - t];
}

extern "C" __global__ void __launch_bounds__(256) shuffle_in_a_branch(const float* x, float* y, int n) {
  BEGIN
  float v = x[at + t];
  if (t & 1) v = __shfl_xor_sync(0xffffffffu, v, 2);
  y[at + t] = v;
}

extern "C" __global__ void __launch_bounds__(256) return_before_shuffle(const float* x, float* y, int n) {
  BEGIN
  if (t % 32 == 31) return;
  y[at + t] = __shfl_xor_sync(0xffffffffu, x[at + t], 1);
}

extern "C" __global__ void __launch_bounds__(256) shuffle_from_outside_the_mask(const float* x, float* y, int n) {
  BEGIN
  float v = x[at + t];
  if (t % 32 < 16) v = __shfl_sync(0x0000ffffu, v, 20);
  y[at + t] = v;
}

extern "C" __global__ void __launch_bounds__(256) different_masks(const float* x, float* y, int n) {
  BEGIN
  y[at + t] = __shfl_xor_sync(t & 1 ? 0xffffffffu : 0xfffffffdu, x[at + t], 4);
}

// Two sequences that were given one state slot.
extern "C" __global__ void __launch_bounds__(256) blocks_share_a_slot(const float* x, float* y, int n) {
  BEGIN
  y[t] = y[t] * 0.5f + x[at + t];
}

extern "C" __global__ void __launch_bounds__(256) write_into_const(const float* x, float* y, int n) {
  BEGIN
  const_cast<float*>(x)[at + t] = 0.f;
  y[at + t] = 0.f;
}

extern "C" __global__ void __launch_bounds__(256) local_array_too_small(const float* x, float* y, int n) {
  float a[8];
  BEGIN
  for (int i = 0; i < 8; i++) a[i] = x[at + (t + i) % 256];
  y[at + t] = a[(n + t) % 9];
}

extern "C" __global__ void __launch_bounds__(256) signed_overflow(const float* x, float* y, int n) {
  BEGIN
  int large = n * 4194304 + t;
  y[at + t] = x[at + t] + (large & 1);
}

extern "C" __global__ void __launch_bounds__(256) negative_shift(const float* x, float* y, int n) {
  BEGIN
  y[at + t] = x[at + t] + (float)(1 << (t - 10) & 1);
}

extern "C" __global__ void __launch_bounds__(256) divides_by_zero(const float* x, float* y, int n) {
  BEGIN
  y[at + t] = x[at + t] + (float)(n / (t - 10));
}

extern "C" __global__ void __launch_bounds__(256) copy_not_waited_for(const float* x, float* y, int n) {
  __shared__ __align__(16) float s[256];
  BEGIN
  if (t < 64) copy_async_16(s + 4 * t, x + at + 4 * t);
  copy_async_commit();
  __syncthreads();
  y[at + t] = s[255 - t];
  copy_async_wait<0>();
}

extern "C" __global__ void __launch_bounds__(256) copy_never_waited_for(const float* x, float* y, int n) {
  __shared__ __align__(16) float s[256];
  BEGIN
  if (t < 64) copy_async_16(s + 4 * t, x + at + 4 * t);
  y[at + t] = x[at + 255 - t];
}

extern "C" __global__ void __launch_bounds__(256) stack_overflow(const float* x, float* y, int n) {
  float a[80000];
  BEGIN
  for (int i = 0; i < 80000; i++) a[i] = x[t] * i;
  y[at + t] = a[n * 7 % 80000];
}

extern "C" __global__ void __launch_bounds__(256) null_pointer(const float* x, float* y, int n) {
  float* p = n > 0 ? nullptr : y;
  p[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(256) never_ends(const float* x, volatile float* y, int n) {
  BEGIN
  while (x[t] < 1e30f) y[at + t] = y[at + t] + 1.f;
}

extern "C" __global__ void __launch_bounds__(256) never_ends_with_barriers(const float* x, float* y, int n) {
  BEGIN
  while (x[t] < 1e30f) __syncthreads();
}

// Not on any GPU: blocks need not run at the same time.
extern "C" __global__ void __launch_bounds__(256) waits_for_another_block(const float* x, volatile int* flag, int n) {
  if (blockIdx.x == 0)
    while (*flag != 1) n++;
  else
    *flag = 1;
}
