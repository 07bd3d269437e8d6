// Q5_0: half d, 32 fifth bits, 32 halves of bytes (j and j + 16 in byte j), offset 16. 22 bytes.
#pragma once
#include "blocks.cuh"

// The 32 numbers 0 .. 31 of 16 bytes and of the word of fifth bits.
__device__ __forceinline__ void five_bits(u32 (&q)[8], const u32 (&packed)[4], u32 fifth) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    q[i] = packed[i] & 0x0f0f0f0fu | spread_bits(fifth >> 4 * i) << 4;
    q[4 + i] = packed[i] >> 4 & 0x0f0f0f0fu | spread_bits(fifth >> (16 + 4 * i)) << 4;
  }
}

struct Q5_0 : BlockFormat<Q5_0, 32, 22, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    u32 packed[4], q[8];
    load_words(packed, block + 6);
    five_bits(q, packed, load_u32_align2(block + 2));
    v.scale[0] = load_half(block);
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = sub_bytes(q[i], 16);
  }
};
