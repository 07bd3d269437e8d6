// Q4_1: half d, half m, 32 halves of bytes (j and j + 16 in byte j). 20 bytes.
#pragma once
#include "blocks.cuh"

struct Q4_1 : BlockFormat<Q4_1, 32, 20, 1, true> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    u32 packed[4];
    load_words_align4(packed, block + 4);
    v.scale[0] = load_half(block);
    v.minimum[0] = -load_half(block + 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v.q[i] = (int)(packed[i] & 0x0f0f0f0fu);
      v.q[4 + i] = (int)(packed[i] >> 4 & 0x0f0f0f0fu);
    }
  }
};
