// The recurrence of a Gated DeltaNet layer token by token (decode, draft checks), from the raw projections to the reads o: convolution,
// SiLU, L2 norms, gates and the delta rule in one launch. The state is read once and written once for every STEP_TOKENS tokens and stays
// in registers in between, so no bit depends on how a text was divided into steps. `--exact` needs that for long chunks too.
//
//   S = e^g S;  delta = beta (v - S^T k);  S = S + k delta^T;  o = S^T q      as   o = e^g S^T q + delta (k . q), one pass over S a token
//
// Grid [column blocks, num_value_heads, sequences]; a block has `columns` value columns of one head of one sequence. 8 lanes (4 for head
// sizes that 32 does not divide) share a column, 16 bytes a lane: a warp reads 128 neighbouring bytes of each of its columns at a time.
// `columns` only divides the work: no bit of a result depends on it.
//
// delta_finish advances the convolution rows; doing it here would race with other heads that read the same channels.
// Losers (on paper, not measured): a warp per column (10 shuffles for each 4 numbers a lane; here 10 for 16), state in shared memory.
//
// Variant: KEY_DIM=128 VALUE_DIM=128 GROUPED=1
// Variant: KEY_DIM=32 VALUE_DIM=32
// Variant: KEY_DIM=128 VALUE_DIM=128 GROUPED=1 SNAPSHOT=2
// Variant: KEY_DIM=48 VALUE_DIM=48 SNAPSHOT=1
#include "delta.cuh"
#include "journal.cuh"
#include "snapshot.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP;
constexpr int STEP_TOKENS = 8;  // prepared at once; without --exact longer sequences use the chunked form
constexpr int COLUMN_LANES = KEY_DIM % 32 == 0 ? 8 : 4;
constexpr int VECTORS = KEY_DIM / (4 * COLUMN_LANES);  // float4 of a column in one lane
constexpr int LANE_COLUMNS = 2;                        // columns a lane has at once
constexpr int WARP_COLUMNS = WARP / COLUMN_LANES * LANE_COLUMNS;

struct Tokens {  // of one head, in shared memory
  float query[STEP_TOKENS][KEY_DIM], key[STEP_TOKENS][KEY_DIM], value[STEP_TOKENS][VALUE_DIM];
  float decay[STEP_TOKENS], beta[STEP_TOKENS];
  float* deltas[STEP_TOKENS];  // of this head in the token's entry of the journal, or null; here since registers are scarce
};

// A lane's part of LANE_COLUMNS columns. Column c of the warp's set is first + c * (WARP / COLUMN_LANES) + lane / COLUMN_LANES.
struct Columns {
  float4 part[LANE_COLUMNS][VECTORS];

  static __device__ __forceinline__ int lane_part() { return lane_index() % COLUMN_LANES * 4; }
  static __device__ __forceinline__ int column(int first, int c) { return first + c * (WARP / COLUMN_LANES) + lane_index() / COLUMN_LANES; }

  __device__ __forceinline__ void load(const float* state, int first, int end) {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
#pragma unroll
      for (int v = 0; v < VECTORS; v++)
        part[c][v] = column(first, c) < end ? load4(state + column(first, c) * KEY_DIM + v * 4 * COLUMN_LANES + lane_part())
                                            : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ __forceinline__ void store(float* state, int first, int end) const {
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++)
#pragma unroll
      for (int v = 0; v < VECTORS; v++)
        if (column(first, c) < end) store4(state + column(first, c) * KEY_DIM + v * 4 * COLUMN_LANES + lane_part(), part[c][v]);
  }

