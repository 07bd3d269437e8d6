// IQ4_NL: half d, 32 halves of bytes (j and j + 16 in byte j) that choose a level. 18 bytes.
#pragma once
#include "blocks.cuh"

struct IQ4_NL : BlockFormat<IQ4_NL, 32, 18, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int, const u8*) {
    look_up_32(v.q, block + 2, iq4_levels());
    v.scale[0] = load_half(block);
  }
};
