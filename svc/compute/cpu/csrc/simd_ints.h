/* Integer lanes of the int8 products: INT_LANES rows of weights at a time, each 32-bit lane with four consecutive columns of its row.
 *
 * All of it is exact, so builds may differ in width and instructions and still give the same bits. DIRECT_DOT: four products of an
 * unsigned by a signed byte (NEON: signed by signed) are added into a 32-bit lane in one step (VNNI, NEON, plain C); otherwise pairs
 * of products are added in 16 bits first, and int_tile.h keeps those sums in range. */
#ifndef HEADRACE_SIMD_INTS_H
#define HEADRACE_SIMD_INTS_H

#include "simd.h"

#define UNROLL _Pragma("GCC unroll 16")

#if SIMD_NEON
#include "simd_ints_neon.h"
#elif SIMD_AVX512
#define INT_LANES 16
typedef __m512i ints;
typedef __m512 floats;
#define OP(name) _mm512_##name
ALWAYS_INLINE ints i_load(const void *p) { return _mm512_loadu_si512(p); }
ALWAYS_INLINE void i_store(void *p, ints a) { _mm512_storeu_si512(p, a); }
ALWAYS_INLINE ints i_and(ints a, ints b) { return _mm512_and_si512(a, b); }
ALWAYS_INLINE ints i_or(ints a, ints b) { return _mm512_or_si512(a, b); }
ALWAYS_INLINE ints i_xor(ints a, ints b) { return _mm512_xor_si512(a, b); }
ALWAYS_INLINE ints i_lookup(const int8_t *table, ints index) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), index);
}
ALWAYS_INLINE floats i_as_floats(ints a) { return _mm512_castsi512_ps(a); }
/* Lanes hold halves in their low 16 bits. */
ALWAYS_INLINE floats i_halves(ints a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
/* 16 bytes of rows 0, 4, 8, 12 */
ALWAYS_INLINE ints quarter_rows(const uint8_t *row, size_t stride) {
#define PIECE_OF(r) _mm_loadu_si128((const __m128i *)(row + (r) * stride))
    __m512i a = _mm512_castsi128_si512(PIECE_OF(0));
    a = _mm512_inserti32x4(a, PIECE_OF(4), 1);
    a = _mm512_inserti32x4(a, PIECE_OF(8), 2);
    return _mm512_inserti32x4(a, PIECE_OF(12), 3);
}
/* The half at p, p + stride, ..., in the low bits of each lane; four bytes are read. */
ALWAYS_INLINE ints i_gather_halves(const uint8_t *p, size_t stride) {
    ints number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_epi32(_mm512_mullo_epi32(number, _mm512_set1_epi32((int)stride)), p, 1);
}
ALWAYS_INLINE ints i_repeat16(const int8_t *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)); }
/* x where w >= 0, -x elsewhere */
ALWAYS_INLINE ints i_sign(ints x, ints w) { return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x); }
#elif SIMD_AVX2
#define INT_LANES 8
typedef __m256i ints;
typedef __m256 floats;
#define OP(name) _mm256_##name
ALWAYS_INLINE ints i_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
ALWAYS_INLINE void i_store(void *p, ints a) { _mm256_storeu_si256((__m256i *)p, a); }
ALWAYS_INLINE ints i_and(ints a, ints b) { return _mm256_and_si256(a, b); }
ALWAYS_INLINE ints i_or(ints a, ints b) { return _mm256_or_si256(a, b); }
ALWAYS_INLINE ints i_xor(ints a, ints b) { return _mm256_xor_si256(a, b); }
ALWAYS_INLINE ints i_lookup(const int8_t *table, ints index) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), index);
}
ALWAYS_INLINE floats i_as_floats(ints a) { return _mm256_castsi256_ps(a); }
ALWAYS_INLINE floats i_halves(ints a) {
    a = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
/* 16 bytes of rows 0, 4 */
ALWAYS_INLINE ints quarter_rows(const uint8_t *row, size_t stride) {
#define PIECE_OF(r) _mm_loadu_si128((const __m128i *)(row + (r) * stride))
    return _mm256_inserti128_si256(_mm256_castsi128_si256(PIECE_OF(0)), PIECE_OF(4), 1);
}
ALWAYS_INLINE ints i_gather_halves(const uint8_t *p, size_t stride) {
    _Alignas(32) uint32_t halves[8];
    for (size_t r = 0; r < 8; r++) {
        halves[r] = (uint32_t)p[r * stride] | (uint32_t)p[r * stride + 1] << 8;
    }
    return _mm256_load_si256((const __m256i *)halves);
}
ALWAYS_INLINE ints i_repeat16(const int8_t *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p)); }
ALWAYS_INLINE ints i_sign(ints x, ints w) { return _mm256_sign_epi8(x, w); }
#endif

