// The chunked form of the gated delta rule (docs/model_math.md), float32, for many tokens of a sequence. The host lists the chunks: at most
// CHUNK tokens of one sequence, ending at every captured token. With G the running sum of the log decays in a chunk, D[i][j] = e^(G_i - G_j):
//
//   A = strictly lower(beta_i k_i . k_j D),  T = (I + A)^-1 diag(beta),  P = lower(q_i . k_j D)
//   X = v_i - e^(G_i) k_i^T S;  U = T X;  o = e^(G_i) q_i^T S + (P T) X;  S = e^(G_end) S + sum_i e^(G_end - G_i) k_i U_i^T
//
// 1. delta_chunk: T, P T and the decays of every chunk and value head, all chunks at once. Grid [chunks, num_value_heads].
// 2. delta_scan: the chunks of a sequence in order. Grid [ceil(VALUE_DIM / 32), num_value_heads, sequences]; the state of its
//    32 columns stays in shared memory (46 KiB with the rest), so that one sequence of a model with 32 heads of 128 gives 128 blocks.
//
// G is stored in two floats: strong decays (-77 a token) would otherwise take the digits of weak ones that follow in a chunk.
// D is masked before its exponential, so only differences G_i - G_j with i >= j are exponents.
// A scanning block runs alone on its multiprocessor, so loads run one slice ahead, through registers (a second slice in shared memory
// would not fit sm_75). To be measured on a GPU: tensor cores for the products with S (TF32 in three parts, or precision suffers).
//
// Variant: KEY_DIM=128 VALUE_DIM=128 GROUPED=1
// Variant: KEY_DIM=32 VALUE_DIM=32
// Variant: KEY_DIM=128 VALUE_DIM=128 GROUPED=1 SNAPSHOT=2
#include "delta.cuh"
#include "snapshot.cuh"

constexpr int SLICE = KEY_DIM % 32 == 0 ? 32 : 16;  // of the summed dimension, staged at once
constexpr int SLICE_ROW = SLICE + 4;                // padded: rows 16 apart fall into different banks
constexpr int HALF_ROW = 32 + 4;                    // a row of a staged half of T or P T
constexpr int GROUPS = 16;                          // row groups of a tile: a thread has rows group + 16 e
constexpr int BLOCKS = CHUNK / GROUPS;              // e = 0 ... BLOCKS - 1; a chunk is a BLOCKS x BLOCKS matrix of 16 x 16

// ---- 1. independent of the state -------------------------------------------------------------------------------------------------

constexpr int CHUNK_THREADS = 256;
constexpr int LOWER_ROW = CHUNK + 1;

// a + b and its rounding error.
__device__ __forceinline__ float2 add_exactly(float a, float b) {
  const float sum = a + b, other = sum - a;
  return make_float2(sum, (a - (sum - other)) + (b - other));
}
__device__ __forceinline__ float2 add_pairs(float2 a, float2 b) {
  const float2 sum = add_exactly(a.x, b.x);
  return add_exactly(sum.x, sum.y + (a.y + b.y));
}
__device__ __forceinline__ float exp_difference(float2 a, float2 b) { return expf((a.x - b.x) + (a.y - b.y)); }

// Running sums over CHUNK values, two a lane, by one warp.
__device__ __forceinline__ void running_sums(float2* sums, float even, float odd) {
  float2 both = add_exactly(even, odd), before = make_float2(0.f, 0.f), sum = both;
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const float2 other = make_float2(__shfl_up_sync(ALL_LANES, sum.x, offset), __shfl_up_sync(ALL_LANES, sum.y, offset));
    if (lane_index() >= offset) sum = add_pairs(other, sum);
  }
  before.x = __shfl_up_sync(ALL_LANES, sum.x, 1), before.y = __shfl_up_sync(ALL_LANES, sum.y, 1);
  if (lane_index() == 0) before = make_float2(0.f, 0.f);
  sums[2 * lane_index()] = add_pairs(before, make_float2(even, 0.f));
  sums[2 * lane_index() + 1] = sum;
}