  // Into a snapshot of any type. `to`: its part of this layer; `head`: of `num_value_heads`. Called by all lanes of a warp.
  __device__ __forceinline__ void keep(float* to, int head, int num_value_heads, int first, int end) const {
    const i64 scales = (i64)num_value_heads * VALUE_DIM * KEY_DIM / 4;  // words before them
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) {
      u32 most = 0;
#pragma unroll
      for (int v = 0; SNAPSHOT == 2 && v < VECTORS; v++)
        most = max(max(most, max(magnitude(part[c][v].x), magnitude(part[c][v].y))),
                   max(magnitude(part[c][v].z), magnitude(part[c][v].w)));
      const Rounding rounding(SNAPSHOT == 2 ? group_largest<COLUMN_LANES>(most) : 0);
      if (column(first, c) >= end) continue;
      const i64 in_layer = (i64)head * VALUE_DIM + column(first, c);
#pragma unroll
      for (int v = 0; v < VECTORS; v++) {
        const float4 x = part[c][v];
        const i64 index = in_layer * KEY_DIM + v * 4 * COLUMN_LANES + lane_part();
        if (SNAPSHOT == 0) store4(to + index, x);
        else if (SNAPSHOT == 1) reinterpret_cast<uint2*>(to)[index / 4] = make_uint2(packed_bf16(x.x, x.y), packed_bf16(x.z, x.w));
        else reinterpret_cast<u32*>(to)[index / 4] = packed_bytes(rounding, x);
      }
      if (SNAPSHOT == 2 && lane_part() == 0) to[scales + in_layer] = rounding.scale;
    }
  }

  // Advances the columns by one token; `out` is the head's part of the token's row of reads. Called by all lanes of a warp.
  __device__ __forceinline__ void advance(const Tokens& tokens, int t, int first, int end, float* out) {
    float read[LANE_COLUMNS] = {}, result[LANE_COLUMNS] = {}, key_query = 0.f;
    float4 keys[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      keys[v] = load4(&tokens.key[t][v * 4 * COLUMN_LANES + lane_part()]);
      const float4 query = load4(&tokens.query[t][v * 4 * COLUMN_LANES + lane_part()]);
      key_query = dot4(keys[v], query, key_query);
#pragma unroll
      for (int c = 0; c < LANE_COLUMNS; c++) {
        read[c] = dot4(part[c][v], keys[v], read[c]);
        result[c] = dot4(part[c][v], query, result[c]);
      }
    }
    key_query = group_sum<COLUMN_LANES>(key_query);
    const float decay = tokens.decay[t], beta = tokens.beta[t];
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; c++) {
      read[c] = group_sum<COLUMN_LANES>(read[c]);
      result[c] = group_sum<COLUMN_LANES>(result[c]);
      const bool mine = column(first, c) < end;
      const float delta = mine ? beta * (tokens.value[t][column(first, c)] - decay * read[c]) : 0.f;
#pragma unroll
      for (int v = 0; v < VECTORS; v++) part[c][v] = blend4(part[c][v], decay, keys[v], delta);
      if (mine && lane_part() == 0) out[column(first, c)] = fmaf(delta, key_query, decay * result[c]);
      if (mine && lane_part() == 0 && tokens.deltas[t]) tokens.deltas[t][column(first, c)] = delta;
    }
  }
};

// One q or k head of one token by one warp: convolution, SiLU, norm.
__device__ __forceinline__ void prepare_head(float* out, const float* raw, const float* kept, const float* taps, int channels, int first,
                                             int index, int channel, float epsilon, bool is_query) {
  constexpr int PER_LANE = (KEY_DIM + WARP - 1) / WARP;
  float values[PER_LANE], squares = 0.f;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int d = lane_index() + i * WARP;
    values[i] = d < KEY_DIM ? convolved(raw, kept, taps, channels, first, index, channel + d) : 0.f;
    squares = fmaf(values[i], values[i], squares);
  }
  const float scale = head_scale(warp_sum(squares), epsilon, is_query);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++)
    if (lane_index() + i * WARP < KEY_DIM) out[lane_index() + i * WARP] = values[i] * scale;
}

