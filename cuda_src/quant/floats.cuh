// F32, F16, BF16: multiplied with float activations, four values a piece, any number of columns.
#pragma once
#include "blocks.cuh"

template <class T> struct FloatFormat {
  typedef float Activation;
  struct Piece { float v[4]; };
  enum { GROUP = 4 };

  __device__ __forceinline__ static i64 row_bytes(int columns) { return (i64)columns * sizeof(T); }
  __device__ __forceinline__ static int row_activations(int columns) { return columns; }

  // Zeros after the end of the row.
  template <class Element> __device__ __forceinline__ static Piece four(const Element* row, int index, int columns) {
    struct alignas(4 * sizeof(Element)) Vector { Element e[4]; };
    Piece piece;
    if (columns % 4 == 0) {  // else rows are not aligned to four
      const Vector vector = reinterpret_cast<const Vector*>(row)[index];
#pragma unroll
      for (int i = 0; i < 4; i++) piece.v[i] = to_float(vector.e[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) piece.v[i] = 4 * index + i < columns ? to_float(row[4 * index + i]) : 0.f;
    }
    return piece;
  }

  __device__ __forceinline__ static void load(Piece& piece, const u8* row, int index, int columns, const u8*) {
    piece = four(reinterpret_cast<const T*>(row), index, columns);
  }

  __device__ __forceinline__ static float value(const Piece& piece, int i) { return piece.v[i]; }

  __device__ __forceinline__ static float dot(float sum, const Piece& piece, const float* x, int index, int columns) {
    const Piece other = four(x, index, columns);
#pragma unroll
    for (int i = 0; i < 4; i++) sum = fmaf(piece.v[i], other.v[i], sum);
    return sum;
  }
};

typedef FloatFormat<float> F32;
typedef FloatFormat<f16> F16;
typedef FloatFormat<bf16> BF16;
