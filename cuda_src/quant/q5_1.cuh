// Q5_1: half d, half m, 32 fifth bits, 32 halves of bytes (j and j + 16 in byte j). 24 bytes.
#pragma once
#include "q5_0.cuh"

struct Q5_1 : BlockFormat<Q5_1, 32, 24, 1, true> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    u32 packed[4], fifth[1], q[8];
    load_words_align4(fifth, block + 4);
    load_words_align4(packed, block + 8);
    five_bits(q, packed, fifth[0]);
    v.scale[0] = load_half(block);
    v.minimum[0] = -load_half(block + 2);
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = (int)q[i];
  }
};
