// From projections to attention: bias, RMS norm and partial rotation of each query and key head; writes keys and values to their pages.
// Biases and norms are nullptr if the architecture has none.
//
// query[t][h] = rotated(norm(query[t][h] + bias)) in place; K and V pages of the token's position = rotated(norm(key + bias)), value +
// bias. The rotation turns dimension j with j + rotary / 2, or 2 j with 2 j + 1 (interleaved), and not those from `rotary` on. The
// gate after each query head stays.
// Tokens of padding sequences (negative row) and after the last sequence write no page and get a zero row of `out`, which the attention
// kernels do not write.
//
// Grid [T, ceil((H + 2 H_kv) / 4)], a warp per head: H query heads, then H_kv key heads, then H_kv value heads.
//
// Variant: HEAD_DIM=256 KV=__half
// Variant: HEAD_DIM=128 KV=float
// Variant: HEAD_DIM=48 KV=__half
// Variant: HEAD_DIM=256 KV=u8 KV_BITS=8
// Variant: HEAD_DIM=64 KV=u8 KV_BITS=4
#include "common.cuh"
#include "half.cuh"
#include "kv_pages.cuh"
#include "warp.cuh"

constexpr int HEADS = 4;                                 // of a block
constexpr int LANE_DIMS = (HEAD_DIM + WARP - 1) / WARP;  // lane i has dimensions i, i + 32, ...

// The live sequence of a token, or -1.
__device__ __forceinline__ int live_sequence(const int* cu_seqlens, const int* rows, int num_sequences, int token) {
  if (token >= cu_seqlens[num_sequences]) return -1;
  int low = 0, high = num_sequences;  // cu_seqlens[low] <= token < cu_seqlens[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle] <= token) low = middle;
    else high = middle;
  }
  return rows[low] < 0 ? -1 : low;
}

// norm(head) * weight, or the head itself without a weight, into shared memory `to`. One warp.
__device__ __forceinline__ void norm_head(const float (&x)[LANE_DIMS], float* to, const float* weight, float epsilon) {
  const int lane = lane_index();
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < LANE_DIMS; i++) squares += x[i] * x[i];
  const float scale = 1.f / sqrtf(warp_sum(squares) / HEAD_DIM + epsilon);
#pragma unroll
  for (int i = 0; i < LANE_DIMS; i++)
    if (const int d = i * WARP + lane; d < HEAD_DIM) to[d] = weight ? x[i] * scale * weight[d] : x[i];
  __syncwarp();
}

// Dimension d of a head in shared memory, rotated.
__device__ __forceinline__ float turned(const float* head, int d, const float* cosines, const float* sines, int half, int interleaved) {
  if (d >= 2 * half) return head[d];
  const int pair = interleaved ? d / 2 : d % half;
  const bool is_second = interleaved ? d % 2 : d >= half;
  const float other = head[interleaved ? d ^ 1 : is_second ? d - half : d + half];
  return is_second ? head[d] * cosines[pair] + other * sines[pair] : head[d] * cosines[pair] - other * sines[pair];
}

// query [T, H, query_stride], key and value [T, H_kv, D], biases [H, D] and [H_kv, D], norms [D], rope [T, half], pages: the slab,
// out [T, H, D].
extern "C" __global__ void __launch_bounds__(128)
qk_norm_rope_kv(float* __restrict__ query, const float* __restrict__ key, const float* __restrict__ value,
                const float* __restrict__ query_bias, const float* __restrict__ key_bias, const float* __restrict__ value_bias,
                const float* __restrict__ query_norm, const float* __restrict__ key_norm, const float* __restrict__ rope_cos,
                const float* __restrict__ rope_sin, KV* __restrict__ pages, const int* __restrict__ block_table,
                const int* __restrict__ positions, const int* __restrict__ cu_seqlens, const int* __restrict__ rows,
                float* __restrict__ out, int num_sequences, int num_heads, int num_kv_heads, int query_stride, int half, int interleaved,
                int table_width, int page_tokens, i64 page_elements, i64 key_offset, i64 value_offset, float epsilon) {
  __shared__ float normed[HEADS][HEAD_DIM];
  const i64 token = blockIdx.x;
  const int head = blockIdx.y * HEADS + warp_index(), lane = lane_index();
  const int sequence = live_sequence(cu_seqlens, rows, num_sequences, blockIdx.x);
  const bool is_query = head < num_heads, is_key = !is_query && head < num_heads + num_kv_heads;
  if (head >= num_heads + 2 * num_kv_heads) return;
  if (sequence < 0) {
    for (int d = lane; is_query && d < HEAD_DIM; d += WARP) out[(token * num_heads + head) * HEAD_DIM + d] = 0.f;
    return;
  }
  const int kv_head = head - num_heads - (is_key ? 0 : num_kv_heads);
  const float* from = is_query ? query + (token * num_heads + head) * query_stride
                               : (is_key ? key : value) + (token * num_kv_heads + kv_head) * HEAD_DIM;
  const float* biases = is_query ? query_bias : is_key ? key_bias : value_bias;
  const float* bias = biases ? biases + (is_query ? head : kv_head) * HEAD_DIM : nullptr;
  float x[LANE_DIMS];
#pragma unroll
  for (int i = 0; i < LANE_DIMS; i++) {
    const int d = i * WARP + lane;
    x[i] = d < HEAD_DIM ? from[d] + (bias ? bias[d] : 0.f) : 0.f;
  }
  if (is_query || is_key) {
    float* head_values = normed[warp_index()];
    norm_head(x, head_values, is_query ? query_norm : key_norm, epsilon);
#pragma unroll
    for (int i = 0; i < LANE_DIMS; i++)
      if (const int d = i * WARP + lane; d < HEAD_DIM)
        x[i] = turned(head_values, d, rope_cos + token * half, rope_sin + token * half, half, interleaved);
  }

  const int position = positions[token], page = is_query ? 0 : block_table[(i64)sequence * table_width + position / page_tokens];
  const i64 in_page = ((i64)kv_head * page_tokens + position % page_tokens) * KV_ROW;
  KV* const row = pages + page * page_elements + key_offset + (is_key ? 0 : value_offset) + in_page;
#pragma unroll
  for (int i = 0; i < LANE_DIMS; i++) {
    const int d = i * WARP + lane;
#if KV_BITS
    if (!is_query) {  // the whole warp
      write_block(row + i * KV_BLOCK_BYTES, x[i]);
      continue;
    }
#else
    if (!is_query && d < HEAD_DIM) row[d] = from_float<KV>(x[i]);
#endif
    if (is_query && d < HEAD_DIM) query[(token * num_heads + head) * query_stride + d] = x[i];
  }
}
