// Attention of sequences with few tokens in the step (decode, checked drafts), in two passes over splits of the context.
//
//   attention_split: for each row and each split of `split_tokens` keys, the sum of weights * values, the maximum and the sum of weights
//   attention_merge: out = the splits of a row, weighted by their maxima and added in order, divided by the sum [* sigmoid(gate)]
//
// attention_split: grid [splits or fewer, H_kv * row tiles, B], WARPS warps. Warp w takes keys KEYS * w, KEYS * (w + WARPS), ... of a
// split in a tile of its own, all for the same 16 rows; at the end the warps are merged in order. With fewer blocks than splits a block
// takes several; no bit depends on the grid. attention_merge: grid [H, tokens of a sequence, B], a thread per dimension.
// Splits have a fixed length rather than a fixed number, so a row has the same bits alone and in any batch.
// Loser (on paper): a warp per split and no merge in the block; at batch 1 it needs splits of 64 keys to fill a GPU, four times the
// workspace. Shared memory: decode_geometry in svc/compute/cuda/attention.py.
//
// Variant: HEAD_DIM=256 KV=__half WARPS=4 KEYS=16
// Variant: HEAD_DIM=256 KV=float WARPS=2 KEYS=16
// Variant: HEAD_DIM=128 KV=__half WARPS=4 KEYS=16
// Variant: HEAD_DIM=64 KV=float WARPS=2 KEYS=16
// Variant: HEAD_DIM=256 KV=u8 KV_BITS=8 WARPS=2 KEYS=16
// Variant: HEAD_DIM=64 KV=u8 KV_BITS=4 WARPS=2 KEYS=16
#include "attention.cuh"

#ifndef WARPS
#define WARPS 4
#endif

static_assert(TILE_HALVES * 2 >= ROWS * (HEAD_DIM + 2) * 4, "a warp's tile holds its result at the end");

// The result of a warp, in its own tile: [ROWS][HEAD_DIM] sums, [ROWS] maxima, [ROWS] sums of weights.
__device__ __forceinline__ void leave_result(float* to, const Rows& rows) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float* sums = to + Rows::row(i) * HEAD_DIM + lane_index() % QUAD * 2;
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) *reinterpret_cast<float2*>(sums + 8 * n) = make_float2(rows.out[n][2 * i], rows.out[n][2 * i + 1]);
    if (lane_index() % QUAD == 0) {
      to[ROWS * HEAD_DIM + Rows::row(i)] = rows.maximum[i];
      to[ROWS * (HEAD_DIM + 1) + Rows::row(i)] = rows.sum[i];
    }
  }
}

// Merges the warps' results of one row into global memory: sums [HEAD_DIM] and stats (maximum, sum of weights). Called by the whole block.
__device__ __forceinline__ void merge_warps(const float* results, int row, float* sums, float* stats) {
  constexpr int RESULT = TILE_HALVES / 2;  // floats
  float best = -INFINITY, total = 0.f, factor[WARPS];
#pragma unroll
  for (int w = 0; w < WARPS; w++) best = fmaxf(best, results[w * RESULT + ROWS * HEAD_DIM + row]);
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const float maximum = results[w * RESULT + ROWS * HEAD_DIM + row];
    factor[w] = maximum == -INFINITY ? 0.f : exp2f(maximum - best);
    total += factor[w] * results[w * RESULT + ROWS * (HEAD_DIM + 1) + row];
  }
  for (int d = threadIdx.x; d < HEAD_DIM; d += WARPS * WARP) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += factor[w] * results[w * RESULT + row * HEAD_DIM + d];
    sums[d] = sum;
  }
  if (threadIdx.x == 0) *reinterpret_cast<float2*>(stats) = make_float2(best, total);
}

// Index of a row's split in the workspace [B][most_tokens][H][max_splits].
__device__ __forceinline__ i64 split_index(int sequence, int token, int most_tokens, int head, int num_heads, int split, int max_splits) {
  return (((i64)sequence * most_tokens + token) * num_heads + head) * max_splits + split;
}

