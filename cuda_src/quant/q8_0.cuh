// Q8_0: half d, 32 signed bytes. 34 bytes.
#pragma once
#include "blocks.cuh"

struct Q8_0 : BlockFormat<Q8_0, 32, 34, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    u32 words[8];
    load_words(words, block + 2);
    v.scale[0] = load_half(block);
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = (int)words[i];
  }
};
