// The interface between weight formats and kernels, and the tools to write formats with.
//
// A format (one struct a GGUF type, chosen by -D QUANT=<name>) divides a row into pieces and unpacks them into registers:
//   GROUP                 values of a piece, which one lane takes at a time
//   Activation            the other factor: Q8Block (a row is columns / 32 of them) or float
//   Piece, load(...)      a piece in registers, `index` counting pieces of the row
//   dot(sum, ...)         sum + piece . activations, always with float operations in one order
//   value(piece, i)       dequantized, with the bits of svc/gguf/quant
//   row_bytes(columns), row_activations(columns)  of a row: bytes of weights, number of Activation
// A block format only has unpack(): 32 integers with one scale for all or two for the halves, and minima in some formats. Blocks are in
// memory as in the file. If their size is not a multiple of 4, words are assembled from aligned ones: an array of weights begins aligned
// to 16 bytes and ends with at least 16 bytes that may be read (svc/compute/cuda/weights.py).
#pragma once
#include "quant.cuh"

// value[i] = scale[i / 16] * q[i] - minimum[i / 16]; the second of each only with HALVES == 2.
struct Values32 {
  int q[8];  // four signed bytes each
  float scale[2], minimum[2];
};

template <class Format, int BLOCK_VALUES, int BLOCK_BYTES, int SCALES, bool MINIMUM> struct BlockFormat {
  typedef Q8Block Activation;
  typedef Values32 Piece;
  enum { GROUP = 32, BLOCK = BLOCK_VALUES, BYTES = BLOCK_BYTES, HALVES = SCALES, HAS_MINIMUM = MINIMUM };

  __device__ __forceinline__ static i64 row_bytes(int columns) { return (i64)(columns / BLOCK) * BYTES; }
  __device__ __forceinline__ static int row_activations(int columns) { return columns / GROUP; }

  __device__ __forceinline__ static void load(Piece& piece, const u8* row, int index, int, const u8* grid) {
    constexpr int GROUPS = BLOCK / GROUP;
    Format::unpack(piece, row + (i64)(index / GROUPS) * BYTES, index % GROUPS, grid);
  }

  __device__ __forceinline__ static float value(const Piece& piece, int i) {
    const int half = HALVES == 2 ? i / 16 : 0;
    const float product = __fmul_rn(piece.scale[half], (float)(i8)(piece.q[i / 4] >> i % 4 * 8));
    return HAS_MINIMUM ? __fsub_rn(product, piece.minimum[half]) : product;
  }

  __device__ __forceinline__ static float dot(float sum, const Piece& piece, const Q8Block* x, int index, int) {
    const Q8Block& block = x[index];
    int words[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int2 pair = reinterpret_cast<const int2*>(block.q)[i];
      words[2 * i] = pair.x, words[2 * i + 1] = pair.y;
    }
    return dot_words(sum, piece, words, block.scale, block.sum);
  }

  // Integers are exact; the floats are joined in one order for every caller.
  __device__ __forceinline__ static float dot_words(float sum, const Piece& piece, const int (&x)[8], float scale, float total) {
    int products[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) products[HALVES == 2 ? i / 4 : 0] = dot4(piece.q[i], x[i], products[HALVES == 2 ? i / 4 : 0]);
    float joined = __fmul_rn(piece.scale[0], (float)products[0]);
    if (HALVES == 2) joined = fmaf(piece.scale[1], (float)products[1], joined);
    sum = fmaf(scale, joined, sum);
    if (HAS_MINIMUM && HALVES == 1) return fmaf(-piece.minimum[0], total, sum);
    if (HAS_MINIMUM) {
      int totals[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 8; i++) totals[i / 4] = dot4(0x01010101, x[i], totals[i / 4]);
      const float low = fmaf(piece.minimum[1], (float)totals[1], __fmul_rn(piece.minimum[0], (float)totals[0]));
      return fmaf(-scale, low, sum);
    }
    return sum;
  }
};

// ---- loads
__device__ __forceinline__ u16 load_u16(const u8* p) { return *reinterpret_cast<const u16*>(p); }  // p is even
__device__ __forceinline__ float load_half(const u8* p) { return half_bits(load_u16(p)); }

// N words from any address: reads up to 3 bytes before and 4 bytes after them.
template <int N> __device__ __forceinline__ void load_words(u32 (&words)[N], const u8* p) {
  const u32 shift = ((u32)(u64)p & 3) * 8;
  const u32* from = reinterpret_cast<const u32*>(p - shift / 8);
  u32 low = from[0];
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32 high = from[i + 1];
    words[i] = __funnelshift_r(low, high, shift);
    low = high;
  }
}
// N words from a multiple of 4, and of 16.
template <int N> __device__ __forceinline__ void load_words_align4(u32 (&words)[N], const u8* p) {
#pragma unroll
  for (int i = 0; i < N; i++) words[i] = reinterpret_cast<const u32*>(p)[i];
}
template <int N> __device__ __forceinline__ void load_words_align16(u32 (&words)[N], const u8* p) {
  static_assert(N % 4 == 0, "whole vectors");
#pragma unroll
  for (int i = 0; i < N / 4; i++) {
    const uint4 v = reinterpret_cast<const uint4*>(p)[i];
    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
  }
}

// ---- four bytes at a time
// b - k for bytes b < 128 and k <= 128, as signed bytes; no byte borrows from the next.
__device__ __forceinline__ int sub_bytes(u32 bytes, u32 k) { return (int)(((bytes | 0x80808080u) - k * 0x01010101u) ^ 0x80808080u); }
// Bit i of the low four, to the lowest bit of byte i.
__device__ __forceinline__ u32 spread_bits(u32 bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }
// Byte i negated if bit i is set; bytes are 1 .. 127.
__device__ __forceinline__ int negate_bytes(u32 bytes, u32 bits) {
  const u32 one = spread_bits(bits);
  return (int)((bytes ^ one * 255u) + one);
}
// Seven stored sign bits; the eighth makes their number even.
__device__ __forceinline__ u32 even_signs(u32 seven) { return seven | (u32)(__popc(seven) & 1) << 7; }

// The bytes of a table of 16 chosen by the low and by the high halves of four bytes.
struct Table16 { u32 words[4]; };
__device__ __forceinline__ void look_up(int& low, int& high, u32 packed, const Table16& table) {
  const u32 index = packed & 0x77777777u;  // within a half of the table; bit 3 says which half
  const u32 upper = 0x32103210u | (packed & 0x88888888u) >> 1;
  const u32 first = __byte_perm(__byte_perm(table.words[0], table.words[1], index), __byte_perm(table.words[2], table.words[3], index), upper);
  const u32 second = __byte_perm(__byte_perm(table.words[0], table.words[1], index >> 16),
                                 __byte_perm(table.words[2], table.words[3], index >> 16), upper >> 16);
  low = (int)__byte_perm(first, second, 0x6420);
  high = (int)__byte_perm(first, second, 0x7531);
}
// Levels of IQ4_NL and IQ4_XS: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
__device__ __forceinline__ Table16 iq4_levels() { return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}}; }
// E2M1 doubled, MXFP4 and NVFP4: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
__device__ __forceinline__ Table16 doubled_e2m1() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }

// 16 bytes: value j in the low half of byte j, value j + 16 in its high half.
__device__ __forceinline__ void look_up_32(int (&q)[8], const u8* p, const Table16& table) {
  u32 packed[4];
  load_words(packed, p);
#pragma unroll
  for (int i = 0; i < 4; i++) look_up(q[i], q[4 + i], packed[i], table);
}
