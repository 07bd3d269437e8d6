// NVFP4: 64 values; four scales (E4M3 without its sign), 8 bytes for each 16 values (j and j + 8 in byte j) that are E2M1. 36 bytes.
#pragma once
#include "blocks.cuh"

struct NVFP4 : BlockFormat<NVFP4, 64, 36, 2, false> {
  // Half of it, as the table is doubled. 127 is NaN there and zero here.
  __device__ __forceinline__ static float half_e4m3(u32 code) {
    const u32 exponent = code >> 3 & 15, mantissa = code & 7;
    if (code == 127) return 0.f;
    return exponent ? (float)(8 + mantissa) * __uint_as_float((exponent + 116) << 23) : (float)mantissa * (1.f / 1024.f);
  }
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 packed[4];
    load_words_align4(packed, block + 4 + 16 * group);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      v.scale[half] = half_e4m3(block[2 * group + half]);
      look_up(v.q[4 * half], v.q[4 * half + 2], packed[2 * half], doubled_e2m1());
      look_up(v.q[4 * half + 1], v.q[4 * half + 3], packed[2 * half + 1], doubled_e2m1());
    }
  }
};
