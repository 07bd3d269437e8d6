// The journal: what each token changes in a live row (svc/memory/layout.py). [rows][length] entries of `elements` floats; the entry of
// position p is number p % length.
#pragma once
#include "common.cuh"

constexpr int WRITES_JOURNAL = 1, HOLDS_ROW = 2;  // bits of a sequence's mode

// `modes` is null where there is no journal.
__device__ __forceinline__ int mode_of(const int* modes, int sequence) { return modes ? modes[sequence] : 0; }

// `journal` is at a part of row 0's entry 0; the same part of another entry.
__device__ __forceinline__ float* journal_entry(float* journal, int length, i64 elements, int row, int position) {
  return journal + ((i64)row * length + position % length) * elements;
}
