// out[i] = x[t] / sqrt(mean(x[t]^2) + epsilon) * weight, over rows of C floats.
//
// A block per row, grid [rows]. The row is read twice, the second time from the cache. The order of additions depends only on C and the
// block size, so a row has the same bits alone and among others.
#include "common.cuh"
#include "warp.cuh"

// Index arrays may be nullptr, which means row i. `to_stride` and `to_offset` count floats: a row may be part of a larger one.
extern "C" __global__ void __launch_bounds__(1024)
rms_norm(const float* __restrict__ x, const int* __restrict__ from_row, const float* __restrict__ weight, float* __restrict__ out,
         const int* __restrict__ to_row, i64 to_stride, i64 to_offset, int C, float epsilon) {
  __shared__ float scratch[WARP];
  const int row = blockIdx.x;
  const float* from = x + (i64)(from_row ? from_row[row] : row) * C;
  float* to = out + (to_row ? to_row[row] : row) * to_stride + to_offset;
  float squares = 0.f;
  for (int i = threadIdx.x; i < C; i += blockDim.x) squares += from[i] * from[i];
  const float scale = 1.f / sqrtf(block_sum(squares, scratch) / C + epsilon);
  for (int i = threadIdx.x; i < C; i += blockDim.x) to[i] = from[i] * scale * weight[i];
}
