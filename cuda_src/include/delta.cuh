// Shared by the kernels of a Gated DeltaNet layer (docs/model_math.md). K = num_key_heads * KEY_DIM, V = num_value_heads * VALUE_DIM; the
// channels of the convolution are q | k | v, 2 K + V of them.
//
// A recurrent state is [num_value_heads][VALUE_DIM][KEY_DIM], key dimension fastest ("vk"): a value column is contiguous, and columns do
// not depend on each other. The stored convolution rows are [TAPS - 1][channels], raw, oldest first. Both are part of a live row of
// `state_elements` floats, or of a snapshot of `snapshot_elements` words; the pointers are at the layer's part of row or snapshot 0.
#pragma once
#include "common.cuh"
#include "warp.cuh"

#ifndef KEY_DIM
#define KEY_DIM 128
#endif
#ifndef VALUE_DIM
#define VALUE_DIM 128
#endif
#ifndef TAPS
#define TAPS 4
#endif
#ifndef GROUPED  // value head h uses key head h / r (qwen3next) rather than h % num_key_heads (qwen35)
#define GROUPED 0
#endif

static_assert(KEY_DIM % 16 == 0 && KEY_DIM <= 128 && VALUE_DIM % 16 == 0 && VALUE_DIM <= 256, "head sizes are multiples of 16");
static_assert(TAPS >= 2, "a convolution over one token keeps no rows");

constexpr int CHUNK = 64;  // most tokens of a chunk of the prefill form
// The part of a chunk of one value head that does not depend on the state; written by delta_chunk, read by delta_scan.
constexpr int CHUNK_MATRIX = CHUNK * CHUNK;
constexpr int CHUNK_WORK = 2 * CHUNK_MATRIX + 2 * CHUNK;

__device__ __forceinline__ int key_head_of(int head, int num_key_heads, int num_value_heads) {
  return GROUPED ? head / (num_value_heads / num_key_heads) : head % num_key_heads;
}

// The sequence of a token: the last one that starts at or before it. cu_seqlens[0] <= token < cu_seqlens[num_sequences].
__device__ __forceinline__ int sequence_of(const int* cu_seqlens, int num_sequences, int token) {
  int low = 0, high = num_sequences;  // cu_seqlens[low] <= token < cu_seqlens[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle] <= token) low = middle;
    else high = middle;
  }
  return low;
}

// The raw channel of the token `index` after the first of its sequence; negative: a stored row.
__device__ __forceinline__ float raw_value(const float* raw, const float* kept, int channels, int first, int index, int channel) {
  return index >= 0 ? raw[(i64)(first + index) * channels + channel] : kept[(i64)(TAPS - 1 + index) * channels + channel];
}

// Convolution and SiLU of one channel at one token; taps [channels][TAPS], the last for the token itself.
__device__ __forceinline__ float convolved(const float* raw, const float* kept, const float* taps, int channels, int first, int index,
                                           int channel) {
  float sum = 0.f;
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
    sum = fmaf(taps[(i64)channel * TAPS + tap], raw_value(raw, kept, channels, first, index - (TAPS - 1) + tap, channel), sum);
  return silu(sum);
}

// The scale of a q or k head: one over the L2 norm, and for q also 1 / sqrt(KEY_DIM).
__device__ __forceinline__ float head_scale(float squares, float epsilon, bool is_query) {
  const float norm = 1.f / sqrtf(squares + epsilon);
  return is_query ? norm * (1.f / sqrtf((float)KEY_DIM)) : norm;
}

// The logarithm of the decay, <= 0.
__device__ __forceinline__ float log_decay(float alpha, float a, float dt_bias) { return a * softplus(alpha + dt_bias); }

__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ void store4(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
// x * scale + y * factor
__device__ __forceinline__ float4 blend4(float4 x, float scale, float4 y, float factor) {
  return make_float4(fmaf(y.x, factor, x.x * scale), fmaf(y.y, factor, x.y * scale), fmaf(y.z, factor, x.z * scale),
                     fmaf(y.w, factor, x.w * scale));
}
