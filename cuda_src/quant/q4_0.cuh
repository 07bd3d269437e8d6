// Q4_0: half d, 32 halves of bytes (j and j + 16 in byte j), offset 8. 18 bytes.
#pragma once
#include "blocks.cuh"

struct Q4_0 : BlockFormat<Q4_0, 32, 18, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    u32 packed[4];
    load_words(packed, block + 2);
    v.scale[0] = load_half(block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v.q[i] = sub_bytes(packed[i] & 0x0f0f0f0fu, 8);
      v.q[4 + i] = sub_bytes(packed[i] >> 4 & 0x0f0f0f0fu, 8);
    }
  }
};
