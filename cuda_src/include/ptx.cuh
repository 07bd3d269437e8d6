// Instructions without a name in C++: asynchronous copies, ldmatrix and tensor core multiply-adds. The emulator has functions that do
// the same.
#pragma once
#include "common.cuh"

// ---- 16 bytes from global to shared memory, without a register if the architecture can (sm_80 on). With `valid` false it
// writes zeros and reads nothing. Both aligned to 16. Visible to the thread after its wait, to others after a barrier that follows.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid = true) {
#if __CUDA_ARCH__ < 800
  *reinterpret_cast<int4*>(shared) = valid ? *reinterpret_cast<const int4*>(global) : make_int4(0, 0, 0, 0);
#elif defined(CUDA_EMU)
  emu::cp_async(shared, global, 16, valid ? 16 : 0);
#else
  u32 to = (u32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(valid ? 16 : 0) : "memory");
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#ifdef CUDA_EMU
  emu::cp_async_commit();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
// Waits until at most GROUPS of this thread's committed groups are in flight.
template <int GROUPS> __device__ __forceinline__ void copy_async_wait() {
#ifdef CUDA_EMU
  emu::cp_async_wait(GROUPS);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(GROUPS) : "memory");
#endif
}

// ---- d[16][8] += a[16][K] . b[K][8], one warp, fragments as PTX lays them out: with g = lane / 4 and t = lane % 4,
// d: rows g, g + 8, columns 2 t, 2 t + 1; a: rows g, g + 8; b: column g.
__device__ __forceinline__ void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {  // K = 16
#ifdef CUDA_EMU
  emu::mma_f16(d, a, b);
#elif __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // sm_75 has half the K
#pragma unroll
  for (int half = 0; half < 2; half++)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {  // K = 16, not on sm_75
#ifdef CUDA_EMU
  emu::mma_bf16(d, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
#endif

__device__ __forceinline__ void mma_s8(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {  // K = 32, exact
#ifdef CUDA_EMU
  emu::mma_s8(d, a, b);
#elif __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int rows = 0; rows < 2; rows++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1},{%2},{%3},{%0,%1};\n"
                   : "+r"(d[2 * rows]), "+r"(d[2 * rows + 1])
                   : "r"(a[rows + 2 * half]), "r"(b[half]));
#endif
}

// ---- four 8x8 matrices of 16-bit elements from shared memory; lane 8 i + r gives the address of row r of matrix i, aligned to
// 16 bytes.
__device__ __forceinline__ void load_matrix_x4(u32 (&registers)[4], const void* row) {
#ifdef CUDA_EMU
  emu::ldmatrix<4, false>(registers, row);
#else
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(at)
               : "memory");
#endif
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_matrix_x4_transposed(u32 (&registers)[4], const void* row) {
#ifdef CUDA_EMU
  emu::ldmatrix<4, true>(registers, row);
#else
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(at)
               : "memory");
#endif
}