// Copies `rows` rows of `width` floats into shared memory; only the first `valid` exist, the others become zero.
__device__ __forceinline__ void stage_rows(float* to, int to_row, const float* from, i64 stride, int rows, int width, int valid, int threads) {
  for (int i = threadIdx.x; i < rows * (width / 4); i += threads) {
    const int row = i / (width / 4), column = i % (width / 4) * 4;
    store4(to + row * to_row + column, row < valid ? load4(from + row * stride + column) : make_float4(0.f, 0.f, 0.f, 0.f));
  }
}

// lower = (I + lower)^-1 for a unit lower triangular matrix whose diagonal is not stored: 16 x 16 blocks on the diagonal by substitution, a
// thread a column, then pairs of blocks, [[B, 0], [C, E]]^-1 = [[B', 0], [-E' C B', E']]. On return ones are on the diagonal.
__device__ __forceinline__ void invert(float* lower, float* product) {
  float x[GROUPS];
  const int start = threadIdx.x / GROUPS * GROUPS, own = threadIdx.x % GROUPS;
  if (threadIdx.x < CHUNK) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      x[i] = i == own ? 1.f : 0.f;
#pragma unroll
      for (int m = 0; m < i; m++) x[i] = fmaf(-lower[(start + i) * LOWER_ROW + start + m], x[m], x[i]);
    }
  }
  __syncthreads();
  if (threadIdx.x < CHUNK) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) lower[(start + i) * LOWER_ROW + start + own] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int size = GROUPS; size < CHUNK; size *= 2) {
    const int elements = CHUNK / 2 * size;  // of all blocks below the diagonal of this size
    for (int i = threadIdx.x; i < elements; i += CHUNK_THREADS) {
      const int base = i / (size * size) * 2 * size, r = i / size % size, c = i % size;
      float sum = 0.f;
      for (int m = 0; m < size; m++) sum = fmaf(lower[(base + size + r) * LOWER_ROW + base + m], lower[(base + m) * LOWER_ROW + base + c], sum);
      product[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < elements; i += CHUNK_THREADS) {
      const int base = i / (size * size) * 2 * size, r = i / size % size, c = i % size;
      float sum = 0.f;
      for (int m = 0; m < size; m++)
        sum = fmaf(-lower[(base + size + r) * LOWER_ROW + base + size + m], product[i - r * size - c + m * size + c], sum);
      lower[(base + size + r) * LOWER_ROW + base + c] = sum;
    }
    __syncthreads();
  }
}

// beta and the sums G of a chunk's tokens, 0 after them. By one warp.
__device__ __forceinline__ void load_gates(float* beta, float2* sums, const float2* gates, int num_tokens, int num_value_heads) {
  float2 gate[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int t = 2 * threadIdx.x + i;
    gate[i] = t < num_tokens ? gates[(i64)t * num_value_heads] : make_float2(0.f, 0.f);
    beta[t] = gate[i].x;
  }
  running_sums(sums, gate[0].y, gate[1].y);
}

// k . k and q . k of a chunk; only 16 x 16 blocks with f <= e are computed. `staged`: two slices of CHUNK rows.
__device__ __forceinline__ void multiply_heads(float (&key_key)[BLOCKS][BLOCKS], float (&query_key)[BLOCKS][BLOCKS], float* staged,
                                               const float* query, const float* key, i64 channels, int num_tokens, int row, int column) {
  float* const keys = staged;
  float* const queries = staged + CHUNK * SLICE_ROW;
  for (int start = 0; start < KEY_DIM; start += SLICE) {
    __syncthreads();
    stage_rows(keys, SLICE_ROW, key + start, channels, CHUNK, SLICE, num_tokens, CHUNK_THREADS);
    stage_rows(queries, SLICE_ROW, query + start, channels, CHUNK, SLICE, num_tokens, CHUNK_THREADS);
    __syncthreads();
#pragma unroll 2
    for (int k = 0; k < SLICE; k += 4) {
      float4 right[BLOCKS];
#pragma unroll
      for (int f = 0; f < BLOCKS; f++) right[f] = load4(keys + (column + f * GROUPS) * SLICE_ROW + k);
#pragma unroll
      for (int e = 0; e < BLOCKS; e++) {
        const float4 left = load4(keys + (row + e * GROUPS) * SLICE_ROW + k), asked = load4(queries + (row + e * GROUPS) * SLICE_ROW + k);
#pragma unroll
        for (int f = 0; f <= e; f++) {
          key_key[e][f] = dot4(left, right[f], key_key[e][f]);
          query_key[e][f] = dot4(asked, right[f], query_key[e][f]);
        }
      }
    }
  }
  __syncthreads();
}

