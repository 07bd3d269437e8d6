// Final hidden rows from the residual stream, into live rows and snapshots or for logits. C hidden, T tokens, B sequences.
//
// A block per row, as in rms_norm.cu, with the same order of additions: the hidden row of a token has the same bits everywhere.
#include "common.cuh"
#include "journal.cuh"
#include "warp.cuh"

__device__ __forceinline__ void norm_row(float* out, const float* x, const float* weight, int C, float epsilon, float* scratch) {
  float squares = 0.f;
  for (int i = threadIdx.x; i < C; i += blockDim.x) squares += x[i] * x[i];
  const float scale = 1.f / sqrtf(block_sum(squares, scratch) / C + epsilon);
  for (int i = threadIdx.x; i < C; i += blockDim.x) out[i] = x[i] * scale * weight[i];
}

// norm(hidden) of the last token of each sequence into its live row, of each captured token into its snapshot; by its mode (journal.cuh) of
// each of its tokens into the journal, which is at the hidden row of its first entry. Grid [B + captures].
// The slabs have `stride` and `snapshot_stride` words, the hidden row at `offset` and `snapshot_offset`. A negative row or snapshot is padding.
extern "C" __global__ void __launch_bounds__(1024)
final_hidden(float* __restrict__ live_rows, float* __restrict__ snapshots, const float* __restrict__ hidden, const float* __restrict__ weight,
             const int* __restrict__ cu_seqlens, const int* __restrict__ rows, const int* __restrict__ capture_tokens,
             const int* __restrict__ capture_snapshots, int B, i64 stride, i64 offset, i64 snapshot_stride, i64 snapshot_offset,
             const int* __restrict__ modes, const int* __restrict__ positions, float* __restrict__ journal, i64 journal_elements, int journal_length, int C,
             float epsilon) {
  __shared__ float scratch[WARP];
  const int sequence = blockIdx.x, capture = sequence - B;
  const int to = capture < 0 ? rows[sequence] : capture_snapshots[capture];
  if (to < 0) return;  // the whole block
  const int mode = capture < 0 ? mode_of(modes, sequence) : 0;
  for (int token = cu_seqlens[sequence < B ? sequence : 0]; mode & WRITES_JOURNAL && token < cu_seqlens[sequence + 1]; token++)
    norm_row(journal_entry(journal, journal_length, journal_elements, to, positions[token]), hidden + (i64)token * C, weight, C, epsilon, scratch);
  if (mode & HOLDS_ROW) return;
  const int token = capture < 0 ? cu_seqlens[sequence + 1] - 1 : capture_tokens[capture];
  float* out = capture < 0 ? live_rows + to * stride + offset : snapshots + to * snapshot_stride + snapshot_offset;
  norm_row(out, hidden + (i64)token * C, weight, C, epsilon, scratch);
}

// out[i] = norm(hidden[tokens[i]]), zeros for a negative token. Grid [n].
extern "C" __global__ void __launch_bounds__(1024)
hidden_rows(float* __restrict__ out, const float* __restrict__ hidden, const float* __restrict__ weight, const int* __restrict__ tokens, int C,
            float epsilon) {
  __shared__ float scratch[WARP];
  const int token = tokens[blockIdx.x];
  float* to = out + (i64)blockIdx.x * C;
  if (token >= 0) norm_row(to, hidden + (i64)token * C, weight, C, epsilon, scratch);
  else
    for (int i = threadIdx.x; i < C; i += blockDim.x) to[i] = 0.f;
}

// out[i] = the hidden row in live row rows[i], zeros for a negative row. Grid [n].
extern "C" __global__ void __launch_bounds__(1024)
live_hidden(float* __restrict__ out, const float* __restrict__ live_rows, const int* __restrict__ rows, i64 stride, i64 offset, int C) {
  const int row = rows[blockIdx.x];
  const float* from = live_rows + max(row, 0) * stride + offset;
  for (int i = threadIdx.x; i < C; i += blockDim.x) out[(i64)blockIdx.x * C + i] = row < 0 ? 0.f : from[i];
}
