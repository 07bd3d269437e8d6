// MXFP4: exponent e of the scale 2^(e - 127), 32 halves of bytes (j and j + 16 in byte j) that are E2M1. 17 bytes.
#pragma once
#include "blocks.cuh"

struct MXFP4 : BlockFormat<MXFP4, 32, 17, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    look_up_32(v.q, block + 1, doubled_e2m1());
    const u32 e = block[0];  // half the scale, as the table is doubled; the two smallest are subnormal
    v.scale[0] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};
