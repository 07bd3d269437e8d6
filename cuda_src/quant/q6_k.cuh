// Q6_K: two runs of 64 bytes (low four bits: j low, j + 64 high), two runs of 32 bytes with four planes of the upper two bits, 16 signed
// scales, half d. 210 bytes.
#pragma once
#include "blocks.cuh"

struct Q6_K : BlockFormat<Q6_K, 256, 210, 2, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    const int run = group / 4, part = group % 4;
    u32 low[8], high[8];
    load_words(low, block + 64 * run + part % 2 * 32);
    load_words(high, block + 128 + 32 * run);
    const u32 scales = load_u16(block + 192 + 2 * group);
    const float d = load_half(block + 208);
    v.scale[0] = __fmul_rn(d, (float)(i8)(scales & 255));
    v.scale[1] = __fmul_rn(d, (float)(i8)(scales >> 8));
#pragma unroll
    for (int i = 0; i < 8; i++)
      v.q[i] = sub_bytes(low[i] >> part / 2 * 4 & 0x0f0f0f0fu | (high[i] >> 2 * part & 0x03030303u) << 4, 32);
  }
};