// product += left . right for lower triangular matrices, both with rows of LOWER_ROW floats.
__device__ __forceinline__ void multiply_lower(float (&product)[BLOCKS][BLOCKS], const float* left, const float* right, int row, int column) {
#pragma unroll
  for (int s = 0; s < BLOCKS; s++)
    for (int m = s * GROUPS; m < (s + 1) * GROUPS; m++)
#pragma unroll
      for (int e = s; e < BLOCKS; e++)
#pragma unroll
        for (int f = 0; f <= s; f++)
          product[e][f] = fmaf(left[(row + e * GROUPS) * LOWER_ROW + m], right[m * LOWER_ROW + column + f * GROUPS], product[e][f]);
}

// mixed [T][channels], gates [T][num_value_heads] of delta_conv; chunks [n]: (first token, tokens, first capture, captures).
// work [n][num_value_heads][CHUNK_WORK]: T, P T, e^(G_i), e^(G_end - G_i). Rows and columns after the chunk's tokens are zero.
extern "C" __global__ void __launch_bounds__(CHUNK_THREADS, 2)
delta_chunk(float* __restrict__ work, const float* __restrict__ mixed, const float2* __restrict__ gates, const int4* __restrict__ chunks,
            int num_key_heads, int num_value_heads) {
  __shared__ __align__(16) float staged[2 * CHUNK * SLICE_ROW < CHUNK * LOWER_ROW ? CHUNK * LOWER_ROW : 2 * CHUNK * SLICE_ROW];
  __shared__ float lower[CHUNK * LOWER_ROW], product[CHUNK / 2 * CHUNK / 2], beta[CHUNK];
  __shared__ float2 sums[CHUNK];
  const int4 chunk = chunks[blockIdx.x];
  const int head = blockIdx.y, first = chunk.x, num_tokens = chunk.y;
  if (num_tokens < 1) return;  // the whole block
  const int key_head = key_head_of(head, num_key_heads, num_value_heads);
  const i64 channels = 2 * num_key_heads * KEY_DIM + num_value_heads * VALUE_DIM;

  if (threadIdx.x < WARP) load_gates(beta, sums, gates + (i64)first * num_value_heads + head, num_tokens, num_value_heads);

  // Rows i = row + 16 e, columns j = column + 16 f of matrices [CHUNK][CHUNK].
  const int row = threadIdx.x / GROUPS, column = threadIdx.x % GROUPS;
  float key_key[BLOCKS][BLOCKS] = {}, query_key[BLOCKS][BLOCKS] = {};
  const float* query = mixed + first * channels + key_head * KEY_DIM;
  multiply_heads(key_key, query_key, staged, query, query + num_key_heads * KEY_DIM, channels, num_tokens, row, column);

  float* const scores = staged;  // P, in place of the slices
#pragma unroll
  for (int e = 0; e < BLOCKS; e++)
#pragma unroll
    for (int f = 0; f < BLOCKS; f++) {
      const int i = row + e * GROUPS, j = column + f * GROUPS;
      const float decay = j <= i ? exp_difference(sums[i], sums[j]) : 0.f;
      lower[i * LOWER_ROW + j] = j < i ? beta[i] * key_key[e][f] * decay : 0.f;
      scores[i * LOWER_ROW + j] = query_key[e][f] * decay;
    }
  __syncthreads();
  invert(lower, product);

  float* const out = work + ((i64)blockIdx.x * num_value_heads + head) * CHUNK_WORK;
  float seen[BLOCKS][BLOCKS] = {};  // P (I + A)^-1
  multiply_lower(seen, scores, lower, row, column);
#pragma unroll
  for (int e = 0; e < BLOCKS; e++)
#pragma unroll
    for (int f = 0; f < BLOCKS; f++) {
      const int i = row + e * GROUPS, j = column + f * GROUPS;
      out[i * CHUNK + j] = lower[i * LOWER_ROW + j] * beta[j];
      out[CHUNK_MATRIX + i * CHUNK + j] = seen[e][f] * beta[j];
    }
  if (threadIdx.x < CHUNK) {
    out[2 * CHUNK_MATRIX + threadIdx.x] = exp_difference(sums[threadIdx.x], make_float2(0.f, 0.f));
    out[2 * CHUNK_MATRIX + CHUNK + threadIdx.x] = exp_difference(sums[CHUNK - 1], sums[threadIdx.x]);
  }
}

