// Copies whole blocks of memory (KV pages, live rows, snapshots) or sets them to zero. `words`: size of a block in the kernel's words.
//
// Each thread has its own words and handles all pairs for them, in order: a block may be a target first and a source later. Grid and
// block are one-dimensional, of any size.
#include "common.cuh"

template <class Word>
__device__ __forceinline__ void copy_pairs(Word* target, const Word* source, const int2* pairs, int num_pairs, i64 words) {
  for (i64 i = global_thread(); i < words; i += global_threads())
    for (int pair = 0; pair < num_pairs; pair++) target[pairs[pair].y * words + i] = source[pairs[pair].x * words + i];
}

// pairs[n]: (source, target) numbers of blocks. `source` and `target` may be the same slab, hence no __restrict__.
extern "C" __global__ void __launch_bounds__(256)
copy_blocks_16(uint4* target, const uint4* source, const int2* __restrict__ pairs, int num_pairs, i64 words) {
  copy_pairs(target, source, pairs, num_pairs, words);
}
extern "C" __global__ void __launch_bounds__(256)
copy_blocks_4(u32* target, const u32* source, const int2* __restrict__ pairs, int num_pairs, i64 words) {
  copy_pairs(target, source, pairs, num_pairs, words);
}

template <class Word>
__device__ __forceinline__ void zero_listed(Word* target, const int* blocks, int num_blocks, i64 words, Word zero) {
  for (i64 i = global_thread(); i < words; i += global_threads())
    for (int n = 0; n < num_blocks; n++) target[blocks[n] * words + i] = zero;
}

// By assignment, because NaN times zero is NaN.
extern "C" __global__ void __launch_bounds__(256)
zero_blocks_16(uint4* __restrict__ target, const int* __restrict__ blocks, int num_blocks, i64 words) {
  zero_listed(target, blocks, num_blocks, words, make_uint4(0, 0, 0, 0));
}
extern "C" __global__ void __launch_bounds__(256)
zero_blocks_4(u32* __restrict__ target, const int* __restrict__ blocks, int num_blocks, i64 words) {
  zero_listed(target, blocks, num_blocks, words, 0u);
}
