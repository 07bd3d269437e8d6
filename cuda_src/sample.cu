// From rows of logits to tokens: the steps of svc/compute/sampling/chain.py in its order, with float32 exponentials and fixed-point
// sums. n samples, V vocabulary.
//
//  sample_copy, sample_adjust  a grammar's mask, bias, penalties and bans, on a copy of the row (one row may have several samples)
//  sample_best                 the best of each part of a row, grid [parts, n]; one block per row would leave most of the GPU idle
//  sample_choose               temperature, top-k, top-p, min-p and the draw, a block per sample
//
// Passes of one block over a long row dominate the cost, so a rough histogram first finds the few values that top-k or top-p can keep and
// lists them in shared memory. If they are too many (a flat distribution), the same steps run over the whole row.
// Loser on paper: a histogram of the leading bits at once; nearly all logits share three of its bins and atomics queue up. Not measured
// on a GPU yet.
#include "select.cuh"

constexpr float LARGEST = 3.402823466e38f;

// The parameters of a sample. `row`: of the logits; negative is padding and gives token 0. `adjusted`: row of the copies, or -1.
// int4 (row, adjusted, top_k, row of the masks or -1); numbers: TEMPERATURE .. UNIFORM of each.
constexpr int NUMBERS = 7;
enum { TEMPERATURE, TOP_P, MIN_P, UNIFORM, REPETITION, PRESENCE, FREQUENCY };
// int4 of an adjustment: (token, sample, times counted by presence and frequency, flags).
enum { REPEATED = 1, BANNED = 2 };

// Grid [parts, n], samples without adjustments return. masks [k][ceil(V / 32)]: bit i % 32 of word i / 32 is token i.
extern "C" __global__ void __launch_bounds__(256)
sample_copy(float* __restrict__ adjusted, const float* __restrict__ logits, const u32* __restrict__ masks,
            const int4* __restrict__ samples, int V) {
  const int4 s = samples[blockIdx.y];
  if (s.x < 0 || s.y < 0) return;
  const u32* mask = s.w < 0 ? nullptr : masks + (i64)s.w * ((V + 31) / 32);
  for (i64 i = global_thread(); i < V; i += global_threads()) {
    const bool allowed = !mask || mask[i / 32] >> (i % 32) & 1u;
    adjusted[(i64)s.y * V + i] = allowed ? logits[(i64)s.x * V + i] : -INFINITY;
  }
}

// A thread per adjustment; the tokens of a sample's adjustments are different. Rounded once. Masked tokens stay excluded.
extern "C" __global__ void __launch_bounds__(256)
sample_adjust(float* __restrict__ adjusted, const int4* __restrict__ samples, const double* __restrict__ numbers,
              const int4* __restrict__ adjustments, const double* __restrict__ bias, int num_adjustments, int V) {
  for (i64 i = global_thread(); i < num_adjustments; i += global_threads()) {
    const int4 a = adjustments[i];
    const int4 s = samples[a.y];
    const double* number = numbers + (i64)a.y * NUMBERS;
    float* logit = adjusted + (i64)s.y * V + a.x;
    if (*logit == -INFINITY) continue;
    double value = (double)*logit + bias[i];
    if (a.w & REPEATED) value = value > 0 ? value / number[REPETITION] : value * number[REPETITION];
    if (a.z) value -= number[PRESENCE] + number[FREQUENCY] * a.z;
    *logit = a.w & BANNED ? -INFINITY : (float)fmin(fmax(value, (double)-LARGEST), (double)LARGEST);
  }
}

// best [n][parts]: the best of each part as `ranked`, all ones if a logit of the part is not finite.
extern "C" __global__ void __launch_bounds__(256)
sample_best(u64* __restrict__ best, const float* __restrict__ logits, const float* __restrict__ adjusted, const int4* __restrict__ samples,
            int V) {
  __shared__ u64 parts[WARP];
  const int4 s = samples[blockIdx.y];
  if (s.x < 0) return;
  const float* model = logits + (i64)s.x * V;
  const float* row = s.y < 0 ? model : adjusted + (i64)s.y * V;
  u64 mine = 0;
  for (i64 i = global_thread(); i < V; i += global_threads()) {
    const u64 rank = is_finite(model[i]) ? ranked(row[i], (int)i) : ~0ull;
    mine = mine < rank ? rank : mine;
  }
  mine = block_max_u64(mine, parts);
  if (threadIdx.x == 0) best[(i64)blockIdx.y * gridDim.x + blockIdx.x] = mine;
}

