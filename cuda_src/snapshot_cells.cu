// State rows to snapshots of a more compact type (SNAPSHOT in snapshot.cuh), and back. Copies of rows are copy_blocks.cu's.
//
// Grid [blocks, pairs], one-dimensional blocks of whole warps: the first `column_blocks` take a value column of any layer a warp, the
// others copy convolution rows and the hidden row. A snapshot's layer has `layer_words` words: the recurrent state, the scales from
// `scales_offset` on, the convolution rows from `conv_offset` on; behind the layers is the hidden row.
//
// Variant: SNAPSHOT=1
// Variant: SNAPSHOT=2
#include "snapshot.cuh"

struct Shape {
  int num_layers, columns, key_dim, conv_elements, hidden_size;  // `columns` of one layer, in all heads
  i64 layer_words, scales_offset, conv_offset;

  __device__ __forceinline__ i64 recurrent_elements() const { return (i64)columns * key_dim; }
  __device__ __forceinline__ i64 in_row(int layer) const { return layer * (recurrent_elements() + conv_elements); }
  __device__ __forceinline__ i64 row_words() const { return in_row(num_layers) + hidden_size; }
  __device__ __forceinline__ i64 snapshot_words() const { return num_layers * layer_words + hidden_size; }
};

// Word `i` of what is copied: its place in a row and in a snapshot. False behind the last.
__device__ __forceinline__ bool copied_word(const Shape& shape, i64 i, i64& in_row, i64& in_snapshot) {
  const int layer = min(i / max(shape.conv_elements, 1), (i64)shape.num_layers);
  if (shape.conv_elements && layer < shape.num_layers) {
    const i64 at = i % shape.conv_elements;
    in_row = shape.in_row(layer) + shape.recurrent_elements() + at;
    in_snapshot = layer * shape.layer_words + shape.conv_offset + at;
    return true;
  }
  const i64 at = i - (i64)shape.num_layers * shape.conv_elements;
  in_row = shape.in_row(shape.num_layers) + at;
  in_snapshot = shape.num_layers * shape.layer_words + at;
  return at < shape.hidden_size;
}

template <bool TO_ROW> __device__ __forceinline__ void copy_words(float* row, float* snapshot, const Shape& shape, int block, int blocks) {
  i64 in_row, in_snapshot;
  for (i64 i = (i64)block * blockDim.x + threadIdx.x; copied_word(shape, i, in_row, in_snapshot); i += (i64)blocks * blockDim.x) {
    if (TO_ROW) row[in_row] = snapshot[in_snapshot];
    else snapshot[in_snapshot] = row[in_row];
  }
}

// One column by one warp; `from` in the row, `index` of its first number in the layer.
__device__ __forceinline__ void pack_column(float* part, const float* from, i64 index, int column, const Shape& shape) {
  u32 most = 0;
  for (int k = lane_index(); SNAPSHOT == 2 && k < shape.key_dim; k += WARP) most = max(most, magnitude(from[k]));
  const Rounding rounding(group_largest<WARP>(most));
  for (int k = lane_index(); k < shape.key_dim; k += WARP) put_number(part, index + k, from[k], rounding);
  if (SNAPSHOT == 2 && lane_index() == 0) part[shape.scales_offset + column] = rounding.scale;
}

__device__ __forceinline__ void unpack_column(float* to, const float* part, i64 index, int column, const Shape& shape) {
  for (int k = lane_index(); k < shape.key_dim; k += WARP) {
    if (SNAPSHOT == 0) to[k] = part[index + k];
    else if (SNAPSHOT == 1) to[k] = to_float(reinterpret_cast<const bf16*>(part)[index + k]);
    else to[k] = (float)reinterpret_cast<const i8*>(part)[index + k] * part[shape.scales_offset + column];
  }
}

template <bool TO_ROW>
__device__ __forceinline__ void run_pair(float* row, float* snapshot, const Shape& shape, int column_blocks) {
  if ((int)blockIdx.x >= column_blocks) {
    copy_words<TO_ROW>(row, snapshot, shape, blockIdx.x - column_blocks, gridDim.x - column_blocks);
    return;
  }
  const i64 all = (i64)shape.num_layers * shape.columns, step = (i64)column_blocks * num_warps();
  for (i64 at = (i64)blockIdx.x * num_warps() + warp_index(); at < all; at += step) {  // whole warps
    const int layer = at / shape.columns, column = at % shape.columns;
    const i64 index = (i64)column * shape.key_dim;
    float* const in_row = row + shape.in_row(layer) + index;
    float* const part = snapshot + layer * shape.layer_words;
    if (TO_ROW) unpack_column(in_row, part, index, column, shape);
    else pack_column(part, in_row, index, column, shape);
  }
}

// pairs[n]: (row, snapshot).
extern "C" __global__ void __launch_bounds__(256)
pack_rows(float* snapshots, float* rows, const int2* __restrict__ pairs, int column_blocks, int num_layers, int columns, int key_dim,
          int conv_elements, int hidden_size, i64 layer_words, i64 scales_offset, i64 conv_offset) {
  const Shape shape = {num_layers, columns, key_dim, conv_elements, hidden_size, layer_words, scales_offset, conv_offset};
  const int2 pair = pairs[blockIdx.y];
  run_pair<false>(rows + pair.x * shape.row_words(), snapshots + pair.y * shape.snapshot_words(), shape, column_blocks);
}

extern "C" __global__ void __launch_bounds__(256)
unpack_rows(float* snapshots, float* rows, const int2* __restrict__ pairs, int column_blocks, int num_layers, int columns, int key_dim,
            int conv_elements, int hidden_size, i64 layer_words, i64 scales_offset, i64 conv_offset) {
  const Shape shape = {num_layers, columns, key_dim, conv_elements, hidden_size, layer_words, scales_offset, conv_offset};
  const int2 pair = pairs[blockIdx.y];
  run_pair<true>(rows + pair.x * shape.row_words(), snapshots + pair.y * shape.snapshot_words(), shape, column_blocks);
}
