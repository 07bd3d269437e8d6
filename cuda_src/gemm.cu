// out[t][r] = W[r] . x[t] for many rows of activations; W [R, K] in a block format, x quantized (quantize.cu). Integer dot products.
//
// A block of 256 threads makes tiles of 16 M rows of W by 16 N rows of x; thread (i, j) of its 16 x 16 has every 16th of both. W is
// unpacked and x copied into shared memory, as many groups of 32 columns at a time as give each thread one of W. Grid [row tiles,
// experts or 1, token tiles]: a block goes on with the token tile gridDim.z further while there is one, so any grid size works. Each
// output adds its groups from first to last.
//
// gate_up kernels: the lower half of the tile's rows are of the gate matrix, the upper half the same rows of the up matrix.
//
// Experts: see gemm.cuh; W is a stack [E, R, K]. Not measured on a GPU yet.
// Variant: QUANT=Q4_K
// Variant: QUANT=Q6_K
// Variant: QUANT=Q2_K
#include "gemm.cuh"
#include "quant/formats.cuh"

constexpr int THREADS = 256;
constexpr int SIDE = 16;

template <int M> constexpr int GROUPS_AT_ONCE = THREADS / (SIDE * M);
// Words of a row in shared memory; four more than needed, so that neighbouring rows start in different banks.
template <int M> constexpr int STRIDE = 8 * GROUPS_AT_ONCE<M> + 4;

template <int M, int N> struct Tiles {
  enum { GROUPS = GROUPS_AT_ONCE<M>, WORDS = STRIDE<M> };
  int4 w[SIDE * M][WORDS / 4], x[SIDE * N][WORDS / 4];
  float w_scale[Format::HALVES][GROUPS][SIDE * M], w_minimum[Format::HALVES][GROUPS][SIDE * M];
  float2 x_scale[GROUPS][SIDE * N];  // scale and sum
};

template <int M, int N>
__device__ __forceinline__ void store_piece(Tiles<M, N>& tiles, int row, int group, const Values32& piece) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    tiles.w[row][2 * group + i] = make_int4(piece.q[4 * i], piece.q[4 * i + 1], piece.q[4 * i + 2], piece.q[4 * i + 3]);
#pragma unroll
  for (int i = 0; i < Format::HALVES; i++) {
    tiles.w_scale[i][group][row] = piece.scale[i];
    if (Format::HAS_MINIMUM) tiles.w_minimum[i][group][row] = piece.minimum[i];
  }
}

template <int M, int N>
__device__ __forceinline__ void store_block(Tiles<M, N>& tiles, int row, int group, const Q8Block& block) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int2 low = reinterpret_cast<const int2*>(block.q)[2 * i], high = reinterpret_cast<const int2*>(block.q)[2 * i + 1];
    tiles.x[row][2 * group + i] = make_int4(low.x, low.y, high.x, high.y);
  }
  tiles.x_scale[group][row] = make_float2(block.scale, block.sum);
}

// acc += W . x for the groups in shared memory.
template <int M, int N> __device__ __forceinline__ void multiply(float (&acc)[M][N], const Tiles<M, N>& tiles, int groups, int i, int j) {
  for (int group = 0; group < groups; group++) {
    Values32 w[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
      const int row = i + SIDE * m;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int4 four = tiles.w[row][2 * group + h];
        w[m].q[4 * h] = four.x, w[m].q[4 * h + 1] = four.y, w[m].q[4 * h + 2] = four.z, w[m].q[4 * h + 3] = four.w;
      }
#pragma unroll
      for (int h = 0; h < Format::HALVES; h++) {
        w[m].scale[h] = tiles.w_scale[h][group][row];
        if (Format::HAS_MINIMUM) w[m].minimum[h] = tiles.w_minimum[h][group][row];
      }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int row = j + SIDE * n;
      int words[8];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int4 four = tiles.x[row][2 * group + h];
        words[4 * h] = four.x, words[4 * h + 1] = four.y, words[4 * h + 2] = four.z, words[4 * h + 3] = four.w;
      }
      const float2 scale = tiles.x_scale[group][row];
#pragma unroll
      for (int m = 0; m < M; m++) acc[m][n] = Format::dot_words(acc[m][n], w[m], words, scale.x, scale.y);
    }
  }
}