// Probability of a value relative to the best, at most 1, and the same in fixed point: the sum of a row stays below 2^63.
struct Likely {
  float best, temperature, unit;
  __device__ __forceinline__ float of(float value) const { return expf((value - best) / temperature); }
  __device__ __forceinline__ u64 fixed(float value) const { return (u64)(of(value) * unit); }
};

__device__ __forceinline__ u64 share_of(double share, u64 total) {
  const u64 target = (u64)ceil(share * (double)total);
  return target < 1 ? 1 : (target > total ? total : target);
}

// Draws the token. `top_p_target`: the sum that top-p must reach, 0 if not known yet.
template <class Source>
__device__ __forceinline__ int draw(const Source& source, int n, const Likely& likely, int top_k, const double* number, u64 top_p_target,
                                    SelectScratch& scratch) {
  Cut cut = keep_all();
  double min_p = 0.;
  auto weight = [&](int i) -> u64 {
    const float value = source.value(i);
    if (!cut.keeps(value, source.id(i))) return 0;
    const float relative = likely.of(value);
    return (double)relative < min_p ? 0 : (u64)(relative * likely.unit);
  };
  if (top_k) cut = cut_reaching(source, n, [](int) -> u64 { return 1; }, (u64)top_k, scratch);
  if (number[TOP_P] < 1) {
    if (!top_p_target) {
      u64 sum = 0;
      for (int i = threadIdx.x; i < n; i += blockDim.x) sum += weight(i);
      top_p_target = share_of(number[TOP_P], block_sum_u64(sum, scratch.parts));
    }
    cut = cut_reaching(source, n, weight, top_p_target, scratch);
  }
  min_p = number[MIN_P];
  const double uniform = number[UNIFORM];
  // Below the total, though that is rounded: u < 1 means at most the double before the total's.
  auto mark_of = [uniform](u64 total) -> u64 { return (u64)(uniform * (double)total); };
  return source.id(first_above(n, weight, mark_of, scratch));
}

extern "C" __global__ void __launch_bounds__(1024, 1)
sample_choose(int* __restrict__ tokens, const float* __restrict__ logits, const float* __restrict__ adjusted,
              const int4* __restrict__ samples, const double* __restrict__ numbers, const u64* __restrict__ best, int num_parts, int V,
              float unit) {
  __shared__ SelectScratch scratch;
  const int4 s = samples[blockIdx.x];
  const double* number = numbers + (i64)blockIdx.x * NUMBERS;
  int token = 0;
  if (s.x >= 0) {
    u64 rank = 0;
    for (int i = threadIdx.x; i < num_parts; i += blockDim.x) rank = max(rank, best[(i64)blockIdx.x * num_parts + i]);
    rank = block_max_u64(rank, scratch.parts);
    if ((u32)(rank >> 32) == NOT_FINITE) token = -1;
    else if (ranked_value(rank) == -INFINITY) token = -2;  // the mask is empty
    else if (number[TEMPERATURE] == 0) token = ranked_id(rank);
    else {
      const float* row = s.y < 0 ? logits + (i64)s.x * V : adjusted + (i64)s.y * V;
      const Likely likely{ranked_value(rank), (float)number[TEMPERATURE], unit};
      const int top_k = s.z > 0 && s.z < V ? s.z : 0;
      u64 target = 0;
      int listed = LISTED + 1, edge = NUM_BINS;
      if (top_k) {
        fill_bins(row, V, likely.best, [](int) -> u64 { return 1; }, scratch);
        u64 wanted = (u64)top_k;
        edge = reaching_bin(scratch, NUM_BINS, 0, 1, wanted);
      } else if (number[TOP_P] < 1) {
        fill_bins(row, V, likely.best, [&](int i) -> u64 { return likely.fixed(row[i]); }, scratch);
        u64 sum = 0;
        for (int i = threadIdx.x; i < NUM_BINS; i += blockDim.x) sum += scratch.bins[i];
        target = share_of(number[TOP_P], block_sum_u64(sum, scratch.parts));
        u64 wanted = target;
        edge = reaching_bin(scratch, NUM_BINS, 0, 1, wanted);
      }
      if (edge < NUM_BINS) listed = list_candidates(row, V, [&](int i) { return bin_of(row[i], likely.best) <= edge; }, scratch);
      token = listed <= LISTED ? draw(Candidates{scratch.values, scratch.ids}, listed, likely, top_k, number, target, scratch)
                               : draw(WholeRow{row}, V, likely, top_k, number, target, scratch);
    }
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}
