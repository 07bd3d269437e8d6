// Shared by the tiled matrix kernels: the activations and output rows of a tile.
#pragma once
#include "matmul.cuh"

// The rows of activations for one matrix: all of them, or those of one expert.
//
// `pairs` [P] lists pairs of token and rank sorted by expert, those of expert e from offsets[e] to offsets[e + 1]; pair p reads row
// p / pairs_per_row of x and writes row p. Without lists row t reads and writes row t.
struct TokenRange {
  const int* pairs;
  int begin, end, pairs_per_row;

  // Output row of position `at`, -1 after the end.
  __device__ __forceinline__ int out_row(int at) const { return at >= end ? -1 : pairs ? pairs[at] : at; }
  // Row of x; after the end, the last one.
  __device__ __forceinline__ int x_row(int at) const { return out_row(min(at, end - 1)) / pairs_per_row; }
};

__device__ __forceinline__ TokenRange token_range(const int* pairs, const int* offsets, int num_out, int pairs_per_row) {
  const int expert = blockIdx.y;
  return {pairs, offsets ? offsets[expert] : 0, offsets ? offsets[expert + 1] : num_out, pairs_per_row};
}
