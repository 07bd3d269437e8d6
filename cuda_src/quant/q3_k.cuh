// Q3_K: 32 bytes of third bits (bit g of byte j: group g), two runs of 32 bytes with four planes of 2 bits, 12 bytes with 16 scales of
// 6 bits, half d. A set third bit means no offset. 110 bytes.
#pragma once
#include "blocks.cuh"

struct Q3_K : BlockFormat<Q3_K, 256, 110, 2, false> {
  __device__ __forceinline__ static float scale(const u8* packed, int i) {
    const u32 low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    return (float)((int)(low | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
  }
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 third[8], packed[8];
    load_words(third, block);
    load_words(packed, block + 32 + group / 4 * 32);
    const float d = load_half(block + 108);
    v.scale[0] = __fmul_rn(d, scale(block + 96, 2 * group));
    v.scale[1] = __fmul_rn(d, scale(block + 96, 2 * group + 1));
#pragma unroll
    for (int i = 0; i < 8; i++)
      v.q[i] = sub_bytes(packed[i] >> group % 4 * 2 & 0x03030303u | (third[i] >> group & 0x01010101u) << 2, 4);
  }
};