#if SIMD_AVX512 || SIMD_AVX2
ALWAYS_INLINE ints i_set1(int32_t x) { return OP(set1_epi32)(x); }
ALWAYS_INLINE ints i_add(ints a, ints b) { return OP(add_epi32)(a, b); }
ALWAYS_INLINE ints i_sub(ints a, ints b) { return OP(sub_epi32)(a, b); }
ALWAYS_INLINE ints i_mul(ints a, ints b) { return OP(mullo_epi32)(a, b); }
#define i_left(a, n) OP(slli_epi32)(a, n)
#define i_right(a, n) OP(srli_epi32)(a, n)
#define i_right_signed(a, n) OP(srai_epi32)(a, n)
ALWAYS_INLINE ints i_max(ints a, ints b) { return OP(max_epi32)(a, b); }
ALWAYS_INLINE floats i_floats(ints a) { return OP(cvtepi32_ps)(a); }
ALWAYS_INLINE floats f_load(const float *p) { return OP(loadu_ps)(p); }
ALWAYS_INLINE void f_store(float *p, floats a) { OP(storeu_ps)(p, a); }
ALWAYS_INLINE floats f_set1(float x) { return OP(set1_ps)(x); }
ALWAYS_INLINE floats f_mul(floats a, floats b) { return OP(mul_ps)(a, b); }
ALWAYS_INLINE floats f_madd(floats a, floats b, floats c) { return OP(fmadd_ps)(a, b, c); }
ALWAYS_INLINE floats f_minus_madd(floats a, floats b, floats c) { return OP(fnmadd_ps)(a, b, c); } /* c - a * b */

