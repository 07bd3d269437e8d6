// c[16][8] = a[16][16] . b[8][16]^T, from sm_80 on.
#include "half.cuh"
#include "ptx.cuh"

extern "C" __global__ void __launch_bounds__(32) tile_bf16(const bf16* a, const bf16* b, float* c) {
  const int l = threadIdx.x, g = l / 4, t = l % 4;
  u32 fa[4], fb[2];
  for (int r = 0; r < 4; r++) fa[r] = *reinterpret_cast<const u32*>(a + (g + r % 2 * 8) * 16 + r / 2 * 8 + 2 * t);
  for (int k = 0; k < 2; k++) fb[k] = *reinterpret_cast<const u32*>(b + g * 16 + k * 8 + 2 * t);
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  mma_bf16(d, fa, fb);
  for (int j = 0; j < 4; j++) c[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = d[j];
}
