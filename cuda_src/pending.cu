// Passes tokens from the step that samples them to the step that evaluates them, without the host: next[row] is the token sampled last
// for a live row, or -1 if the answer ends with it.
#include "common.cuh"

// n samples, one thread each. stops[cu_stops[i] .. cu_stops[i + 1]): ids that end the answer. A negative row: no step goes on from this
// sample.
extern "C" __global__ void __launch_bounds__(64)
pending_note(int* __restrict__ next, const int* __restrict__ tokens, const int* __restrict__ rows, const int* __restrict__ stops,
             const int* __restrict__ cu_stops, int num_samples) {
  const i64 i = global_thread();
  if (i >= num_samples || rows[i] < 0) return;
  int token = tokens[i];  // negative: there is none
  for (int stop = cu_stops[i]; stop < cu_stops[i + 1]; stop++)
    if (stops[stop] == tokens[i]) token = -1;
  next[rows[i]] = token;
}

// B sequences, one thread each. A first token of -1 in a live row is replaced by next[row]; if that is -1 too, the sequence becomes
// padding.
extern "C" __global__ void __launch_bounds__(64)
pending_resolve(int* __restrict__ tokens, int* __restrict__ rows, const int* __restrict__ cu_seqlens, const int* __restrict__ next,
                int num_sequences) {
  const i64 i = global_thread();
  if (i >= num_sequences || rows[i] < 0 || tokens[cu_seqlens[i]] >= 0) return;
  const int token = next[rows[i]];
  tokens[cu_seqlens[i]] = token;
  if (token < 0) rows[i] = -1;
}
