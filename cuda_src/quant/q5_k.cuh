// Q5_K: as Q4_K, with 32 bytes of fifth bits (bit g of byte j: value j of group g) before the runs. 176 bytes, aligned to 16.
#pragma once
#include "q4_k.cuh"

struct Q5_K : BlockFormat<Q5_K, 256, 176, 1, true> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 fifth[8], packed[8];
    load_words_align16(fifth, block + 16);
    load_words_align16(packed, block + 48 + group / 2 * 32);
    scale_and_minimum(v, block, group);
#pragma unroll
    for (int i = 0; i < 8; i++)
      v.q[i] = (int)(packed[i] >> group % 2 * 4 & 0x0f0f0f0fu | (fifth[i] >> group & 0x01010101u) << 4);
  }
};
