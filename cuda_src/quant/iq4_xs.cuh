// IQ4_XS: half d, a word with the upper two bits of 8 scales, 4 bytes with their low four, 16 bytes a group as IQ4_NL. 136 bytes.
#pragma once
#include "blocks.cuh"

struct IQ4_XS : BlockFormat<IQ4_XS, 256, 136, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    look_up_32(v.q, block + 8 + 16 * group, iq4_levels());
    const u32 low = block[4 + group / 2] >> group % 2 * 4 & 15, high = load_u16(block + 2) >> 2 * group & 3;
    v.scale[0] = __fmul_rn(load_half(block), (float)((int)(low | high << 4) - 32));
  }
};
