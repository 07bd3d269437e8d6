// Attention of 16 query rows a warp over keys and values in pages, on tensor cores with the precision of float32.
//
// A row is one query head at one token; the rows of a tile belong to one sequence and one KV head (row r: token r / group, query head
// r % group of the KV head's `group`). An operand x goes in as two float16, high + low, which together hold 22 bits: queries, weights of
// the softmax, and, with float32 pages, keys and values too. Float16 pages are exact, so two products suffice instead of three. Values
// beyond 65504, which float16 pages cannot hold either, give NaN. Numbers from quantized pages are products of 19 bits and go in like
// those of float32 pages.
//
// Keys from `end` on, which no row of the tile sees, are not read: their place in shared memory is zero. Keys before
// `end` that a row must not see are tokens of this step and get weight 0. Because 0 times NaN is NaN, values in such tiles that are not
// finite are set to 0, and rows that do see one become NaN through their sums.
#pragma once
#include "common.cuh"
#include "half.cuh"
#include "kv_pages.cuh"
#include "ptx.cuh"
#include "warp.cuh"

#ifndef KEYS  // of a tile
#define KEYS 16
#endif

static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "head sizes are multiples of 16");
static_assert(KEYS % 16 == 0 && KEYS <= WARP, "a lane for each key");

constexpr int ROWS = 16;              // query rows of a warp
constexpr int STRIDE = HEAD_DIM + 8;  // of a row in shared memory, in halves: an odd number of 16 bytes, so ldmatrix has no bank conflicts
constexpr int PARTS = sizeof(KV) == 2 ? 1 : 2;  // of a key or value in shared memory: high, low
// For launch bounds: without it ptxas spills a few registers to gain a block.
constexpr int MIN_BLOCKS = HEAD_DIM > 128 ? 2 : 3;
// Float32 pages go through registers; more at once spills with heads of 256.
constexpr int PIECES_AT_ONCE = PARTS == 2 ? 2 : 4;
constexpr int QUAD = 4;                         // lanes that hold one row of a fragment

// Halves of shared memory of a tile of KEYS keys and their values.
constexpr int TILE_HALVES = 2 * PARTS * KEYS * STRIDE;

struct HalfPair {
  f16 high, low;
};
__device__ __forceinline__ HalfPair halves_of(float x) {
  const f16 high = from_float<f16>(x);
  return {high, from_float<f16>(x - to_float(high))};
}
__device__ __forceinline__ u32 packed(f16 first, f16 second) { return __half_as_ushort(first) | (u32)__half_as_ushort(second) << 16; }

// ---- sequences of a step -----------------------------------------------------------------------------------------------------------
// A sequence with a negative row is padding.
__device__ __forceinline__ int num_live_tokens(const int* cu_seqlens, const int* rows, int sequence) {
  return rows[sequence] < 0 ? 0 : cu_seqlens[sequence + 1] - cu_seqlens[sequence];
}

// ---- queries -----------------------------------------------------------------------------------------------------------------------
// Rows first_row .. first_row + ROWS - 1 of a sequence, of which `num_rows` exist.
struct RowTile {
  int first_token, group, first_row, num_rows, num_heads, first_head;

  __device__ __forceinline__ int token(int row) const { return first_token + row / group; }
  __device__ __forceinline__ i64 head(int row) const { return (i64)token(row) * num_heads + first_head + row % group; }
  // The last position that all rows of the tile see. The tile has at least one row.
  __device__ __forceinline__ int first_position(const int* positions) const { return positions[token(first_row)]; }
  // The last position that any of the first `rows` rows of the tile sees, -1 without a row.
  __device__ __forceinline__ int last_position(const int* positions, int rows) const {
    const int row = min(first_row + rows, num_rows) - 1;
    return row < first_row ? -1 : positions[token(row)];
  }
};

// Into `high` and, `low` halves after it, [ROWS][STRIDE] each; by `warps` warps, of which this is number `warp`. Rows that do not exist
// are zero.
__device__ __forceinline__ void load_queries(f16* high, int low, const float* query, int query_stride, const RowTile& tile, int warp,
                                             int warps) {
  for (int i = warp; i < ROWS; i += warps) {
    const int row = tile.first_row + i;
    const float* from = row < tile.num_rows ? query + tile.head(row) * query_stride : nullptr;
    for (int column = lane_index(); column < HEAD_DIM; column += WARP) {
      const HalfPair x = halves_of(from ? from[column] : 0.f);
      high[i * STRIDE + column] = x.high;
      high[i * STRIDE + column + low] = x.low;
    }
  }
}

// ---- pages -------------------------------------------------------------------------------------------------------------------------
// One layer and KV head of one sequence. `keys` and `values` point into page 0.
struct Pages {
  const KV *keys, *values;
  const int* table;
  i64 page_elements;
  int page_tokens;

