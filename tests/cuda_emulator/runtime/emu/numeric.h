// Memory, atomic, integer and float intrinsics. Fast-math ones are exact here: their rounding is a question for real hardware.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include "core.h"

// ---- loads and stores with a cache hint, atomics
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldca(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldlu(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }
template <class T> static inline void __stwb(T* p, T v) { *p = v; }

namespace emu {
template <class T, class F> static inline T atomic_update(T* p, F f) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (;;) {
    T fresh = f(old);
    if (__atomic_compare_exchange(p, &old, &fresh, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
  }
}
template <class D, class S> static inline D bits(S from) {
  static_assert(sizeof(D) == sizeof(S), "different sizes");
  D to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class F> static inline int each_byte(int a, int b, F f) {
  unsigned out = 0;
  for (int i = 0; i < 32; i += 8) out |= (unsigned)(f((int8_t)(a >> i), (int8_t)(b >> i)) & 255) << i;
  return (int)out;
}
}  // namespace emu

template <class T, class U> static inline T atomicAdd(T* p, U v) { return emu::atomic_update(p, [&](T o) { return T(o + T(v)); }); }
template <class T, class U> static inline T atomicSub(T* p, U v) { return emu::atomic_update(p, [&](T o) { return T(o - T(v)); }); }
template <class T, class U> static inline T atomicMax(T* p, U v) { return emu::atomic_update(p, [&](T o) { return o < T(v) ? T(v) : o; }); }
template <class T, class U> static inline T atomicMin(T* p, U v) { return emu::atomic_update(p, [&](T o) { return T(v) < o ? T(v) : o; }); }
template <class T, class U> static inline T atomicAnd(T* p, U v) { return emu::atomic_update(p, [&](T o) { return T(o & T(v)); }); }
template <class T, class U> static inline T atomicOr(T* p, U v) { return emu::atomic_update(p, [&](T o) { return T(o | T(v)); }); }
template <class T, class U> static inline T atomicExch(T* p, U v) { return emu::atomic_update(p, [&](T) { return T(v); }); }
template <class T, class U, class V> static inline T atomicCAS(T* p, U expected, V v) {
  return emu::atomic_update(p, [&](T o) { return o == T(expected) ? T(v) : o; });
}
static inline unsigned atomicInc(unsigned* p, unsigned last) { return emu::atomic_update(p, [&](unsigned o) { return o >= last ? 0u : o + 1; }); }

// ---- integers
static inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
  return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255u) * (b >> i & 255u);
  return c;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) {
    unsigned selector = selectors >> 4 * i & 15, byte = both >> 8 * (selector & 7) & 255;
    if (selector & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << 8 * i;
  }
  return out;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
  unsigned out = 0;
  for (int i = 0; i < 32; i++) out |= (v >> i & 1u) << (31 - i);
  return out;
}
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned s) { return (unsigned)(((uint64_t)high << 32 | low) << (s & 31) >> 32); }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned s) { return (unsigned)(((uint64_t)high << 32 | low) >> (s & 31)); }
static inline int __vadd4(int a, int b) { return emu::each_byte(a, b, [](int x, int y) { return x + y; }); }
static inline int __vsub4(int a, int b) { return emu::each_byte(a, b, [](int x, int y) { return x - y; }); }
static inline int __vsubss4(int a, int b) {
  return emu::each_byte(a, b, [](int x, int y) { int d = x - y; return d > 127 ? 127 : d < -128 ? -128 : d; });
}
static inline unsigned __vcmpeq4(unsigned a, unsigned b) { return (unsigned)emu::each_byte((int)a, (int)b, [](int x, int y) { return x == y ? 255 : 0; }); }
static inline unsigned __vcmpne4(unsigned a, unsigned b) { return ~__vcmpeq4(a, b); }
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> T;
  return T(a) < T(b) ? T(b) : T(a);
}
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

// ---- floats. glibc declares __expf, __logf, __powf and others itself: they must be macros here.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
static inline float __int_as_float(int v) { return emu::bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return emu::bits<float>(v); }
static inline int __float_as_int(float v) { return emu::bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return emu::bits<unsigned>(v); }
static inline float rsqrtf(float a) { return 1.f / sqrtf(a); }
static inline float __frsqrt_rn(float a) { return 1.f / sqrtf(a); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.f / a; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __saturatef(float a) { return a > 0.f ? (a < 1.f ? a : 1.f) : 0.f; }
// The _rn forms are never contracted into a multiply-add: the empty statement hides where the value comes from.
#if defined(__aarch64__)
#define EMU_OPAQUE(v) __asm__("" : "+w"(v))
#else
#define EMU_OPAQUE(v) __asm__("" : "+x"(v))
#endif
static inline float __fmul_rn(float a, float b) { float r = a * b; EMU_OPAQUE(r); return r; }
static inline float __fadd_rn(float a, float b) { EMU_OPAQUE(a); EMU_OPAQUE(b); return a + b; }
static inline float __fsub_rn(float a, float b) { EMU_OPAQUE(a); EMU_OPAQUE(b); return a - b; }
static inline int __float2int_rn(float a) { return (int)nearbyintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }
static inline int __float2int_rd(float a) { return (int)floorf(a); }
static inline unsigned __float2uint_rn(float a) { return (unsigned)nearbyintf(a); }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }
