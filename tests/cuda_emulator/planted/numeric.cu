// Intrinsics one by one: `what` chooses, thread i computes on element i.
#include "half.cuh"
#include "ptx.cuh"
#include "quant.cuh"
#include "warp.cuh"

extern "C" __global__ void __launch_bounds__(32) integers(const u32* a, const u32* b, u32* out, int what) {
  const int i = threadIdx.x;
  const u32 x = a[i], y = b[i];
  u32 r = 0;
  if (what == 0) r = (u32)__dp4a((int)x, (int)y, 7);
  if (what == 1) r = __dp4a(x, y, 7u);
  if (what == 2) r = __byte_perm(x, y, 0x7531);
  if (what == 3) r = (u32)__vsubss4((int)x, (int)y);
  if (what == 4) r = __vcmpne4(x, y);
  if (what == 5) r = (u32)__popc(x) | (u32)__clz((int)x) << 8 | (u32)__ffs((int)y) << 16;
  if (what == 6) r = __umulhi(x, y);
  if (what == 7) r = __funnelshift_r(x, y, 5) ^ __funnelshift_l(x, y, 9);
  if (what == 8) r = __brev(x);
  out[i] = r;
}

extern "C" __global__ void __launch_bounds__(32) warps(const float* x, float* out, int what) {
  const int i = threadIdx.x;
  const float v = x[i];
  float r = 0.f;
  if (what == 0) r = warp_sum(v);
  if (what == 1) r = warp_max(v);
  if (what == 2) r = group_sum<8>(v);
  if (what == 3) r = __shfl_up_sync(ALL_LANES, v, 3);
  if (what == 4) r = __shfl_down_sync(ALL_LANES, v, 3, 16);
  if (what == 5) r = __shfl_sync(ALL_LANES, v, 5, 8);
  if (what == 6) r = (float)__popc(__ballot_sync(ALL_LANES, v > 0.f));
  if (what == 7) r = (float)__any_sync(ALL_LANES, v > 2.f) + 2.f * (float)__all_sync(ALL_LANES, v > -9.f);
  if (what == 8) r = (float)__popc(__match_any_sync(ALL_LANES, (int)v));
  out[i] = r;
}

extern "C" __global__ void __launch_bounds__(256) blocks(const float* x, float* sums, float* maxima, int* counts) {
  __shared__ float scratch[WARP];
  const float v = x[threadIdx.x];
  sums[threadIdx.x] = block_sum(v, scratch);
  maxima[threadIdx.x] = block_max(v, scratch);
  counts[threadIdx.x] = __syncthreads_count(v > 0.f) + 1000 * __syncthreads_count(v > 1.f);
}

extern "C" __global__ void __launch_bounds__(32) conversions(const float* x, f16* as_half, bf16* as_bf16, float* back) {
  const int i = threadIdx.x;
  as_half[i] = from_float<f16>(x[i]);
  as_bf16[i] = from_float<bf16>(x[i]);
  back[i] = half_bits(__half_as_ushort(as_half[i]));
}

// c[16][8] = a[16][16] . b[8][16]^T, operands through shared memory and ldmatrix.
extern "C" __global__ void __launch_bounds__(32) tile_f16(const f16* a, const f16* b, float* c) {
  __shared__ __align__(16) f16 tile[16][16];
  const int l = threadIdx.x, g = l / 4, t = l % 4;
  copy_async_16(&tile[l / 2][l % 2 * 8], a + l * 8);
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
  u32 fa[4], fb[2];
  load_matrix_x4(fa, &tile[l % 16][l / 16 * 8]);
  for (int k = 0; k < 2; k++) fb[k] = *reinterpret_cast<const u32*>(b + g * 16 + k * 8 + 2 * t);
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  mma_f16(d, fa, fb);
  for (int j = 0; j < 4; j++) c[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = d[j];
}

// c[16][8] = a[16][32] . b[8][32]^T
extern "C" __global__ void __launch_bounds__(32) tile_s8(const i8* a, const i8* b, int* c) {
  const int l = threadIdx.x, g = l / 4, t = l % 4;
  u32 fa[4], fb[2];
  for (int r = 0; r < 4; r++) fa[r] = *reinterpret_cast<const u32*>(a + (g + r % 2 * 8) * 32 + r / 2 * 16 + 4 * t);
  for (int k = 0; k < 2; k++) fb[k] = *reinterpret_cast<const u32*>(b + g * 32 + k * 16 + 4 * t);
  int d[4] = {0, 0, 0, 0};
  mma_s8(d, fa, fb);
  for (int j = 0; j < 4; j++) c[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = d[j];
}

// Each lane gets two elements of the transposed matrices.
extern "C" __global__ void __launch_bounds__(32) transposed(const u16* x, u16* out) {
  __shared__ __align__(16) u16 matrices[4][8][8];
  const int l = threadIdx.x;
  for (int i = l; i < 256; i += 32) (&matrices[0][0][0])[i] = x[i];
  __syncwarp();
  u32 r[4];
  load_matrix_x4_transposed(r, matrices[l / 8][l % 8]);
  for (int m = 0; m < 4; m++) *reinterpret_cast<u32*>(out + m * 64 + 2 * l) = r[m];
}
