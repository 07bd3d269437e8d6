// Recurrent states in snapshots, in the types of memory/layout.py: SNAPSHOT 0 f32, 1 bf16, 2 q8.
//
// q8: a value column (KEY_DIM numbers of a head, contiguous here) has the scale m / 127, m being its largest magnitude, and the bytes
// round(x * (127 / m)), ties to even. A number that is not finite makes the scale, and so the restored column, NaN; m below 1e-30 gives
// zeros. A layer has the bytes of all columns, then their scales.
#pragma once
#include "common.cuh"
#include "half.cuh"
#include "warp.cuh"

#ifndef SNAPSHOT
#define SNAPSHOT 0
#endif

__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }  // compares like |x|, NaN above all

// Over groups of WIDTH neighbouring lanes; called by all lanes of the warp.
template <int WIDTH> __device__ __forceinline__ u32 group_largest(u32 v) {
#pragma unroll
  for (int offset = WIDTH / 2; offset; offset /= 2) v = max(v, __shfl_xor_sync(ALL_LANES, v, offset));
  return v;
}

// How a column is rounded, from its largest magnitude.
struct Rounding {
  float scale, inverse;
  bool used;

  __device__ __forceinline__ explicit Rounding(u32 most) {
    const float largest = __uint_as_float(most);
    const bool is_finite = most < 0x7f800000u;
    used = is_finite && largest >= 1e-30f;
    inverse = used ? 127.f / largest : 0.f;
    scale = used ? largest / 127.f : is_finite ? 0.f : NAN;
  }
  __device__ __forceinline__ i8 byte(float x) const { return (i8)__float2int_rn(used ? x * inverse : 0.f); }
};

// Four neighbouring numbers of a column as packed bytes, or as two words of bf16.
__device__ __forceinline__ u32 packed_bytes(const Rounding& rounding, float4 x) {
  const u32 a = (u8)rounding.byte(x.x), b = (u8)rounding.byte(x.y), c = (u8)rounding.byte(x.z), d = (u8)rounding.byte(x.w);
  return a | b << 8 | c << 16 | d << 24;
}
__device__ __forceinline__ u32 packed_bf16(float first, float second) {
  return __bfloat16_as_ushort(from_float<bf16>(first)) | (u32)__bfloat16_as_ushort(from_float<bf16>(second)) << 16;
}

// One number of a column: `index` counts from the layer's first number, `column` from its first column. `part`: the layer in a snapshot.
__device__ __forceinline__ void put_number(float* part, i64 index, float x, const Rounding& rounding) {
  if (SNAPSHOT == 0) part[index] = x;
  else if (SNAPSHOT == 1) reinterpret_cast<bf16*>(part)[index] = from_float<bf16>(x);
  else reinterpret_cast<i8*>(part)[index] = rounding.byte(x);
}