// ---- 2. advance the state through the chunks --------------------------------------------------------------------------------------------------

constexpr int COLUMNS = 32;
constexpr int SCAN_THREADS = 128;  // 16 groups of 8: a thread has rows group + 16 e and 4 neighbouring columns
constexpr int STATE_ROW = COLUMNS + 4;
constexpr int KEY_TILE = KEY_DIM / GROUPS;  // rows of the state that a thread updates
constexpr int KEY_ROW = KEY_DIM + 4;
constexpr int KEY_ROWS = 32;                        // tokens staged at once for the update
constexpr int SLICES_SIZE = 2 * CHUNK * HALF_ROW;   // the largest of the three kinds of slices
constexpr int HELD = 2 * CHUNK * 32 / 4 / SCAN_THREADS;

struct ScanShared {
  float state[KEY_DIM * STATE_ROW];  // [key dimension][column]
  float update[CHUNK * STATE_ROW];   // X, then U
  float slices[SLICES_SIZE];
  float decay[CHUNK], decay_to_end[CHUNK];
};
static_assert(2 * CHUNK * SLICE_ROW <= SLICES_SIZE && KEY_ROWS * KEY_ROW <= SLICES_SIZE, "slices share their place");
static_assert(sizeof(ScanShared) <= 48 * 1024, "fixed shared memory");

// The next slice, in flight from global memory while the current one is in use.
struct Held {
  float4 part[HELD];

