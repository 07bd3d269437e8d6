// The per-token part of a Gated DeltaNet layer before the chunked recurrence: causal convolution, SiLU, L2 norm of q and k, and the gates.
// delta_decode handles sequences of at most `skip_tokens` tokens.
//
// A warp does one head (a q, k or v head, or the gates of all value heads) of TILE tokens and keeps the previous TAPS - 1 rows in registers.
// Grid [heads / 4, token tiles], 4 warps a block.
#include "delta.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / WARP;
constexpr int TILE = 16;

// The sequence of the current token of a tile. Tokens of padding rows and of delta_decode's sequences are `skipped`.
struct Place {
  int sequence, first, end;
  bool skipped;

  __device__ __forceinline__ void enter(const int* cu_seqlens, const int* rows, int at, int skip_tokens) {
    sequence = at;
    first = cu_seqlens[at], end = cu_seqlens[at + 1];
    skipped = rows[at] < 0 || end - first <= skip_tokens;
  }
};

template <int SIZE>
__device__ __forceinline__ void convolve_head(float* mixed, const float* raw, const float* taps, const float* conv_rows, i64 state_elements,
                                              const int* rows, const int* cu_seqlens, Place place, int token, int end_token, int skip_tokens,
                                              int channels, int channel, float epsilon, bool normalised, bool is_query) {
  constexpr int PER_LANE = (SIZE + WARP - 1) / WARP;
  const int lane = lane_index();
  float weights[PER_LANE][TAPS], window[PER_LANE][TAPS];
#pragma unroll
  for (int i = 0; i < PER_LANE; i++)
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
      weights[i][tap] = lane + i * WARP < SIZE ? taps[(i64)(channel + lane + i * WARP) * TAPS + tap] : 0.f;

  for (bool fresh = true; token < end_token; token++) {
    while (token >= place.end) {
      place.enter(cu_seqlens, rows, place.sequence + 1, skip_tokens);
      fresh = true;
    }
    if (place.skipped) continue;
    const float* kept = conv_rows + rows[place.sequence] * state_elements;
    float squares = 0.f, out[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      const int d = lane + i * WARP;
      float sum = 0.f;
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++) {
        if (tap < TAPS - 1 && !fresh) window[i][tap] = window[i][tap + 1];
        else window[i][tap] = d < SIZE ? raw_value(raw, kept, channels, place.first, token - place.first - (TAPS - 1) + tap, channel + d) : 0.f;
        sum = fmaf(weights[i][tap], window[i][tap], sum);
      }
      out[i] = silu(sum);
      squares = fmaf(out[i], out[i], squares);
    }
    fresh = false;
    const float scale = normalised ? head_scale(warp_sum(squares), epsilon, is_query) : 1.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
      if (lane + i * WARP < SIZE) mixed[(i64)token * channels + channel + lane + i * WARP] = out[i] * scale;
  }
}

// raw [T][channels]; beta, alpha [T][num_value_heads] as projected; gives mixed [T][channels] (q and k normalised, q also / sqrt(KEY_DIM)),
// gates [T][num_value_heads]: (beta, logarithm of the decay).
extern "C" __global__ void __launch_bounds__(THREADS)
delta_conv(float* __restrict__ mixed, float2* __restrict__ gates, const float* __restrict__ raw, const float* __restrict__ beta,
           const float* __restrict__ alpha, const float* __restrict__ taps, const float* __restrict__ a, const float* __restrict__ dt_bias,
           const float* __restrict__ conv_rows, i64 state_elements, const int* __restrict__ rows, const int* __restrict__ cu_seqlens,
           int num_sequences, int num_key_heads, int num_value_heads, int skip_tokens, float epsilon) {
  const int unit = blockIdx.x * WARPS + warp_index(), token = blockIdx.y * TILE, end_token = min(token + TILE, cu_seqlens[num_sequences]);
  const int keys = num_key_heads * KEY_DIM, channels = 2 * keys + num_value_heads * VALUE_DIM;
  if (unit > 2 * num_key_heads + num_value_heads || token >= end_token) return;  // the whole warp; there is no barrier
  Place place;
  place.enter(cu_seqlens, rows, sequence_of(cu_seqlens, num_sequences, token), skip_tokens);

  if (unit < 2 * num_key_heads) {
    convolve_head<KEY_DIM>(mixed, raw, taps, conv_rows, state_elements, rows, cu_seqlens, place, token, end_token, skip_tokens, channels,
                           unit * KEY_DIM, epsilon, true, unit < num_key_heads);
  } else if (unit < 2 * num_key_heads + num_value_heads) {
    convolve_head<VALUE_DIM>(mixed, raw, taps, conv_rows, state_elements, rows, cu_seqlens, place, token, end_token, skip_tokens, channels,
                             2 * keys + (unit - 2 * num_key_heads) * VALUE_DIM, epsilon, false, false);
  } else {
    const i64 start = (i64)token * num_value_heads, end = (i64)end_token * num_value_heads;
    for (i64 i = start + lane_index(); i < end; i += WARP) {
      const int head = i % num_value_heads;
      gates[i] = make_float2(sigmoid(beta[i]), log_decay(alpha[i], a[head], dt_bias[head]));
    }
  }
}
