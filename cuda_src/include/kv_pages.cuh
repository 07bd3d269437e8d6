// Rows of keys and values in KV pages. KV: the element of a page, float, __half, or u8 for GGUF's blocks of 32 numbers, whose bits
// KV_BITS gives: 8 (Q8_0: a float16 scale, 32 bytes) or 4 (Q4_0: a scale, 16 bytes; the low half of byte i is number i, the high half
// number i + 16, both plus 8).
#pragma once
#include "common.cuh"
#include "half.cuh"
#include "warp.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef KV
#define KV __half
#endif
#ifndef KV_BITS
#define KV_BITS 0
#endif

constexpr int KV_BLOCK = 32;
constexpr int KV_BLOCK_BYTES = 2 + 4 * KV_BITS;
constexpr int KV_ROW = KV_BITS ? HEAD_DIM / KV_BLOCK * KV_BLOCK_BYTES : HEAD_DIM;  // elements of a row

static_assert(!KV_BITS || (sizeof(KV) == 1 && HEAD_DIM % KV_BLOCK == 0), "whole blocks of bytes");

// Eight numbers of a row of blocks, from `column` on, a multiple of 8.
__device__ __forceinline__ void unpack_eight(float (&x)[8], const u8* row, int column) {
  const u16* words = reinterpret_cast<const u16*>(row + column / KV_BLOCK * KV_BLOCK_BYTES);
  const float d = half_bits(words[0]);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (KV_BITS == 8) {
      const u32 pair = words[1 + column % KV_BLOCK / 2 + i];
      x[2 * i] = d * (float)(i8)(pair & 255u);
      x[2 * i + 1] = d * (float)(i8)(pair >> 8);
    } else {
      const u32 pair = words[1 + column % 16 / 2 + i] >> (column % KV_BLOCK < 16 ? 0 : 4);
      x[2 * i] = d * (float)((int)(pair & 15u) - 8);
      x[2 * i + 1] = d * (float)((int)(pair >> 8 & 15u) - 8);
    }
  }
}

// Rounds 32 numbers, one a lane, and writes their block. Called by all lanes of a warp. Products and sums are not fused, so that a number
// falls on the same level everywhere. A number that is not finite makes the scale NaN; magnitudes below 1e-30 become zero.
__device__ __forceinline__ void write_block(u8* block, float x) {
  const u32 magnitude = __float_as_uint(x) & 0x7fffffffu;  // compares like |x|, NaN above all
  u32 largest = magnitude;
#pragma unroll
  for (int offset = WARP / 2; offset; offset /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
  const int first = __ffs(__ballot_sync(ALL_LANES, magnitude == largest)) - 1;
  const float extreme = __shfl_sync(ALL_LANES, x, first);
  const bool is_finite = largest < 0x7f800000u, used = is_finite && __uint_as_float(largest) >= 1e-30f;
  const float d = !is_finite ? NAN : !used ? 0.f : KV_BITS == 8 ? __uint_as_float(largest) / 127.f : extreme / -8.f;
  const float scaled = used ? __fmul_rn(x, 1.f / d) : 0.f;
  if (lane_index() == 0) *reinterpret_cast<u16*>(block) = __half_as_ushort(from_float<f16>(d));
  if (KV_BITS == 8) {
    block[2 + lane_index()] = (u8)(i8)__float2int_rn(scaled);
  } else {
    const u32 level = (u32)fminf(__fadd_rn(scaled, 8.5f), 15.f), other = __shfl_down_sync(ALL_LANES, level, 16);
    if (lane_index() < 16) block[2 + lane_index()] = (u8)(level | other << 4);
  }
}
