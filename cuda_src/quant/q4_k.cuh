// Q4_K: half d, half dmin, 12 bytes with 8 scales and 8 minima of 6 bits, four runs of 32 bytes (low halves: group 2 i, high halves:
// 2 i + 1). 144 bytes, aligned to 16.
#pragma once
#include "blocks.cuh"

// Scale and minimum of a group of Q4_K and Q5_K, from the first 16 bytes of the block.
__device__ __forceinline__ void scale_and_minimum(Values32& v, const u8* block, int group) {
  u32 head[4];
  load_words_align16(head, block);
  // Words 1 and 2: scales and minima of groups 0 .. 3 in the low six bits of a byte each. Word 3: the low four bits of those of
  // groups 4 .. 7, whose upper two lie on top of words 1 and 2.
  const int shift = group % 4 * 8;
  const u32 first = head[1] >> shift & 255, second = head[2] >> shift & 255, third = head[3] >> shift & 255;
  const u32 scale = group < 4 ? first & 63 : third & 15 | first >> 6 << 4;
  const u32 minimum = group < 4 ? second & 63 : third >> 4 | second >> 6 << 4;
  v.scale[0] = __fmul_rn(half_bits((u16)(head[0] & 0xffff)), (float)scale);
  v.minimum[0] = __fmul_rn(half_bits((u16)(head[0] >> 16)), (float)minimum);
}

struct Q4_K : BlockFormat<Q4_K, 256, 144, 1, true> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 packed[8];
    load_words_align16(packed, block + 16 + group / 2 * 32);
    scale_and_minimum(v, block, group);
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = (int)(packed[i] >> group % 2 * 4 & 0x0f0f0f0fu);
  }
};
