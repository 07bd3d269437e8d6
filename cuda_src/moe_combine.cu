// hidden[t] += sum_r weights[t][r] parts[t][r]  +  sigmoid(shared_router . x[t]) shared[t]. T tokens, C hidden, k experts a token.
//
// Grid [T, column parts], 256 threads. The sum runs in the router's order of ranks. Each block computes the shared expert's gate
// again, which costs less than a launch; its bits depend on C alone.
#include "warp.cuh"

constexpr int THREADS = 256;

// parts [T k][C]: pair t * k + r is row positions[t * k + r], or row t * k + r if that is nullptr. `shared` [T][C], x and shared_router
// may be nullptr together. Tokens with a negative first expert are padding and stay as they are.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_combine(float* __restrict__ hidden, const float* __restrict__ parts, const int* __restrict__ positions, const int* __restrict__ experts,
            const float* __restrict__ weights, const float* __restrict__ shared, const float* __restrict__ x,
            const float* __restrict__ shared_router, int C, int k) {
  __shared__ float scratch[WARP];
  const int token = blockIdx.x, pair = token * k;
  if (experts[pair] < 0) return;  // the whole block
  float gate = 0.f;
  if (shared) {
    for (int i = threadIdx.x; i < C; i += THREADS) gate = fmaf(x[(i64)token * C + i], shared_router[i], gate);
    gate = sigmoid(block_sum(gate, scratch));
  }
  for (int i = blockIdx.y * THREADS + threadIdx.x; i < C; i += gridDim.y * THREADS) {
    float total = 0.f;
    for (int rank = 0; rank < k; rank++) {
      const i64 at = positions ? positions[pair + rank] : pair + rank;
      total = fmaf(weights[pair + rank], parts[at * C + i], total);
    }
    if (shared) total = fmaf(gate, shared[(i64)token * C + i], total);
    hidden[(i64)token * C + i] += total;
  }
}
