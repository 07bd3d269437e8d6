// The experts of each token: the k largest of E logits (equal ones: lower index first) and the softmax over them, scaled. T tokens.
//
// A warp per token, all its logits in registers as integers with the order of the floats; k rounds of a warp maximum. Grid
// [ceil(T / 4)]. PER_LANE is ceil(E / 32); k is at most 32, each lane finishing one expert.
// Variant: PER_LANE=4
// Variant: PER_LANE=16
// Variant: PER_LANE=32
#include "select.cuh"

#ifndef PER_LANE
#define PER_LANE 16
#endif

constexpr int THREADS = 128;

// NaN logits come last, as in numpy's sort; a token that must take one gets NaN weights. `rows` (or nullptr): a negative row marks a
// padding token, which gets no experts (-1) and weights of zero.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
router(int* __restrict__ experts, float* __restrict__ weights, const float* __restrict__ logits, const int* __restrict__ rows, int T, int E,
       int k, float scale) {
  const int token = blockIdx.x * (THREADS / WARP) + warp_index(), lane = lane_index();
  if (token >= T) return;  // the whole warp; there is no barrier
  if (rows && rows[token] < 0) {
    if (lane < k) experts[(i64)token * k + lane] = -1, weights[(i64)token * k + lane] = 0.f;
    return;
  }
  const float* mine = logits + (i64)token * E;
  u64 ranks[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int expert = lane + i * WARP;
    const float value = expert < E ? mine[expert] : 0.f;
    ranks[i] = expert < E ? (value == value ? ranked(value, expert) : (u64)(u32)~expert) : 0;
  }
  int chosen = 0;
  for (int round = 0; round < k; round++) {
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) best = ranks[i] > best ? ranks[i] : best;
    best = warp_max_u64(best);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
      if (ranks[i] == best) ranks[i] = 0;
    if (lane == round) chosen = ranked_id(best);
  }
  const float value = mine[chosen], largest = __shfl_sync(ALL_LANES, value, 0);
  const float weight = lane < k ? expf(value - largest) : 0.f;
  const float total = warp_sum(weight);
  if (lane < k) experts[(i64)token * k + lane] = chosen, weights[(i64)token * k + lane] = weight / total * scale;
}
