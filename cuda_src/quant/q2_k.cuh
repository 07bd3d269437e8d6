// Q2_K: 16 bytes (scale low, minimum high), two runs of 32 bytes with four planes of 2 bits, half d, half dmin. 84 bytes.
#pragma once
#include "blocks.cuh"

struct Q2_K : BlockFormat<Q2_K, 256, 84, 2, true> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 packed[8];
    load_words_align4(packed, block + 16 + group / 4 * 32);
    const float d = load_half(block + 80), dmin = load_half(block + 82);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 both = block[2 * group + half];
      v.scale[half] = __fmul_rn(d, (float)(both & 15));
      v.minimum[half] = __fmul_rn(dmin, (float)(both >> 4));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = (int)(packed[i] >> group % 4 * 2 & 0x03030303u);
  }
};