  // Loads ROWS rows of WIDTH floats into part[FROM ...]; rows from `valid` on do not exist and are zero.
  template <int ROWS, int WIDTH, int FROM = 0> __device__ __forceinline__ void fetch(const float* from, i64 stride, int valid) {
#pragma unroll
    for (int n = 0; n < ROWS * WIDTH / 4 / SCAN_THREADS; n++) {
      const int i = threadIdx.x + n * SCAN_THREADS, row = i / (WIDTH / 4);
      part[FROM + n] = row < valid ? load4(from + row * stride + i % (WIDTH / 4) * 4) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
  template <int ROWS, int WIDTH> __device__ __forceinline__ void put(float* to, int to_row) const {
#pragma unroll
    for (int n = 0; n < ROWS * WIDTH / 4 / SCAN_THREADS; n++) {
      const int i = threadIdx.x + n * SCAN_THREADS;
      store4(to + i / (WIDTH / 4) * to_row + i % (WIDTH / 4) * 4, part[n]);
    }
  }
};

// One chunk of one value head, and how its slices are fetched. A pair of matrices has the rows of the first, then those of the second.
struct Chunk {
  const float *query, *key, *work;  // first token's q and k head; CHUNK_WORK
  i64 channels;
  int num_tokens;

  __device__ __forceinline__ void fetch_heads(Held& held, int start) const {
    held.fetch<CHUNK, SLICE>(key + start, channels, num_tokens);
    held.fetch<CHUNK, SLICE, CHUNK * SLICE / 4 / SCAN_THREADS>(query + start, channels, num_tokens);
  }
  __device__ __forceinline__ void fetch_matrices(Held& held, int start) const {
    held.fetch<CHUNK, 32>(work + start, CHUNK, CHUNK);
    held.fetch<CHUNK, 32, CHUNK * 32 / 4 / SCAN_THREADS>(work + CHUNK_MATRIX + start, CHUNK, CHUNK);
  }
  __device__ __forceinline__ void fetch_keys(Held& held, int start) const {
    held.fetch<KEY_ROWS, KEY_DIM>(key + start * channels, channels, num_tokens - start);
  }
};

__device__ __forceinline__ float4 scaled(float4 x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}
__device__ __forceinline__ void add4(float4& sum, float factor, float4 x) {
  sum.x = fmaf(factor, x.x, sum.x), sum.y = fmaf(factor, x.y, sum.y), sum.z = fmaf(factor, x.z, sum.z), sum.w = fmaf(factor, x.w, sum.w);
}

// a[e] += left rows . right, b[e] += other rows . right for e >= FROM, over `width` summed entries; rows of left and other have `left_row` floats.
template <int FROM>
__device__ __forceinline__ void accumulate(float4 (&a)[BLOCKS], float4 (&b)[BLOCKS], const float* left, const float* other, int left_row,
                                           const float* right, int width) {
#pragma unroll 2
  for (int k = 0; k < width; k += 4) {
    float4 from[4];
#pragma unroll
    for (int i = 0; i < 4; i++) from[i] = load4(right + (k + i) * STATE_ROW);
#pragma unroll
    for (int e = FROM; e < BLOCKS; e++) {
      const float4 x = load4(left + e * GROUPS * left_row + k), y = load4(other + e * GROUPS * left_row + k);
      add4(a[e], x.x, from[0]), add4(a[e], x.y, from[1]), add4(a[e], x.z, from[2]), add4(a[e], x.w, from[3]);
      add4(b[e], y.x, from[0]), add4(b[e], y.y, from[1]), add4(b[e], y.z, from[2]), add4(b[e], y.w, from[3]);
    }
  }
}

// The columns of a state between shared memory and a live row, [column][key dimension] there; `columns` of COLUMNS exist.
__device__ __forceinline__ void load_state(ScanShared& s, const float* from, int columns) {
  for (int i = threadIdx.x; i < COLUMNS * KEY_DIM; i += SCAN_THREADS)
    s.state[i % KEY_DIM * STATE_ROW + i / KEY_DIM] = i < columns * KEY_DIM ? from[i] : 0.f;
}
__device__ __forceinline__ void store_state(const ScanShared& s, float* to, int columns) {
  for (int i = threadIdx.x; i < columns * KEY_DIM; i += SCAN_THREADS) to[i] = s.state[i % KEY_DIM * STATE_ROW + i / KEY_DIM];
}
// Into a snapshot of any type; `to`: its part of this layer. Four lanes a column; called by all threads of the block.
__device__ __forceinline__ void keep_state(const ScanShared& s, float* to, int head, int num_value_heads, int first_column, int columns) {
  if (SNAPSHOT == 0) return store_state(s, to + ((i64)head * VALUE_DIM + first_column) * KEY_DIM, columns);
  constexpr int LANES = SCAN_THREADS / COLUMNS;
  const int column = threadIdx.x / LANES, part = threadIdx.x % LANES;
  u32 most = 0;
  for (int k = part; SNAPSHOT == 2 && k < KEY_DIM; k += LANES) most = max(most, magnitude(s.state[k * STATE_ROW + column]));
  const Rounding rounding(SNAPSHOT == 2 ? group_largest<LANES>(most) : 0);
  if (column >= columns) return;
  const i64 in_layer = (i64)head * VALUE_DIM + first_column + column;
  for (int k = part; k < KEY_DIM; k += LANES) put_number(to, in_layer * KEY_DIM + k, s.state[k * STATE_ROW + column], rounding);
  if (SNAPSHOT == 2 && part == 0) to[(i64)num_value_heads * VALUE_DIM * KEY_DIM / 4 + in_layer] = rounding.scale;
}

// The three phases of a chunk. On entry `held` has the first slice of the phase, on return that of the next phase; each ends with a barrier.

// reads = k^T S, out = q^T S
__device__ __forceinline__ void read_state(ScanShared& s, Held& held, float4 (&reads)[BLOCKS], float4 (&out)[BLOCKS], const Chunk& chunk,
                                           int group, int column) {
  const float* left = s.slices + group * SLICE_ROW;
  for (int start = 0; start < KEY_DIM; start += SLICE) {
    held.put<2 * CHUNK, SLICE>(s.slices, SLICE_ROW);
    __syncthreads();
    if (start + SLICE < KEY_DIM) chunk.fetch_heads(held, start + SLICE);
    else chunk.fetch_matrices(held, 0);
    accumulate<0>(reads, out, left, left + CHUNK * SLICE_ROW, SLICE_ROW, s.state + start * STATE_ROW + column, SLICE);
    __syncthreads();
  }
}

// update = T X, out += P T X with X in s.update; both matrices are lower triangular.
__device__ __forceinline__ void solve(ScanShared& s, Held& held, float4 (&update)[BLOCKS], float4 (&out)[BLOCKS], const Chunk& chunk,
                                      int group, int column) {
  const float *left = s.slices + group * HALF_ROW, *other = left + CHUNK * HALF_ROW, *right = s.update + column;
  held.put<2 * CHUNK, 32>(s.slices, HALF_ROW);
  __syncthreads();
  const bool both_halves = chunk.num_tokens > 32;
  if (both_halves) chunk.fetch_matrices(held, 32);
  else chunk.fetch_keys(held, 0);
  accumulate<0>(update, out, left, other, HALF_ROW, right, GROUPS);
  accumulate<1>(update, out, left + GROUPS, other + GROUPS, HALF_ROW, right + GROUPS * STATE_ROW, GROUPS);
  __syncthreads();
  if (!both_halves) return;  // the whole block
  held.put<2 * CHUNK, 32>(s.slices, HALF_ROW);
  __syncthreads();
  chunk.fetch_keys(held, 0);
  accumulate<2>(update, out, left, other, HALF_ROW, right + 2 * GROUPS * STATE_ROW, GROUPS);
  accumulate<3>(update, out, left + GROUPS, other + GROUPS, HALF_ROW, right + 3 * GROUPS * STATE_ROW, GROUPS);
  __syncthreads();
}

// S = e^(G_end) S + sum_i e^(G_end - G_i) k_i U_i^T with U in s.update; a thread has KEY_TILE rows of S.
__device__ __forceinline__ void advance_state(ScanShared& s, Held& held, const Chunk& chunk, const Chunk& next, int group, int column) {
  float4 state[KEY_TILE];
#pragma unroll
  for (int e = 0; e < KEY_TILE; e++) state[e] = scaled(load4(s.state + (group * KEY_TILE + e) * STATE_ROW + column), s.decay[CHUNK - 1]);
  for (int start = 0; start < chunk.num_tokens; start += KEY_ROWS) {
    held.put<KEY_ROWS, KEY_DIM>(s.slices, KEY_ROW);
    __syncthreads();
    if (start + KEY_ROWS < chunk.num_tokens) chunk.fetch_keys(held, start + KEY_ROWS);
    else next.fetch_heads(held, 0);
    const int tokens = min(KEY_ROWS, chunk.num_tokens - start);
    for (int i = 0; i < tokens; i++) {
      const float4 update = scaled(load4(s.update + (start + i) * STATE_ROW + column), s.decay_to_end[start + i]);
#pragma unroll
      for (int e = 0; e < KEY_TILE; e++) add4(state[e], s.slices[i * KEY_ROW + group * KEY_TILE + e], update);
    }
    __syncthreads();
  }
#pragma unroll
  for (int e = 0; e < KEY_TILE; e++) store4(s.state + (group * KEY_TILE + e) * STATE_ROW + column, state[e]);
  __syncthreads();
}

// The values v of a chunk's tokens in this thread's columns, 0 after the tokens; `mine` is false for columns that do not exist.
__device__ __forceinline__ void load_values(float4 (&values)[BLOCKS], const float* value, i64 channels, int num_tokens, int group, bool mine) {
#pragma unroll
  for (int e = 0; e < BLOCKS; e++)
    values[e] = mine && group + e * GROUPS < num_tokens ? load4(value + (group + e * GROUPS) * channels) : make_float4(0.f, 0.f, 0.f, 0.f);
}

__device__ __forceinline__ void load_decays(ScanShared& s, const Chunk& chunk) {
  for (int i = threadIdx.x; i < CHUNK; i += SCAN_THREADS) {
    s.decay[i] = chunk.work[2 * CHUNK_MATRIX + i];
    s.decay_to_end[i] = chunk.work[2 * CHUNK_MATRIX + CHUNK + i];
  }
}

// X = v - e^G k^T S into s.update, out = e^G q^T S, seen = 0; on entry seen = k^T S and out = q^T S.
__device__ __forceinline__ void apply_decays(ScanShared& s, const float4 (&values)[BLOCKS], float4 (&seen)[BLOCKS], float4 (&out)[BLOCKS],
                                             int group, int column) {
#pragma unroll
  for (int e = 0; e < BLOCKS; e++) {
    const int i = group + e * GROUPS;
    store4(s.update + i * STATE_ROW + column, blend4(values[e], 1.f, seen[e], -s.decay[i]));
    out[e] = scaled(out[e], s.decay[i]);
    seen[e] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

// reads [T][V] out. cu_chunks [sequences + 1]: first chunk of each sequence; one without chunks, or with a negative row, is skipped.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
delta_scan(float* __restrict__ reads, const float* __restrict__ mixed, const float* __restrict__ work, float* recurrent, float* snapshot_recurrent,
           i64 state_elements, i64 snapshot_elements, const int* __restrict__ rows, const int4* __restrict__ chunks, const int* __restrict__ cu_chunks,
           const int* __restrict__ capture_snapshots, int num_key_heads, int num_value_heads) {
  __shared__ __align__(16) ScanShared s;
  const int sequence = blockIdx.z, head = blockIdx.y, first_column = blockIdx.x * COLUMNS;
  const int row = rows[sequence], first_chunk = cu_chunks[sequence], end_chunk = cu_chunks[sequence + 1];
  if (row < 0 || first_chunk >= end_chunk) return;  // the whole block
  const int group = threadIdx.x / (COLUMNS / 4), column = threadIdx.x % (COLUMNS / 4) * 4;
  const int columns = min(COLUMNS, VALUE_DIM - first_column);
  const bool mine = column < columns;
  const int key_head = key_head_of(head, num_key_heads, num_value_heads), values = num_value_heads * VALUE_DIM;
  const i64 keys = num_key_heads * KEY_DIM, channels = 2 * keys + values, state_offset = ((i64)head * VALUE_DIM + first_column) * KEY_DIM;
  const auto chunk_at = [&](int at) {
    const float* query = mixed + chunks[at].x * channels + key_head * KEY_DIM;
    return Chunk{query, query + keys, work + ((i64)at * num_value_heads + head) * CHUNK_WORK, channels, chunks[at].y};
  };

  load_state(s, recurrent + row * state_elements + state_offset, columns);
  Held held;
  Chunk chunk = chunk_at(first_chunk);
  chunk.fetch_heads(held, 0);
  for (int at = first_chunk; at < end_chunk; at++) {
    const int4 listed = chunks[at];
    const float* const value = mixed + listed.x * channels + 2 * keys + head * VALUE_DIM + first_column + column;
    float4 values_here[BLOCKS], seen[BLOCKS] = {}, out[BLOCKS] = {};
    load_values(values_here, value, channels, chunk.num_tokens, group, mine);
    load_decays(s, chunk);
    read_state(s, held, seen, out, chunk, group, column);
    apply_decays(s, values_here, seen, out, group, column);
    solve(s, held, seen, out, chunk, group, column);
#pragma unroll
    for (int e = 0; e < BLOCKS; e++) {
      const int i = group + e * GROUPS;
      store4(s.update + i * STATE_ROW + column, seen[e]);
      if (mine && i < chunk.num_tokens) store4(reads + (i64)(listed.x + i) * values + head * VALUE_DIM + first_column + column, out[e]);
    }
    const Chunk next = at + 1 < end_chunk ? chunk_at(at + 1) : Chunk{mixed, mixed, work, channels, 0};
    advance_state(s, held, chunk, next, group, column);
    for (int capture = listed.z; capture < listed.z + listed.w; capture++)
      if (capture_snapshots[capture] >= 0)
        keep_state(s, snapshot_recurrent + capture_snapshots[capture] * snapshot_elements, head, num_value_heads, first_column, columns);
    chunk = next;
  }
  store_state(s, recurrent + row * state_elements + state_offset, columns);
}
