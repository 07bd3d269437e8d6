// TQ1_0 and TQ2_0: 256 values -1, 0, 1 under one half d.
#pragma once
#include "blocks.cuh"

// TQ1_0: 48 + 4 bytes of base-3 digits, then d. 54 bytes. A byte is the fraction 0.t0 t1 t2 t3 t4 in base 3 times 256, rounded up.
struct TQ1_0 : BlockFormat<TQ1_0, 256, 54, 1, false> {
  // Digit `number` of byte `q`: the digits before leave at the top.
  __device__ __forceinline__ static u32 digit(u32 q, int number) {
    const u32 power = number == 0 ? 1 : number == 1 ? 3 : number == 2 ? 9 : number == 3 ? 27 : 81;
    return (q * power & 255) * 3 >> 8;
  }
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    v.scale[0] = load_half(block + 52);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 word = 0;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int n = 32 * group + 4 * i + j;  // 5 digits of 32 bytes, 5 of 16, 4 of 4
        const int byte = n < 160 ? n % 32 : n < 240 ? 32 + n % 16 : 48 + n % 4;
        const int number = n < 160 ? n / 32 : n < 240 ? (n - 160) / 16 : (n - 240) / 4;
        word |= digit(block[byte], number) << 8 * j;
      }
      v.q[i] = sub_bytes(word, 1);
    }
  }
};

// TQ2_0: two runs of 32 bytes with four planes of 2 bits, then d. 66 bytes.
struct TQ2_0 : BlockFormat<TQ2_0, 256, 66, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8*) {
    u32 packed[8];
    load_words(packed, block + group / 4 * 32);
    v.scale[0] = load_half(block + 64);
#pragma unroll
    for (int i = 0; i < 8; i++) v.q[i] = sub_bytes(packed[i] >> group % 4 * 2 & 0x03030303u, 1);
  }
};
