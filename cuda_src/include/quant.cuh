// Shared by all block formats (each is a file of quant/): integer dot products and unaligned loads of 32 bits.
#pragma once
#include "half.cuh"

// c + a . b over four signed bytes.
__device__ __forceinline__ int dot4(int a, int b, int c) { return __dp4a(a, b, c); }

// Blocks of an odd number of 16-bit words (Q8_0: 34 bytes, Q6_K: 210) are aligned to 2 bytes only.
__device__ __forceinline__ u32 load_u32_align2(const void* p) {
  const u16* halves = reinterpret_cast<const u16*>(p);
  return (u32)halves[0] | (u32)halves[1] << 16;
}
__device__ __forceinline__ u32 load_u32_align1(const void* p) {
  const u8* bytes = reinterpret_cast<const u8*>(p);
  return (u32)bytes[0] | (u32)bytes[1] << 8 | (u32)bytes[2] << 16 | (u32)bytes[3] << 24;
}

// Activations quantized for dp4a, 32 values a block: x ~ scale * q. `sum` is scale * (q[0] + ... + q[31]), for formats with a
// minimum.
struct alignas(8) Q8Block {
  float scale, sum;
  i8 q[32];
};
