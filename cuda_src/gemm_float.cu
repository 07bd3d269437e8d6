// out[t][r] = W[r] . x[t] for many rows of activations; W [R, K] float32, float16 or bfloat16, x and the sums float32.
//
// A block of 256 threads makes tiles of 16 M rows of W by 16 N rows of x; thread (i, j) of its 16 x 16 has every 16th of both. Both are
// converted to float in shared memory, 32 columns at a time. Grid [row tiles, experts or 1, token tiles]: a block goes on with the token
// tile gridDim.z further while there is one. Each output adds its columns from first to last.
//
// Experts: see gemm.cuh; W is a stack [E, R, K]. Not measured on a GPU yet.
// Variant: QUANT=F32
// Variant: QUANT=BF16
#ifndef QUANT
#define QUANT F32
#endif
#include "gemm.cuh"
#include "quant/formats.cuh"

constexpr int THREADS = 256;
constexpr int SIDE = 16;
constexpr int COLUMNS = 32;            // at a time
constexpr int STRIDE = COLUMNS / 4 + 1;  // vectors of a row in shared memory; an odd number: rows start in different banks

// Vector `index` of a row in shared memory.
template <class F> __device__ __forceinline__ float4 loaded(const u8* row, int index, int columns) {
  if (4 * index >= columns) return make_float4(0.f, 0.f, 0.f, 0.f);
  typename F::Piece piece;
  F::load(piece, row, index, columns, nullptr);
  return make_float4(piece.v[0], piece.v[1], piece.v[2], piece.v[3]);
}

__device__ __forceinline__ float dot_four(float sum, float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int M, int N>
__device__ __forceinline__ void gemm(const u8* weights, const float* x, const int* pairs, const int* offsets, const float* other, float* out,
                                     int R, int columns, int num_out, int pairs_per_row, int mode) {
  __shared__ float4 w_tile[SIDE * M][STRIDE], x_tile[SIDE * N][STRIDE];
  const TokenRange range = token_range(pairs, offsets, num_out, pairs_per_row);
  const int first_row = blockIdx.x * SIDE * M;
  const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
  const u8* matrix = weights + (i64)blockIdx.y * R * Format::row_bytes(columns);

  for (int start = range.begin + blockIdx.z * SIDE * N; start < range.end; start += gridDim.z * SIDE * N) {
    float acc[M][N] = {};
    for (int column = 0; column < columns; column += COLUMNS) {
      __syncthreads();  // the previous tiles are done
      for (int unit = threadIdx.x; unit < SIDE * M * COLUMNS / 4; unit += THREADS) {
        const int row = unit / (COLUMNS / 4), vector = unit % (COLUMNS / 4);
        const u8* from = matrix + min(first_row + row, R - 1) * Format::row_bytes(columns);
        w_tile[row][vector] = loaded<Format>(from, column / 4 + vector, columns);
      }
      for (int unit = threadIdx.x; unit < SIDE * N * COLUMNS / 4; unit += THREADS) {
        const int row = unit / (COLUMNS / 4), vector = unit % (COLUMNS / 4);
        const float* from = x + (i64)range.x_row(start + row) * columns;
        x_tile[row][vector] = loaded<F32>(reinterpret_cast<const u8*>(from), column / 4 + vector, columns);
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < COLUMNS / 4; k++) {
        float4 w[M];
#pragma unroll
        for (int m = 0; m < M; m++) w[m] = w_tile[i + SIDE * m][k];
#pragma unroll
        for (int n = 0; n < N; n++) {
          const float4 four = x_tile[j + SIDE * n][k];
#pragma unroll
          for (int m = 0; m < M; m++) acc[m][n] = dot_four(acc[m][n], w[m], four);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int to = range.out_row(start + j + SIDE * n);
#pragma unroll
      for (int m = 0; m < M; m++) {
        const int row = first_row + i + SIDE * m;
        if (to >= 0 && row < R) finish(out, other, (i64)to * R + row, acc[m][n], mode);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_16(const u8* __restrict__ weights, const float* __restrict__ x, const int* __restrict__ pairs, const int* __restrict__ offsets,
        const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<2, 1>(weights, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_32(const u8* __restrict__ weights, const float* __restrict__ x, const int* __restrict__ pairs, const int* __restrict__ offsets,
        const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<2, 2>(weights, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_64(const u8* __restrict__ weights, const float* __restrict__ x, const int* __restrict__ pairs, const int* __restrict__ offsets,
        const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<4, 4>(weights, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}
