/* The two instructions of AVX-VNNI that the kernels use, in AVX2: what they compute, by Intel's description. */
#define _GNU_SOURCE /* as the sources themselves do, before the first header */
#include <immintrin.h>

/* sum + four products of unsigned bytes of w by signed bytes of x, in each 32-bit lane, without saturation */
static inline __m256i emulated_dpbusd(__m256i sum, __m256i w, __m256i x) {
    __m256i low = _mm256_set1_epi16(255);
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, low), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

#define _mm256_dpbusd_avx_epi32(sum, w, x) emulated_dpbusd(sum, w, x)
#define _mm256_dpwssd_avx_epi32(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
