// Log probabilities in the model's own distribution, of n given tokens and of the best ones. V vocabulary.
//
// A block per token, grid [n]. The row is read for its maximum and for the sum, and three times more for the best ones.
#include "select.cuh"

// values[i] = log softmax(logits[rows[i]])[targets[i]]. NaN if a logit is not finite or the target is negative (a token that
// could not be sampled). A negative row is padding: zeros.
// top_ids, top_values [n][most_top] (or nullptr): the top_counts[i] best, best first, among equals the lower id; then -1 and 0. None
// if a logit is not finite. most_top <= LISTED.
extern "C" __global__ void __launch_bounds__(1024, 1)
logprob(float* __restrict__ values, int* __restrict__ top_ids, float* __restrict__ top_values, const float* __restrict__ logits,
        const int* __restrict__ rows, const int* __restrict__ targets, const int* __restrict__ top_counts, int most_top, int V, float unit) {
  __shared__ SelectScratch scratch;
  const int row_index = rows[blockIdx.x], target = targets[blockIdx.x];
  const float* row = logits + (i64)max(row_index, 0) * V;
  u64 rank = 0;
  for (int i = threadIdx.x; i < V && row_index >= 0; i += blockDim.x) rank = max(rank, is_finite(row[i]) ? ranked(row[i], i) : ~0ull);
  rank = block_max_u64(rank, scratch.parts);
  const bool finite = row_index >= 0 && (u32)(rank >> 32) != NOT_FINITE;
  const float best = finite ? ranked_value(rank) : 0.f;
  u64 sum = 0;
  for (int i = threadIdx.x; i < V && finite; i += blockDim.x) sum += (u64)(expf(row[i] - best) * unit);
  sum = block_sum_u64(sum, scratch.parts);
  const double log_total = finite ? (double)best + log((double)sum / (double)unit) : 0.;
  if (threadIdx.x == 0)
    values[blockIdx.x] = row_index < 0 ? 0.f : (finite && target >= 0 ? (float)((double)row[target] - log_total) : __int_as_float(0x7fc00000));

  if (!top_ids) return;
  int* ids = top_ids + (i64)blockIdx.x * most_top;
  float* tops = top_values + (i64)blockIdx.x * most_top;
  const int count = finite ? min(min(top_counts[blockIdx.x], most_top), V) : 0;
  for (int i = count + threadIdx.x; i < most_top; i += blockDim.x) ids[i] = -1, tops[i] = 0.f;
  if (count <= 0) return;  // the whole block
  fill_bins(row, V, best, [](int) -> u64 { return 1; }, scratch);
  u64 left = (u64)count;
  const int edge = reaching_bin(scratch, NUM_BINS, 0, 1, left);
  int listed = list_candidates(row, V, [&](int i) { return bin_of(row[i], best) <= edge; }, scratch);
  if (listed > LISTED) {
    const Cut cut = cut_reaching(WholeRow{row}, V, [](int) -> u64 { return 1; }, (u64)count, scratch);
    listed = list_candidates(row, V, [&](int i) { return cut.keeps(row[i], i); }, scratch);
  }
  for (int i = threadIdx.x; i < listed; i += blockDim.x) {
    const u64 mine = ranked(scratch.values[i], scratch.ids[i]);
    int place = 0;
    for (int j = 0; j < listed; j++) place += ranked(scratch.values[j], scratch.ids[j]) > mine;
    if (place < count) ids[place] = scratch.ids[i], tops[place] = (float)((double)scratch.values[i] - log_total);
  }
}
