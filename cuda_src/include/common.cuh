// Included by every kernel: short type names, dynamic shared memory, 64-bit addresses.
//
// How to add a kernel `foo`
//  1. `svc/compute/reference/` has the operation. It is the oracle; write it first.
//  2. `cuda_src/foo.cu`: a head (what it computes, shapes in the letters of ops.py, launch geometry, losers of tuning), helpers as
//     `__device__ __forceinline__`, then the entries, each spelled out as
//         extern "C" __global__ void __launch_bounds__(256) foo(const float* __restrict__ x, float* __restrict__ out, int C)
//     The declaration is the contract: device layer and emulator read it (svc/compute/cuda/signature.py). Scalars: int, u32,
//     i64, u64, float. Arrays: the numpy type of the element; bf16 is uint16; structs (quantized blocks) are uint8; a launch
//     passes None for nullptr. `const` for arrays that are only read, `__restrict__` for arrays that nothing else writes. Do not
//     generate entries by macros: the parser would not see them.
//  3. Sizes that shape the code (head size, quant type, rows a block) are `-D` names: `device.module("foo", {"HEAD_DIM": 128})`. Give each
//     a default by #ifndef, so that the file compiles alone. Sizes of loops are arguments.
//     Lines `// Variant: HEAD_DIM=64 ROWS=8` in the file's head list the builds of the compile test (none: the defaults).
//  4. `svc/compute/cuda/foo.py`: one launcher per kernel, `foo(device, out, x, ..., stream=None)`; it alone knows grid and block.
//  5. Tests: through the emulator against the reference, in all orders and builds (the `device` fixture of tests/cuda_src/). The compile test
//     finds the file and builds it for all architectures; `make kernels` prints registers and occupancy, and fails on a spill.
//     Without a second number in the launch bounds the assembler guesses an occupancy and spills a few bytes for it: give the number of
//     blocks per multiprocessor, `__launch_bounds__(256, 4)` (65536 / (4 * 256) = 64 registers at most).
//
// Rules
//  - Only headers in this folder may test CUDA_EMU (defined by the emulator). PTX is in ptx.cuh, each with an equivalent for the emulator.
//  - Element offsets are 64-bit before the first multiplication: `(i64)row * C`.
//  - Reductions have one fixed tree that depends on the block size alone (warp.cuh), never on the number of rows or an atomic float.
//  - No early `return` before a barrier or a warp collective; all lanes of the mask must reach it.
//  - One block does not wait for another. Two passes are two launches.
//  - No libraries, no <cstdint>: NVRTC has neither. INFINITY and NAN are defined here.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

// DYNAMIC_SHARED(float, row); inside a kernel: `T* row` with the bytes that the launch asked for, aligned to 16. Once per kernel.
#ifdef CUDA_EMU
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(emu::context.dynamic_shared)
#else
#define DYNAMIC_SHARED(T, name)                                  \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(dynamic_shared)
#endif

__device__ __forceinline__ i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// Index of this thread in a one-dimensional grid, and the number of threads.
__device__ __forceinline__ i64 global_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 global_threads() { return (i64)gridDim.x * blockDim.x; }

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }
// x itself beyond 20, where the difference is below float32.
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(__expf(x)); }
