// Rows of float32 [T, K] to blocks of 32 signed bytes for dp4a, [T, K / 32] Q8Block: scale = amax / 127, q = x / scale rounded to nearest
// even, sum = scale * (q[0] + ... + q[31]).
//
// Eight lanes per block, four values per lane; grid-stride over the blocks of all rows. Thread blocks are whole warps.
#include "quant.cuh"
#include "warp.cuh"

constexpr int LANES = 8;

__device__ __forceinline__ int pack_bytes(int a, int b, int c, int d) {
  return a & 255 | (b & 255) << 8 | (c & 255) << 16 | d << 24;
}

// Clamped, so that NaN becomes some byte.
__device__ __forceinline__ int to_byte(float v) { return __float2int_rn(fminf(fmaxf(v, -127.f), 127.f)); }

extern "C" __global__ void __launch_bounds__(256) quantize(const float* __restrict__ x, Q8Block* __restrict__ out, i64 num_blocks) {
  const int part = threadIdx.x % LANES;
  const i64 step = global_threads() / LANES;
  // All lanes of a warp run the same number of iterations, because the reductions need them all.
  const i64 turns = ceil_div(num_blocks, step);
  i64 index = global_thread() / LANES;
  for (i64 turn = 0; turn < turns; turn++, index += step) {
    const bool inside = index < num_blocks;
    const float4 v = inside ? reinterpret_cast<const float4*>(x)[index * LANES + part] : make_float4(0.f, 0.f, 0.f, 0.f);
    // Compared as bits, NaN is the largest: it reaches the scale instead of becoming a byte.
    u32 largest = max(max(__float_as_uint(fabsf(v.x)), __float_as_uint(fabsf(v.y))),
                      max(__float_as_uint(fabsf(v.z)), __float_as_uint(fabsf(v.w))));
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
    const float amax = __uint_as_float(largest);
    const float scale = amax / 127.f;
    const float inverse = amax > 0.f && amax < INFINITY ? 127.f / amax : 0.f;
    const int a = to_byte(v.x * inverse), b = to_byte(v.y * inverse), c = to_byte(v.z * inverse), d = to_byte(v.w * inverse);
    int total = a + b + c + d;
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
    if (inside) {
      reinterpret_cast<int*>(out[index].q)[part] = pack_bytes(a, b, c, d);
      if (part == 0) {
        out[index].scale = scale;
        out[index].sum = scale * (float)total;
      }
    }
  }
}
