// out[t][r] = W[r] . x[t] for few rows of activations; W [R, K] in any format, straight from its blocks.
//
// `lanes` neighbouring lanes (a power of two up to 32, chosen from K alone) share a row of W: each takes every lanes-th piece, then
// their sums are added. A lane has TOKENS rows of x at once, and two rows of W (plain kernels for one or two tokens; gate and up), so
// that loaded values are used several times. The order of additions of one output depends on K alone, so it has the same bits for any
// number of tokens. Blocks of 128 threads, grid [ceil(R / rows of a block), ceil(T / TOKENS)].
//
// Experts: W is a stack [E, R, K] and output row p (a pair of token and rank) is W[experts[p]] . x[p / pairs_per_row]; a negative expert
// gives zeros. These kernels have one output row per thread block (gemv_1, gate_up_1).
//
// Not measured on a GPU yet. Suspect: lanes that read 34-byte blocks of Q8_0 do not coalesce. Repacking, or staging in shared memory,
// would help; both fit behind Format::load.
// Variant: QUANT=Q8_0
// Variant: QUANT=Q6_K
// Variant: QUANT=IQ2_XS
// Variant: QUANT=BF16
#include "matmul.cuh"
#include "quant/formats.cuh"
#include "warp.cuh"

constexpr int THREADS = 128;

// Sum over `lanes` neighbouring lanes. Called by all 32.
__device__ __forceinline__ float lanes_sum(float v, int lanes) {
  for (int offset = lanes / 2; offset; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
  return v;
}

template <int TOKENS, int ROWS>
__device__ __forceinline__ void dots(float (&sums)[ROWS][TOKENS], const u8* const (&rows)[ROWS], const Activation* const (&x)[TOKENS],
                                     const u8* grid, int columns, int lanes) {
  const int pieces = (int)ceil_div(columns, Format::GROUP);
  for (int index = threadIdx.x % lanes; index < pieces; index += lanes) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      Format::Piece piece;
      Format::load(piece, rows[r], index, columns, grid);
#pragma unroll
      for (int t = 0; t < TOKENS; t++) sums[r][t] = Format::dot(sums[r][t], piece, x[t], index, columns);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int t = 0; t < TOKENS; t++) sums[r][t] = lanes_sum(sums[r][t], lanes);
}

// Activations of the output rows from `first` on; after the last row, that row again.
template <int TOKENS>
__device__ __forceinline__ void rows_of_x(const Activation* (&x)[TOKENS], const void* all, int first, int num_out, int pairs_per_row, int columns) {
  const i64 stride = Format::row_activations(columns);
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
    x[t] = reinterpret_cast<const Activation*>(all) + min(first + t, num_out - 1) / pairs_per_row * stride;
}

template <int TOKENS>
__device__ __forceinline__ void plain(const u8* weights, const u8* grid, const void* x, const int* experts, const float* other, float* out,
                                      int R, int columns, int num_out, int pairs_per_row, int lanes, int mode) {
  constexpr int ROWS = TOKENS <= 2 ? 2 : 1;
  const int row = ((int)blockIdx.x * (THREADS / lanes) + (int)threadIdx.x / lanes) * ROWS, first = blockIdx.y * TOKENS;
  const int expert = experts ? experts[first] : 0;  // one for the whole block
  const Activation* x_rows[TOKENS];
  rows_of_x(x_rows, x, first, num_out, pairs_per_row, columns);
  const u8* rows[ROWS];
  float sums[ROWS][TOKENS] = {};
#pragma unroll
  for (int r = 0; r < ROWS; r++) rows[r] = weights + ((i64)expert * R + min(row + r, R - 1)) * Format::row_bytes(columns);
  if (expert >= 0) dots(sums, rows, x_rows, grid, columns, lanes);
  if (threadIdx.x % lanes == 0)
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int t = 0; t < TOKENS; t++)
        if (row + r < R && first + t < num_out) finish(out, other, (i64)(first + t) * R + row + r, sums[r][t], mode);
}

template <int TOKENS>
__device__ __forceinline__ void gated(const u8* gate, const u8* up, const u8* grid, const void* x, const int* experts, float* out, int R,
                                      int columns, int num_out, int pairs_per_row, int lanes) {
  const int row = (int)blockIdx.x * (THREADS / lanes) + (int)threadIdx.x / lanes, first = blockIdx.y * TOKENS;
  const int expert = experts ? experts[first] : 0;
  const Activation* x_rows[TOKENS];
  rows_of_x(x_rows, x, first, num_out, pairs_per_row, columns);
  const i64 offset = ((i64)expert * R + min(row, R - 1)) * Format::row_bytes(columns);
  const u8* const rows[2] = {gate + offset, up + offset};
  float sums[2][TOKENS] = {};
  if (expert >= 0) dots(sums, rows, x_rows, grid, columns, lanes);
  if (threadIdx.x % lanes == 0 && row < R)
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
      if (first + t < num_out) out[(i64)(first + t) * R + row] = silu(sums[0][t]) * sums[1][t];
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
gemv_1(const u8* __restrict__ weights, const u8* __restrict__ grid, const void* __restrict__ x, const int* __restrict__ experts,
       const float* other, float* out, int R, int columns, int num_out, int pairs_per_row, int lanes, int mode) {
  plain<1>(weights, grid, x, experts, other, out, R, columns, num_out, pairs_per_row, lanes, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gemv_2(const u8* __restrict__ weights, const u8* __restrict__ grid, const void* __restrict__ x, const float* other, float* out, int R,
       int columns, int num_out, int lanes, int mode) {
  plain<2>(weights, grid, x, nullptr, other, out, R, columns, num_out, 1, lanes, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gemv_4(const u8* __restrict__ weights, const u8* __restrict__ grid, const void* __restrict__ x, const float* other, float* out, int R,
       int columns, int num_out, int lanes, int mode) {
  plain<4>(weights, grid, x, nullptr, other, out, R, columns, num_out, 1, lanes, mode);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gemv_8(const u8* __restrict__ weights, const u8* __restrict__ grid, const void* __restrict__ x, const float* other, float* out, int R,
       int columns, int num_out, int lanes, int mode) {
  plain<8>(weights, grid, x, nullptr, other, out, R, columns, num_out, 1, lanes, mode);
}

// out[t][r] = silu(gate[r] . x[t]) * (up[r] . x[t]); both matrices of one format.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gate_up_1(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const void* __restrict__ x,
          const int* __restrict__ experts, float* __restrict__ out, int R, int columns, int num_out, int pairs_per_row, int lanes) {
  gated<1>(gate, up, grid, x, experts, out, R, columns, num_out, pairs_per_row, lanes);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gate_up_2(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const void* __restrict__ x,
          float* __restrict__ out, int R, int columns, int num_out, int lanes) {
  gated<2>(gate, up, grid, x, nullptr, out, R, columns, num_out, 1, lanes);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gate_up_4(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const void* __restrict__ x,
          float* __restrict__ out, int R, int columns, int num_out, int lanes) {
  gated<4>(gate, up, grid, x, nullptr, out, R, columns, num_out, 1, lanes);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
gate_up_8(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ grid, const void* __restrict__ x,
          float* __restrict__ out, int R, int columns, int num_out, int lanes) {
  gated<8>(gate, up, grid, x, nullptr, out, R, columns, num_out, 1, lanes);
}
