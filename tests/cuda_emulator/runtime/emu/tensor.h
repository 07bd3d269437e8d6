// Tensor core multiply-adds and ldmatrix, called by include/ptx.cuh where a GPU runs PTX. Fragments lie in the lanes as PTX says.
#pragma once
#include "half.h"
#include "warp.h"

namespace emu {

struct Mma { void* d; const unsigned* a; const unsigned* b; };

struct Float16Fragment {
  enum { PER_REGISTER = 2, K = 16 };
  typedef float Element;
  typedef float Sum;
  static float get(unsigned v, int i) { return __half2float({(uint16_t)(v >> 16 * i)}); }
};
struct Bfloat16Fragment {
  enum { PER_REGISTER = 2, K = 16 };
  typedef float Element;
  typedef float Sum;
  static float get(unsigned v, int i) { return __bfloat162float({(uint16_t)(v >> 16 * i)}); }
};
struct Int8Fragment {
  enum { PER_REGISTER = 4, K = 32 };
  typedef int Element;
  typedef int Sum;
  static int get(unsigned v, int i) { return (int8_t)(v >> 8 * i); }
};

// d[16][8] += a[16][K] * b[K][8]
template <class F> static void mma_all(void** operands, unsigned mask) {
  if (mask != ~0u) fail("mma.sync by %08x, not by all lanes", mask);
  typename F::Element a[16][F::K], b[F::K][8];
  for (int l = 0; l < 32; l++) {
    auto* mine = (Mma*)operands[l];
    int group = l >> 2, first = (l & 3) * F::PER_REGISTER;
    for (int i = 0; i < F::PER_REGISTER; i++) {
      for (int r = 0; r < 4; r++) a[group + (r & 1) * 8][first + i + (r >> 1) * F::K / 2] = F::get(mine->a[r], i);
      for (int r = 0; r < 2; r++) b[first + i + r * F::K / 2][group] = F::get(mine->b[r], i);
    }
  }
  for (int l = 0; l < 32; l++) {
    auto* d = (typename F::Sum*)((Mma*)operands[l])->d;
    for (int j = 0; j < 4; j++)
      for (int k = 0; k < F::K; k++) d[j] += a[(l >> 2) + (j >> 1) * 8][k] * b[k][(l & 3) * 2 + (j & 1)];
  }
}
static inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Mma operand{d, a, b};
  collective(~0u, mma_all<Float16Fragment>, &operand, "mma.m16n8k16.f16");
}
static inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Mma operand{d, a, b};
  collective(~0u, mma_all<Bfloat16Fragment>, &operand, "mma.m16n8k16.bf16");
}
static inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Mma operand{d, a, b};
  collective(~0u, mma_all<Int8Fragment>, &operand, "mma.m16n8k32.s8");
}

// N 8x8 matrices of 16-bit elements; lane 8 i + r holds the address of row r of matrix i.
struct LoadMatrix { unsigned* registers; const void* row; };
template <int N, bool TRANSPOSED> static void ldmatrix_all(void** operands, unsigned mask) {
  if (mask != ~0u) fail("ldmatrix by %08x, not by all lanes", mask);
  auto row_of = [&](int i, int r) {
    auto* row = (const uint16_t*)((LoadMatrix*)operands[8 * i + r])->row;
    if ((uintptr_t)row & 15) fail("ldmatrix: the row of lane %d is not aligned to 16 bytes", 8 * i + r);
    return row;
  };
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < N; i++) {
      uint16_t pair[2];
      for (int j = 0; j < 2; j++) pair[j] = TRANSPOSED ? row_of(i, (l & 3) * 2 + j)[l >> 2] : row_of(i, l >> 2)[(l & 3) * 2 + j];
      memcpy(&((LoadMatrix*)operands[l])->registers[i], pair, 4);
    }
}
template <int N, bool TRANSPOSED> static inline void ldmatrix(unsigned (&registers)[N], const void* row) {
  LoadMatrix operand{registers, row};
  collective(~0u, ldmatrix_all<N, TRANSPOSED>, &operand, "ldmatrix");
}

}  // namespace emu