// query [T, H, query_stride]; sums [.., D] and stats [.., 2] by split_index. Serves sequences of 1 to `most_tokens` tokens.
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
attention_split(const float* __restrict__ query, const KV* __restrict__ pages, const int* __restrict__ block_table,
                const int* __restrict__ positions, const int* __restrict__ cu_seqlens, const int* __restrict__ rows,
                float* __restrict__ sums, float* __restrict__ stats, int num_heads, int num_kv_heads, int query_stride, int table_width,
                int page_tokens, i64 page_elements, i64 key_offset, i64 value_offset, int most_tokens, int split_tokens, int max_splits,
                float scale) {
  DYNAMIC_SHARED(f16, shared);
  const int sequence = blockIdx.z, head = blockIdx.y % num_kv_heads, group = num_heads / num_kv_heads;
  const int count = num_live_tokens(cu_seqlens, rows, sequence);
  const RowTile tile = {cu_seqlens[sequence], group, (int)(blockIdx.y / num_kv_heads) * ROWS, count * group, num_heads, head * group};
  if (count > most_tokens || tile.first_row >= tile.num_rows) return;
  const int last = tile.last_position(positions, ROWS), context = last + 1, seen = tile.first_position(positions);

  f16* queries = shared + WARPS * TILE_HALVES;
  f16* keys = shared + warp_index() * TILE_HALVES;
  load_queries(queries, ROWS * STRIDE, query, query_stride, tile, warp_index(), WARPS);
  __syncthreads();
  const i64 head_offset = key_offset + (i64)head * page_tokens * KV_ROW;
  const Pages from = {pages + head_offset, pages + head_offset + value_offset, block_table + (i64)sequence * table_width, page_elements,
                      page_tokens};
  Rows mine;
  for (int i = 0; i < 2; i++) {
    const int row = tile.first_row + Rows::row(i);
    mine.position[i] = row < tile.num_rows ? positions[tile.token(row)] : -1;
  }
  for (int split = blockIdx.x; (i64)split * split_tokens < context; split += gridDim.x) {
    const int first = split * split_tokens;
    mine.clear();
    attend<WARP>(mine, queries, ROWS * STRIDE, keys, from, first + warp_index() * KEYS, WARPS * KEYS,
                       min(first + split_tokens, context), seen, last, scale);
    mine.finish_sums();
    __syncwarp();  // all lanes have read the tile
    leave_result(reinterpret_cast<float*>(keys), mine);
    __syncthreads();
    for (int row = 0; row < min(ROWS, tile.num_rows - tile.first_row); row++) {
      const int flat = tile.first_row + row;
      const i64 at = split_index(sequence, flat / group, most_tokens, head * group + flat % group, num_heads, split, max_splits);
      merge_warps(reinterpret_cast<const float*>(shared), row, sums + at * HEAD_DIM, stats + at * 2);
    }
    __syncthreads();  // the next split overwrites the results
  }
}

// out [T, H, D]; gate as in attention_prefill.
extern "C" __global__ void __launch_bounds__(256)
attention_merge(const float* __restrict__ sums, const float* __restrict__ stats, const float* __restrict__ gate,
                const int* __restrict__ positions, const int* __restrict__ cu_seqlens, const int* __restrict__ rows,
                float* __restrict__ out, int num_heads, int gate_stride, int most_tokens, int split_tokens, int max_splits) {
  const int head = blockIdx.x, index = blockIdx.y, sequence = blockIdx.z, d = threadIdx.x;
  const int count = num_live_tokens(cu_seqlens, rows, sequence);
  if (count > most_tokens || index >= count || d >= HEAD_DIM) return;
  const int token = cu_seqlens[sequence] + index, splits = positions[token] / split_tokens + 1;
  const i64 at = split_index(sequence, index, most_tokens, head, num_heads, 0, max_splits);
  float best = -INFINITY, total = 0.f, sum = 0.f;
#pragma unroll 4
  for (int split = 0; split < splits; split++) best = fmaxf(best, stats[(at + split) * 2]);
#pragma unroll 4
  for (int split = 0; split < splits; split++) {
    const float factor = exp2f(stats[(at + split) * 2] - best);
    total += factor * stats[(at + split) * 2 + 1];
    sum += factor * sums[(at + split) * HEAD_DIM + d];
  }
  const i64 row = (i64)token * num_heads + head;
  const float value = sum / total;
  out[row * HEAD_DIM + d] = gate ? value * sigmoid(gate[row * gate_stride + d]) : value;
}
