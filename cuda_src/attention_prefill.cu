// Attention of sequences with many tokens in the step: out = softmax(q k^T scale) v [* sigmoid(gate)], causal, over pages.
//
// Grid [row tiles of all such sequences (or more), H_kv], WARPS warps; each warp has 16 of the tile's rows and all share tiles of KEYS
// keys. Keys are taken in absolute tiles, so the bits of a row do not depend on how a prompt was cut or on other sequences.
// Shared memory: prefill_geometry in svc/compute/cuda/attention.py.
//
// Variant: HEAD_DIM=256 KV=__half WARPS=4 KEYS=32
// Variant: HEAD_DIM=256 KV=__half WARPS=2 KEYS=16
// Variant: HEAD_DIM=256 KV=float WARPS=2 KEYS=16
// Variant: HEAD_DIM=128 KV=__half WARPS=4 KEYS=32
// Variant: HEAD_DIM=64 KV=float WARPS=2 KEYS=16
// Variant: HEAD_DIM=256 KV=u8 KV_BITS=8 WARPS=2 KEYS=16
// Variant: HEAD_DIM=64 KV=u8 KV_BITS=4 WARPS=2 KEYS=16
#include "attention.cuh"

#ifndef WARPS
#define WARPS 4
#endif

constexpr int BLOCK_ROWS = WARPS * ROWS;

// Finds this block's tile among the sequences with more than `most_tokens` tokens. False if there is none.
__device__ __forceinline__ bool find_tile(RowTile& tile, int& sequence, int index, const int* cu_seqlens, const int* rows,
                                          int num_sequences, int most_tokens) {
  for (sequence = 0; sequence < num_sequences; sequence++) {
    const int count = num_live_tokens(cu_seqlens, rows, sequence);
    const int tiles = count > most_tokens ? (count * tile.group + BLOCK_ROWS - 1) / BLOCK_ROWS : 0;
    if (index < tiles) {
      tile.first_token = cu_seqlens[sequence];
      tile.num_rows = count * tile.group;
      tile.first_row = index * BLOCK_ROWS;
      return true;
    }
    index -= tiles;
  }
  return false;
}

// gate: nullptr, or the second half of each head's `query_stride` floats.
__device__ __forceinline__ void store_rows(const Rows& rows, const RowTile& tile, float* out, const float* gate, int gate_stride) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = tile.first_row + Rows::row(i);
    if (row >= tile.num_rows) continue;
    const float divisor = 1.f / rows.sum[i];
    float* to = out + tile.head(row) * HEAD_DIM + lane_index() % QUAD * 2;
    const float* by = gate ? gate + tile.head(row) * gate_stride + lane_index() % QUAD * 2 : nullptr;
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) {
      float2 value = make_float2(rows.out[n][2 * i] * divisor, rows.out[n][2 * i + 1] * divisor);
      if (by) {
        const float2 opened = *reinterpret_cast<const float2*>(by + 8 * n);
        value = make_float2(value.x * sigmoid(opened.x), value.y * sigmoid(opened.y));
      }
      *reinterpret_cast<float2*>(to + 8 * n) = value;
    }
  }
}

// query [T, H, query_stride]; out [T, H, D]; pages: the slab; the rest as in StepInputs and memory/layout.py.
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
attention_prefill(const float* __restrict__ query, const float* __restrict__ gate, const KV* __restrict__ pages,
                  const int* __restrict__ block_table, const int* __restrict__ positions, const int* __restrict__ cu_seqlens,
                  const int* __restrict__ rows, float* __restrict__ out, int num_sequences, int num_heads, int num_kv_heads,
                  int query_stride, int table_width, int page_tokens, i64 page_elements, i64 key_offset, i64 value_offset,
                  int most_tokens, float scale) {
  DYNAMIC_SHARED(f16, shared);
  const int head = blockIdx.y;
  RowTile tile;
  tile.group = num_heads / num_kv_heads;
  tile.num_heads = num_heads;
  tile.first_head = head * tile.group;
  int sequence;
  // The last tiles of a sequence have the most keys, so they go first.
  if (!find_tile(tile, sequence, gridDim.x - 1 - blockIdx.x, cu_seqlens, rows, num_sequences, most_tokens)) return;
  const int end = tile.last_position(positions, BLOCK_ROWS) + 1, seen = tile.first_position(positions);

  tile.first_row += warp_index() * ROWS;  // now the rows of this warp
  f16* queries = shared + TILE_HALVES + warp_index() * 2 * ROWS * STRIDE;
  load_queries(queries, ROWS * STRIDE, query, query_stride, tile, 0, 1);
  __syncwarp();
  Rows mine;
  mine.clear();
  for (int i = 0; i < 2; i++) {
    const int row = tile.first_row + Rows::row(i);
    mine.position[i] = row < tile.num_rows ? positions[tile.token(row)] : -1;
  }
  const i64 head_offset = key_offset + (i64)head * page_tokens * KV_ROW;
  const Pages from = {pages + head_offset, pages + head_offset + value_offset, block_table + (i64)sequence * table_width, page_elements,
                      page_tokens};
  attend<WARPS * WARP>(mine, queries, ROWS * STRIDE, shared, from, 0, KEYS, end, seen, tile.last_position(positions, ROWS), scale);
  mine.finish_sums();
  store_rows(mine, tile, out, gate, query_stride);
}