  __device__ __forceinline__ i64 offset(int position) const {
    return table[position / page_tokens] * page_elements + (i64)(position % page_tokens) * KV_ROW;
  }
  // Lane i gets that of key first + i.
  __device__ __forceinline__ i64 lane_offset(int first, int end) const {
    const int position = first + lane_index();
    return lane_index() < KEYS && position < end ? offset(position) : 0;
  }
};

// Eight numbers of a row, from `column` on; `low`: distance of the low parts.
__device__ __forceinline__ void copy_eight(f16* to, const f16* row, int column, bool valid, int) {
  copy_async_16(to, row + column, valid);
}
__device__ __forceinline__ void load_eight(float (&x)[8], const float* row, int column) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row + column);
  *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(row + column + 4);
}
__device__ __forceinline__ void load_eight(float (&x)[8], const u8* row, int column) { unpack_eight(x, row, column); }
template <class T> __device__ __forceinline__ void copy_eight(f16* to, const T* row, int column, bool valid, int low) {
  float x[8] = {};
  if (valid) load_eight(x, row, column);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const HalfPair pair = halves_of(x[i]);
    to[i] = pair.high;
    to[low + i] = pair.low;
  }
}

// Rows first .. first + KEYS - 1 into shared memory [PARTS][KEYS][STRIDE], zeros from `end` on. `offset` is Pages::lane_offset.
template <int TEAM>
__device__ __forceinline__ void load_rows(f16* to, const KV* from, i64 offset, int first, int end) {
  constexpr int ROW_PIECES = HEAD_DIM / 8, PIECES = KEYS * ROW_PIECES;
#pragma unroll PIECES_AT_ONCE
  for (int start = 0; start < PIECES; start += TEAM) {
    const int piece = start + threadIdx.x % TEAM, row = piece / ROW_PIECES, column = piece % ROW_PIECES * 8;
    const i64 row_offset = __shfl_sync(ALL_LANES, offset, row % WARP);
    if (piece < PIECES) copy_eight(to + row * STRIDE + column, from + row_offset, column, first + row < end, KEYS * STRIDE);
  }
}

template <int TEAM> __device__ __forceinline__ void team_sync() {
  if (TEAM == WARP) __syncwarp();
  else __syncthreads();
}

// The mark of a key with values that are not finite is in the padding after them.
__device__ __forceinline__ u32* bad_mark(f16* values, int key) { return reinterpret_cast<u32*>(values + key * STRIDE + HEAD_DIM); }

__device__ __forceinline__ bool any_not_finite(u32 pair) {  // of float16: all bits of the exponent set
  return (pair & 0x7c00u) == 0x7c00u || (pair & 0x7c000000u) == 0x7c000000u;
}

// Marks every key of a tile of values, and clears values that are not finite. A warp per row; a barrier before and after.
template <int TEAM> __device__ __forceinline__ void clear_bad_values(f16* values) {
  constexpr int ROW_PIECES = HEAD_DIM / 8;
  for (int key = threadIdx.x % TEAM / WARP; key < KEYS; key += TEAM / WARP) {
    bool bad = false;
    for (int piece = lane_index(); piece < ROW_PIECES * PARTS; piece += WARP) {
      const int4 x = *reinterpret_cast<const int4*>(values + (piece / ROW_PIECES * KEYS + key) * STRIDE + piece % ROW_PIECES * 8);
      bad |= any_not_finite(x.x) || any_not_finite(x.y) || any_not_finite(x.z) || any_not_finite(x.w);
    }
    bad = __any_sync(ALL_LANES, bad);
    if (lane_index() == 0) *bad_mark(values, key) = bad;
    if (!bad) continue;
    for (int piece = lane_index(); piece < ROW_PIECES * PARTS; piece += WARP)
      *reinterpret_cast<int4*>(values + (piece / ROW_PIECES * KEYS + key) * STRIDE + piece % ROW_PIECES * 8) = make_int4(0, 0, 0, 0);
  }
}

// ---- the rows of a warp ------------------------------------------------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4 a lane has rows g and g + 8 (index 0 and 1), dimensions 8 n + 2 t and 8 n + 2 t + 1.
struct Rows {
  float out[HEAD_DIM / 8][4];  // [n]: row 0, row 0, row 1, row 1; not divided by the sum yet
  float maximum[2], sum[2];    // of scores * log2 e; the sum is of this lane's keys only
  int position[2];             // the last key it sees, -1 for a row that does not exist

  static __device__ __forceinline__ int row(int index) { return lane_index() / QUAD + 8 * index; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.f;
  }