/* sum + the two products of signed 16-bit halves in each lane */
ALWAYS_INLINE ints i_pairs(ints sum, ints a, ints b) {
#if SIMD_AVX512 && defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#elif !SIMD_AVX512 && defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
    return i_add(sum, OP(madd_epi16)(a, b));
#endif
}
#if SIMD_AVX512 && defined(__AVX512VNNI__)
#define DIRECT_DOT 1
ALWAYS_INLINE ints i_dot(ints sum, ints w, ints x) { return _mm512_dpbusd_epi32(sum, w, x); }
#elif !SIMD_AVX512 && defined(__AVXVNNI__)
#define DIRECT_DOT 1
ALWAYS_INLINE ints i_dot(ints sum, ints w, ints x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
#else
#define DIRECT_DOT 0
#endif
ALWAYS_INLINE ints i_add16(ints a, ints b) { return OP(add_epi16)(a, b); }
/* 16-bit sums of two products each: unsigned by signed bytes, and signed by signed. */
ALWAYS_INLINE ints i_products(ints w, ints x) { return OP(maddubs_epi16)(w, x); }
ALWAYS_INLINE ints i_signed_products(ints w, ints x) { return OP(maddubs_epi16)(OP(abs_epi8)(w), i_sign(x, w)); }

/* Quarters: a vector of 16 bytes (or 4 lanes) of each of the rows e, e + 4, ..., for e = 0 .. 3. */
#define i_spread(a, e) OP(shuffle_epi32)(a, (e) * 0x55) /* lanes of all rows -> the lane of each row of quarter e, four times */
ALWAYS_INLINE ints i_sum_quarters(const ints q[4]) {    /* the four lanes of each row added up: back to lanes of all rows */
    ints ab = i_add(OP(unpacklo_epi32)(q[0], q[1]), OP(unpackhi_epi32)(q[0], q[1]));
    ints cd = i_add(OP(unpacklo_epi32)(q[2], q[3]), OP(unpackhi_epi32)(q[2], q[3]));
    return i_add(OP(unpacklo_epi64)(ab, cd), OP(unpackhi_epi64)(ab, cd));
}

/* 16 bytes of each of INT_LANES rows, `stride` apart -> lane r of out[j] = the j-th 32 bits of row r. */
ALWAYS_INLINE void transpose_piece(const uint8_t *rows, size_t stride, ints out[4]) {
    ints a = quarter_rows(rows, stride), b = quarter_rows(rows + stride, stride), c = quarter_rows(rows + 2 * stride, stride);
    ints d = quarter_rows(rows + 3 * stride, stride);
    ints ab = OP(unpacklo_epi32)(a, b), cd = OP(unpacklo_epi32)(c, d), ab_high = OP(unpackhi_epi32)(a, b), cd_high = OP(unpackhi_epi32)(c, d);
    out[0] = OP(unpacklo_epi64)(ab, cd);
    out[1] = OP(unpackhi_epi64)(ab, cd);
    out[2] = OP(unpacklo_epi64)(ab_high, cd_high);
    out[3] = OP(unpackhi_epi64)(ab_high, cd_high);
}
#elif !SIMD_NEON
#define INT_LANES 1
#define DIRECT_DOT 1
typedef int32_t ints;
typedef float floats;
ALWAYS_INLINE ints i_load(const void *p) {
    ints a;
    memcpy(&a, p, sizeof a);
    return a;
}
ALWAYS_INLINE void i_store(void *p, ints a) { memcpy(p, &a, sizeof a); }
ALWAYS_INLINE ints i_and(ints a, ints b) { return a & b; }
ALWAYS_INLINE ints i_or(ints a, ints b) { return a | b; }
ALWAYS_INLINE ints i_xor(ints a, ints b) { return a ^ b; }
ALWAYS_INLINE ints i_byte(ints a, int i) { return (ints)((uint32_t)a >> 8 * i & 255); }
ALWAYS_INLINE ints i_lookup(const int8_t *table, ints index) {
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (uint32_t)(uint8_t)table[i_byte(index, i)] << 8 * i;
    }
    return (ints)out;
}
ALWAYS_INLINE floats i_halves(ints a) { return half_to_float((uint16_t)a); }
ALWAYS_INLINE ints i_gather_halves(const uint8_t *p, size_t stride) {
    (void)stride; /* of one row */
    return p[0] | p[1] << 8;
}
ALWAYS_INLINE ints i_set1(int32_t x) { return x; }
ALWAYS_INLINE ints i_add(ints a, ints b) { return a + b; }
ALWAYS_INLINE ints i_sub(ints a, ints b) { return a - b; }
ALWAYS_INLINE ints i_mul(ints a, ints b) { return a * b; }
ALWAYS_INLINE ints i_left(ints a, int n) { return (ints)((uint32_t)a << n); }
ALWAYS_INLINE ints i_right(ints a, int n) { return (ints)((uint32_t)a >> n); }
ALWAYS_INLINE ints i_right_signed(ints a, int n) { return a >> n; }
ALWAYS_INLINE ints i_max(ints a, ints b) { return a > b ? a : b; }
ALWAYS_INLINE floats i_floats(ints a) { return (float)a; }
ALWAYS_INLINE floats i_as_floats(ints a) { return bits_to_float((uint32_t)a); }
ALWAYS_INLINE floats f_load(const float *p) { return *p; }
ALWAYS_INLINE void f_store(float *p, floats a) { *p = a; }
ALWAYS_INLINE floats f_set1(float x) { return x; }
ALWAYS_INLINE floats f_mul(floats a, floats b) { return a * b; }
ALWAYS_INLINE floats f_madd(floats a, floats b, floats c) { return fmaf(a, b, c); }
ALWAYS_INLINE floats f_minus_madd(floats a, floats b, floats c) { return fmaf(-a, b, c); }
ALWAYS_INLINE ints i_pairs(ints sum, ints a, ints b) { return sum + (int16_t)a * (int16_t)b + (a >> 16) * (b >> 16); }
ALWAYS_INLINE ints i_dot(ints sum, ints w, ints x) {
    for (int i = 0; i < 4; i++) {
        sum += i_byte(w, i) * (int8_t)i_byte(x, i);
    }
    return sum;
}
ALWAYS_INLINE void transpose_piece(const uint8_t *rows, size_t stride, ints out[4]) {
    (void)stride; /* of one row */
    for (int j = 0; j < 4; j++) {
        const uint8_t *p = rows + 4 * j;
        out[j] = (ints)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    }
}
#endif

/* Whether signed bytes are multiplied directly; otherwise one factor must be unsigned, and 128 times the sum is subtracted later. */
#ifndef SIGNED_WEIGHTS
#define SIGNED_WEIGHTS (!DIRECT_DOT)
#endif

#endif
