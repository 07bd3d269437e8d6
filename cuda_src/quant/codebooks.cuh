// The IQ1, IQ2 and IQ3 formats: values come from the format's grid, 8 or 4 bytes an entry, in device memory.
//
// Magnitudes are bytes 1 .. 62 and get their signs here; entries of IQ1 are -1, 0, 1, stored as 8 (entry + 1), so that the shift of an
// eighth is an integer.
#pragma once
#include "blocks.cuh"

__device__ __forceinline__ void signed_8(int* q, const u8* grid, u32 index, u32 signs) {
  const uint2 entry = reinterpret_cast<const uint2*>(grid)[index];
  q[0] = negate_bytes(entry.x, signs);
  q[1] = negate_bytes(entry.y, signs >> 4);
}
__device__ __forceinline__ int signed_4(const u8* grid, u32 index, u32 signs) {
  return negate_bytes(reinterpret_cast<const u32*>(grid)[index], signs);
}
// 8 (entry + shift), shift = -1/8 or 1/8.
__device__ __forceinline__ void shifted_8(int* q, const u8* grid, u32 index, bool minus) {
  const uint2 entry = reinterpret_cast<const uint2*>(grid)[index];
  q[0] = sub_bytes(entry.x, minus ? 9 : 7);
  q[1] = sub_bytes(entry.y, minus ? 9 : 7);
}
__device__ __forceinline__ float quarter_scale(float d, u32 scale) { return __fmul_rn(__fmul_rn(d, 0.5f + (float)scale), 0.25f); }
__device__ __forceinline__ float odd_scale(float d, u32 scale) { return __fmul_rn(d, (float)(2 * scale + 1)); }

// Half d; 8 bytes a group: four indices, then a word of four 7-bit sign indices and a 4-bit scale. 66 bytes.
struct IQ2_XXS : BlockFormat<IQ2_XXS, 256, 66, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 index = load_u32_align2(block + 2 + 8 * group), rest = load_u32_align2(block + 6 + 8 * group);
    v.scale[0] = quarter_scale(load_half(block), rest >> 28);
#pragma unroll
    for (int i = 0; i < 4; i++) signed_8(v.q + 2 * i, grid, index >> 8 * i & 255, even_signs(rest >> 7 * i & 127));
  }
};

// Half d; 32 words: 9-bit index, 7-bit sign index; 16 scales of 4 bits. 74 bytes.
struct IQ2_XS : BlockFormat<IQ2_XS, 256, 74, 2, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 scales = block[66 + group];
    const float d = load_half(block);
    v.scale[0] = quarter_scale(d, scales & 15);
    v.scale[1] = quarter_scale(d, scales >> 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 word = load_u16(block + 2 + 8 * group + 2 * i);
      signed_8(v.q + 2 * i, grid, word & 511, even_signs(word >> 9));
    }
  }
};

// Half d; 32 low bytes of indices, 32 bytes of signs, 8 bytes with the upper two bits of four indices each, 16 scales of 4 bits. 82 bytes.
struct IQ2_S : BlockFormat<IQ2_S, 256, 82, 2, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 high = block[66 + group], scales = block[74 + group];
    const float d = load_half(block);
    v.scale[0] = quarter_scale(d, scales & 15);
    v.scale[1] = quarter_scale(d, scales >> 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
      signed_8(v.q + 2 * i, grid, block[2 + 4 * group + i] | (high >> 2 * i & 3) << 8, block[34 + 4 * group + i]);
  }
};

// Half d; 64 indices; a word a group: four 7-bit sign indices and a 4-bit scale. 98 bytes.
struct IQ3_XXS : BlockFormat<IQ3_XXS, 256, 98, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 rest = load_u32_align2(block + 66 + 4 * group);
    v.scale[0] = __fmul_rn(__fmul_rn(load_half(block), 0.5f + (float)(rest >> 28)), 0.5f);
#pragma unroll
    for (int i = 0; i < 8; i++)
      v.q[i] = signed_4(grid, block[2 + 8 * group + i], even_signs(rest >> 7 * (i / 2) & 127) >> i % 2 * 4);
  }
};

// Half d; 64 low bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 8 scales of 4 bits. 110 bytes.
struct IQ3_S : BlockFormat<IQ3_S, 256, 110, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 high = block[66 + group];
    v.scale[0] = odd_scale(load_half(block), block[106 + group / 2] >> group % 2 * 4 & 15);
#pragma unroll
    for (int i = 0; i < 8; i++)
      v.q[i] = signed_4(grid, block[2 + 8 * group + i] | (high >> i & 1) << 8, block[74 + 4 * group + i / 2] >> i % 2 * 4);
  }
};

// Half d; 32 low bytes of indices; a word a group: upper three bits of its four indices, a 3-bit scale, the shift's sign. 50 bytes.
struct IQ1_S : BlockFormat<IQ1_S, 256, 50, 1, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    const u32 word = load_u16(block + 34 + 2 * group);
    v.scale[0] = odd_scale(load_half(block), word >> 12 & 7) * 0.125f;
#pragma unroll
    for (int i = 0; i < 4; i++)
      shifted_8(v.q + 2 * i, grid, block[2 + 4 * group + i] | (word >> 3 * i & 7) << 8, (word & 0x8000) != 0);
  }
};

// 32 low bytes of indices, 16 bytes of half a byte an index (upper three bits, the shift's sign), four words: four 3-bit scales each and
// on top a quarter of d. 56 bytes.
struct IQ1_M : BlockFormat<IQ1_M, 256, 56, 2, false> {
  __device__ __forceinline__ static void unpack(Values32& v, const u8* block, int group, const u8* grid) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) bits |= (u32)(load_u16(block + 48 + 2 * i) >> 12) << 4 * i;
    const float d = half_bits((u16)bits);
    const u32 scales = load_u16(block + 48 + group / 2 * 2) >> group % 2 * 6;
    v.scale[0] = odd_scale(d, scales & 7) * 0.125f;
    v.scale[1] = odd_scale(d, scales >> 3 & 7) * 0.125f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 nibble = block[32 + 2 * group + i / 2] >> i % 2 * 4 & 15;
      shifted_8(v.q + 2 * i, grid, block[4 * group + i] | (nibble & 7) << 8, (nibble & 8) != 0);
    }
  }
};