  // scores[n]: like `out`, of keys 8 n + 2 t and 8 n + 2 t + 1 of the tile.
  static __device__ __forceinline__ void score(float (&scores)[KEYS / 8][4], const f16* query, int query_low, const f16* keys) {
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.f;
    const f16* row = query + lane % 16 * STRIDE + lane / 16 * 8;
    const f16* key = keys + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll 2
    for (int k = 0; k < HEAD_DIM; k += 16) {
      u32 high[4], low[4];
      load_matrix_x4(high, row + k);
      load_matrix_x4(low, row + query_low + k);
#pragma unroll
      for (int n = 0; n < KEYS; n += 16)
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          u32 both[4];
          load_matrix_x4(both, key + (part * KEYS + n) * STRIDE + k);
          const u32 b[2][2] = {{both[0], both[1]}, {both[2], both[3]}};
#pragma unroll
          for (int i = 0; i < 2; i++) {
            mma_f16(scores[n / 8 + i], high, b[i]);
            if (part == 0) mma_f16(scores[n / 8 + i], low, b[i]);
          }
        }
    }
  }

  // Scores of keys first .. first + KEYS - 1 become weights, relative to the maximum so far. `scale` includes log2 e.
  __device__ __forceinline__ void weigh(float (&scores)[KEYS / 8][4], int first, float scale) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float best = maximum[i];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float& s = scores[n][2 * i + c];
          s = first + 8 * n + lane_index() % QUAD * 2 + c <= position[i] ? s * scale : -INFINITY;
          best = fmaxf(best, s);
        }
      best = group_max<QUAD>(best);
      const float base = best == -INFINITY ? 0.f : best;  // nothing seen yet: weights 0, not NaN
      const float factor = exp2f(maximum[i] - base);
      maximum[i] = best;
      sum[i] *= factor;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float& s = scores[n][2 * i + c];
          s = exp2f(s - base);
          sum[i] += s;
        }
#pragma unroll
      for (int n = 0; n < HEAD_DIM / 8; n++) {
        out[n][2 * i] *= factor;
        out[n][2 * i + 1] *= factor;
      }
    }
  }

  __device__ __forceinline__ void accumulate(const float (&weights)[KEYS / 8][4], const f16* values) {
    const int lane = lane_index();
    const f16* value = values + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < KEYS; k += 16) {
      u32 high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {  // rows g, g + 8, then the same for the next eight keys
        const float* pair = &weights[k / 8 + i / 2][i % 2 * 2];
        const HalfPair a = halves_of(pair[0]), b = halves_of(pair[1]);
        high[i] = packed(a.high, b.high);
        low[i] = packed(a.low, b.low);
      }
#pragma unroll
      for (int d = 0; d < HEAD_DIM; d += 16)
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          u32 both[4];
          load_matrix_x4_transposed(both, value + (part * KEYS + k) * STRIDE + d);
          const u32 b[2][2] = {{both[0], both[1]}, {both[2], both[3]}};
#pragma unroll
          for (int i = 0; i < 2; i++) {
            mma_f16(out[d / 8 + i], high, b[i]);
            if (part == 0) mma_f16(out[d / 8 + i], low, b[i]);
          }
        }
    }
  }

  // Makes NaN the sums of rows that see a marked key.
  __device__ __forceinline__ void spoil(f16* values, int first) {
    for (int n = 0; n < KEYS / 8; n++)
      for (int c = 0; c < 2; c++) {
        const int key = 8 * n + lane_index() % QUAD * 2 + c;
        if (!*bad_mark(values, key)) continue;
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (first + key <= position[i]) sum[i] = NAN;
      }
  }

  __device__ __forceinline__ void finish_sums() {
    sum[0] = group_sum<QUAD>(sum[0]);
    sum[1] = group_sum<QUAD>(sum[1]);
  }
};

// Tiles of KEYS keys from `first` in steps of `step`, before `end`. TEAM threads (a warp, or the whole block) share `tile`
// [TILE_HALVES] and call this with equal first, step, end and `seen`, the last key that all their rows see. `last`: the last key that
// any row of this warp sees. Values are loaded while scores are computed, the next keys while values are added. Other threads may still
// read the tile on return.
template <int TEAM>
__device__ __forceinline__ void attend(Rows& rows, const f16* query, int query_low, f16* tile, const Pages& pages, int first, int step,
                                       int end, int seen, int last, float scale) {
  if (first >= end) return;
  f16 *keys = tile, *values = tile + PARTS * KEYS * STRIDE;
  i64 offset = pages.lane_offset(first, end);
  load_rows<TEAM>(keys, pages.keys, offset, first, end);
  copy_async_commit();
  for (; first < end; first += step) {
    float scores[KEYS / 8][4];
    const bool sees = first <= last;
    copy_async_wait<0>();
    team_sync<TEAM>();  // keys are loaded, and the previous values are done
    load_rows<TEAM>(values, pages.values, offset, first, end);
    copy_async_commit();
    if (sees) {
      Rows::score(scores, query, query_low, keys);
      rows.weigh(scores, first, scale);
    }
    copy_async_wait<0>();
    team_sync<TEAM>();  // values are loaded, and the keys are done
    if (first + step < end) {
      offset = pages.lane_offset(first + step, end);
      load_rows<TEAM>(keys, pages.keys, offset, first + step, end);
      copy_async_commit();
    }
    if (first + KEYS - 1 > seen) {
      clear_bad_values<TEAM>(values);
      team_sync<TEAM>();
      if (sees) rows.spoil(values, first);
    }
    if (sees) rows.accumulate(scores, values);
  }
}
