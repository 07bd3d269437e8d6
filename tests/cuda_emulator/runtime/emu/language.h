// CUDA's keywords, built-in variables and vector types.
#pragma once
#include "core.h"

#define CUDA_EMU 1
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
// A block's shared memory is a static variable, as blocks run one after the other. The checked build sets them far apart: whatever
// runs over the end of one meets a gap.
#ifdef EMU_CHECKED
#define __shared__ static __attribute__((section(".emu_shared"), aligned(65536)))
#else
#define __shared__ static __attribute__((section(".emu_shared")))
#endif

#define threadIdx (emu::context.current->thread)
#define blockIdx (emu::context.block)
#define blockDim (emu::context.block_dim)
#define gridDim (emu::context.grid_dim)
static const int warpSize = 32;

#define EMU_VECTOR(T, name, bytes)                                                                \
  struct alignas(2 * bytes) name##2 { T x, y; };                                                  \
  struct name##3 { T x, y, z; };                                                                  \
  struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 { T x, y, z, w; };                      \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                               \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                       \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(float, float, 4)
EMU_VECTOR(double, double, 8)
EMU_VECTOR(int, int, 4)
EMU_VECTOR(short, short, 2)
EMU_VECTOR(unsigned short, ushort, 2)
EMU_VECTOR(signed char, char, 1)
EMU_VECTOR(unsigned char, uchar, 1)
#undef EMU_VECTOR
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
