// The last launch of a Gated DeltaNet core: the gated norm of all tokens, and, in blocks of their own, the convolution rows to keep.
//
//   out = norm(o) * weight * SiLU(z)     norm over VALUE_DIM first, then the gate
//
// Grid: `norm_blocks` blocks with a warp for each (token, value head), then ceil(channels / 256) blocks for each sequence, a thread for each
// channel. Convolution rows are written only here, after every kernel that reads them, because heads share channels.
#include "delta.cuh"
#include "journal.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;

// A token of a padding row, or after the last sequence, gets zeros, even if `reads` and `gate` are NaN.
__device__ __forceinline__ void norm_head(float* out, const float* reads, const float* gate, const float* weight, const int* rows,
                                          const int* cu_seqlens, int num_sequences, int num_value_heads, i64 job, float epsilon) {
  constexpr int PER_LANE = (VALUE_DIM + WARP - 1) / WARP;
  const int token = job / num_value_heads;
  const bool used = token < cu_seqlens[num_sequences] && rows[sequence_of(cu_seqlens, num_sequences, token)] >= 0;
  float values[PER_LANE], squares = 0.f;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int d = lane_index() + i * WARP;
    values[i] = used && d < VALUE_DIM ? reads[job * VALUE_DIM + d] : 0.f;
    squares = fmaf(values[i], values[i], squares);
  }
  const float scale = 1.f / sqrtf(warp_sum(squares) / VALUE_DIM + epsilon);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int d = lane_index() + i * WARP;
    if (d < VALUE_DIM) out[job * VALUE_DIM + d] = used ? values[i] * scale * weight[d] * silu(gate[job * VALUE_DIM + d]) : 0.f;
  }
}

// One channel of one sequence: the last rows after each captured token, then after the last token unless it is held. Old rows are read before
// any is written.
__device__ __forceinline__ void keep_rows(float* live, float* snapshots, i64 snapshot_elements, const float* raw, int channels, int channel,
                                          int first, int num_tokens, const int* capture_tokens, const int* capture_snapshots, int capture,
                                          int end_capture, bool held) {
  for (; capture < end_capture; capture++) {
    if (capture_snapshots[capture] < 0) continue;
    const int after = capture_tokens[capture] - first + 1;
    float* snapshot = snapshots + capture_snapshots[capture] * snapshot_elements;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
      snapshot[(i64)i * channels + channel] = raw_value(raw, live, channels, first, after - (TAPS - 1) + i, channel);
  }
  if (held) return;
  float last[TAPS - 1];
#pragma unroll
  for (int i = 0; i < TAPS - 1; i++) last[i] = raw_value(raw, live, channels, first, num_tokens - (TAPS - 1) + i, channel);
#pragma unroll
  for (int i = 0; i < TAPS - 1; i++) live[(i64)i * channels + channel] = last[i];
}

// reads, gate, out [T][V]; `out` may be `reads`. weight [VALUE_DIM]; raw [T][channels].
extern "C" __global__ void __launch_bounds__(THREADS)
delta_finish(float* out, const float* reads, const float* __restrict__ gate, const float* __restrict__ weight, const float* __restrict__ raw,
             float* conv_rows, float* snapshot_conv_rows, i64 state_elements, i64 snapshot_elements, const int* __restrict__ rows, const int* __restrict__ cu_seqlens,
             const int* __restrict__ capture_tokens, const int* __restrict__ capture_snapshots, const int* __restrict__ cu_captures,
             const int* __restrict__ modes, const int* __restrict__ positions, float* journal, i64 journal_elements, int journal_length,
             int num_tokens, int num_sequences, int num_value_heads, int channels, int norm_blocks, float epsilon) {
  if (blockIdx.x < norm_blocks) {
    const i64 job = (i64)blockIdx.x * WARPS + warp_index();
    if (job < (i64)num_tokens * num_value_heads)
      norm_head(out, reads, gate, weight, rows, cu_seqlens, num_sequences, num_value_heads, job, epsilon);
    return;
  }
  const int channel_blocks = ceil_div(channels, THREADS), block = blockIdx.x - norm_blocks;
  const int sequence = block / channel_blocks, channel = block % channel_blocks * THREADS + threadIdx.x;
  const int row = rows[sequence], first = cu_seqlens[sequence], length = cu_seqlens[sequence + 1] - first;
  if (row < 0 || length < 1 || channel >= channels) return;
  const int mode = mode_of(modes, sequence);
  for (int token = first; mode & WRITES_JOURNAL && token < first + length; token++)
    journal_entry(journal, journal_length, journal_elements, row, positions[token])[channel] = raw[(i64)token * channels + channel];
  keep_rows(conv_rows + row * state_elements, snapshot_conv_rows, snapshot_elements, raw, channels, channel, first, length, capture_tokens,
            capture_snapshots, cu_captures[sequence], cu_captures[sequence + 1], mode & HOLDS_ROW);
}