// GATED: `second` is the up matrix, and a tile makes 8 M rows of the output. Otherwise 16 M.
template <int M, int N, bool GATED>
__device__ __forceinline__ void gemm(const u8* weights, const u8* second, const u8* grid, const Q8Block* x, const int* pairs,
                                     const int* offsets, const float* other, float* out, int R, int columns, int num_out,
                                     int pairs_per_row, int mode) {
  constexpr int GROUPS = GROUPS_AT_ONCE<M>, OUT_ROWS = GATED ? SIDE * M / 2 : SIDE * M;
  __shared__ Tiles<M, N> tiles;
  const TokenRange range = token_range(pairs, offsets, num_out, pairs_per_row);
  const int groups = columns / 32, first_row = blockIdx.x * OUT_ROWS;
  const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
  // This thread's unit of W: one row, one group of each step. Neighbouring threads have neighbouring groups.
  const int unit_row = threadIdx.x / GROUPS, unit_group = threadIdx.x % GROUPS;
  const bool is_up = GATED && unit_row >= OUT_ROWS;
  const int matrix_row = min(first_row + unit_row - (is_up ? OUT_ROWS : 0), R - 1);
  const u8* from = (is_up ? second : weights) + ((i64)blockIdx.y * R + matrix_row) * Format::row_bytes(columns);

  for (int start = range.begin + blockIdx.z * SIDE * N; start < range.end; start += gridDim.z * SIDE * N) {
    float acc[M][N] = {};
    for (int group = 0; group < groups; group += GROUPS) {
      const int now = min(GROUPS, groups - group);
      __syncthreads();  // the previous tiles are done
      if (unit_group < now) {
        Values32 piece;
        Format::load(piece, from, group + unit_group, columns, grid);
        store_piece(tiles, unit_row, unit_group, piece);
      }
      for (int unit = threadIdx.x; unit < SIDE * N * GROUPS; unit += THREADS)
        if (unit % GROUPS < now)
          store_block(tiles, unit / GROUPS, unit % GROUPS, x[(i64)range.x_row(start + unit / GROUPS) * groups + group + unit % GROUPS]);
      __syncthreads();
      multiply(acc, tiles, now, i, j);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int to = range.out_row(start + j + SIDE * n);
#pragma unroll
      for (int m = 0; m < (GATED ? M / 2 : M); m++) {
        const int row = first_row + i + SIDE * m;
        if (to < 0 || row >= R) continue;
        if (GATED) out[(i64)to * R + row] = silu(acc[m][n]) * acc[m + M / 2][n];
        else finish(out, other, (i64)to * R + row, acc[m][n], mode);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_16(const u8* __restrict__ weights, const u8* __restrict__ grid, const Q8Block* __restrict__ x, const int* __restrict__ pairs,
        const int* __restrict__ offsets, const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<2, 1, false>(weights, nullptr, grid, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_32(const u8* __restrict__ weights, const u8* __restrict__ grid, const Q8Block* __restrict__ x, const int* __restrict__ pairs,
        const int* __restrict__ offsets, const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<2, 2, false>(weights, nullptr, grid, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_64(const u8* __restrict__ weights, const u8* __restrict__ grid, const Q8Block* __restrict__ x, const int* __restrict__ pairs,
        const int* __restrict__ offsets, const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int mode) {
  gemm<4, 4, false>(weights, nullptr, grid, x, pairs, offsets, other, out, R, columns, num_out, pairs_per_row, mode);
}

// out[t][r] = silu(gate[r] . x[t]) * (up[r] . x[t]); both matrices of one format.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_gate_up_16(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const Q8Block* __restrict__ x,
                const int* __restrict__ pairs, const int* __restrict__ offsets, float* __restrict__ out, int R, int columns, int num_out,
                int pairs_per_row) {
  gemm<2, 1, true>(gate, up, grid, x, pairs, offsets, nullptr, out, R, columns, num_out, pairs_per_row, 0);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_gate_up_32(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const Q8Block* __restrict__ x,
                const int* __restrict__ pairs, const int* __restrict__ offsets, float* __restrict__ out, int R, int columns, int num_out,
                int pairs_per_row) {
  gemm<2, 2, true>(gate, up, grid, x, pairs, offsets, nullptr, out, R, columns, num_out, pairs_per_row, 0);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
gemm_gate_up_64(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const Q8Block* __restrict__ x,
                const int* __restrict__ pairs, const int* __restrict__ offsets, float* __restrict__ out, int R, int columns, int num_out,
                int pairs_per_row) {
  gemm<4, 4, true>(gate, up, grid, x, pairs, offsets, nullptr, out, R, columns, num_out, pairs_per_row, 0);
}