// raw [T][channels]; beta, alpha [T][num_value_heads] as projected; taps [channels][TAPS]; a, dt_bias [num_value_heads];
// reads [T][V] out. Sequences of more than `max_tokens` tokens, or with a negative row, are skipped. A held sequence (journal.cuh) has at most
// STEP_TOKENS tokens.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
delta_decode(float* __restrict__ reads, const float* __restrict__ raw, const float* __restrict__ beta, const float* __restrict__ alpha,
             const float* __restrict__ taps, const float* __restrict__ a, const float* __restrict__ dt_bias, float* __restrict__ recurrent,
             const float* __restrict__ conv_rows, float* __restrict__ snapshot_recurrent, i64 state_elements, i64 snapshot_elements,
             const int* __restrict__ rows, const int* __restrict__ cu_seqlens, const int* __restrict__ capture_tokens, const int* __restrict__ capture_snapshots,
             const int* __restrict__ cu_captures, const int* __restrict__ modes, const int* __restrict__ positions, float* __restrict__ journal,
             i64 journal_elements, int journal_length, int num_key_heads, int num_value_heads, int columns, int max_tokens, float epsilon) {
  __shared__ __align__(16) Tokens tokens;
  const int sequence = blockIdx.z, head = blockIdx.y, row = rows[sequence];
  const int first = cu_seqlens[sequence], num_tokens = cu_seqlens[sequence + 1] - first;
  if (row < 0 || num_tokens < 1 || num_tokens > max_tokens) return;  // the whole block

  const int keys = num_key_heads * KEY_DIM, values = num_value_heads * VALUE_DIM, channels = 2 * keys + values;
  const int from_column = blockIdx.x * columns, end = min(from_column + columns, VALUE_DIM), first_column = from_column + warp_index() * WARP_COLUMNS;
  const i64 head_offset = (i64)head * VALUE_DIM * KEY_DIM;
  float* const live = recurrent + row * state_elements + head_offset;
  Columns state;
  state.load(live, first_column, end);  // in flight while the heads are prepared

  const float* const kept = conv_rows + row * state_elements;
  const int key_head = key_head_of(head, num_key_heads, num_value_heads);
  for (int done = 0; done < num_tokens; done += STEP_TOKENS) {
    const int count = min(num_tokens - done, STEP_TOKENS);
    if (done) __syncthreads();  // the previous tokens are done
    for (int job = warp_index(); job < 2 * count; job += WARPS) {
      const int t = job / 2, is_query = job % 2;
      prepare_head(is_query ? tokens.query[t] : tokens.key[t], raw, kept, taps, channels, first, done + t,
                   (is_query ? 0 : keys) + key_head * KEY_DIM, epsilon, is_query);
    }
    for (int job = threadIdx.x; job < count * (end - from_column); job += THREADS) {
      const int t = job / (end - from_column), column = from_column + job % (end - from_column);
      tokens.value[t][column] = convolved(raw, kept, taps, channels, first, done + t, 2 * keys + head * VALUE_DIM + column);
    }
    if (threadIdx.x < count) {
      const i64 place = (i64)(first + done + threadIdx.x) * num_value_heads + head;
      tokens.beta[threadIdx.x] = sigmoid(beta[place]);
      tokens.decay[threadIdx.x] = expf(log_decay(alpha[place], a[head], dt_bias[head]));
      tokens.deltas[threadIdx.x] = mode_of(modes, sequence) & WRITES_JOURNAL
                                       ? journal_entry(journal, journal_length, journal_elements, row, positions[first + done + threadIdx.x]) + keys + head * VALUE_DIM
                                       : nullptr;
    }
    __syncthreads();

    if (tokens.deltas[0] && blockIdx.x == 0)  // the first of the value heads that share a key writes it
      for (int job = threadIdx.x; job < count * KEY_DIM; job += THREADS) {
        const int t = job / KEY_DIM, d = job % KEY_DIM;
        float* const entry = tokens.deltas[t] - keys - head * VALUE_DIM;
        if (GROUPED ? head % (num_value_heads / num_key_heads) == 0 : head < num_key_heads) entry[key_head * KEY_DIM + d] = tokens.key[t][d];
        if (d == 0) entry[keys + values + channels + head] = tokens.decay[t];
      }
    for (int column = first_column; column < end; column += WARPS * WARP_COLUMNS) {
      if (done || column != first_column) state.load(live, column, end);
      int capture = cu_captures[sequence];
      const int end_capture = cu_captures[sequence + 1];
      for (int t = 0; t < count; t++) {
        const int token = first + done + t;
        state.advance(tokens, t, column, end, reads + (i64)token * values + head * VALUE_DIM);
        for (; capture < end_capture && capture_tokens[capture] <= token; capture++)
          if (capture_tokens[capture] == token && capture_snapshots[capture] >= 0)
            state.keep(snapshot_recurrent + capture_snapshots[capture] * snapshot_elements, head, num_value_heads, column, end);
      }
      if (!(mode_of(modes, sequence) & HOLDS_ROW)) state.store(live, column, end);
    }
  }
}
