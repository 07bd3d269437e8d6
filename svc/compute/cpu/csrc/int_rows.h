/* Products of few tokens where vectors have 256 bits: each row is read from its beginning to its end, as memory and its prefetcher like
 * it, and leaves the integer sums of its blocks in scratch; eight rows are then joined together, with rows in lanes. A tile (int_tile.h)
 * reads sixteen rows at once and must transpose them, which pays only for many tokens. The integers are those of int_tile.h. */
#ifndef HEADRACE_INT_ROWS_H
#define HEADRACE_INT_ROWS_H

#include "int_tile.h"

#if INT_LANES == 8
#define FEW_TOKENS 6      /* so many pay; a tile has less to do per token */
#define MOST_ROW_TOKENS 4 /* at once */
#define ROW_SUMS 64       /* units times tokens of a pass */
#define FETCH_AHEAD 2048  /* bytes; far enough for memory, near enough to stay in the nearest cache */

/* Sums of eight rows. Four lanes of row r are at [r % 4 * 2 + r / 4]: one vector has those of rows e and e + 4, as i_sum_quarters wants. */
typedef struct {
    _Alignas(64) int32_t isum[ROW_SUMS][8][4];
    int32_t msum[ROW_SUMS][8][4]; /* blocks with minimums only */
    uint32_t head[ROW_SUMS][8];   /* halves d and dmin of a block of each row */
    float values[ROW_SUMS][8][8]; /* blocks of 32: d * isum of the eight blocks of a unit, of each row */
} row_sums;

#define MOST_COPIED (96 << 10) /* bytes of a tile's rows; with the unpacked tile and activations they stay in the second cache */

/* Rows from memory, in order, to where a tile may read them in columns of blocks. */
ALWAYS_INLINE const uint8_t *copy_rows(uint8_t *copy, const uint8_t *rows, size_t bytes) {
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        __builtin_prefetch(rows + at + FETCH_AHEAD, 0, 3);
        i_store(copy + at, i_load(rows + at));
        i_store(copy + at + 32, i_load(rows + at + 32));
    }
    memcpy(copy + at, rows + at, bytes - at);
    return copy;
}

ALWAYS_INLINE int row_place(int row) { return row % 4 * 2 + row / 4; }

ALWAYS_INLINE __m128i fold(ints a) { return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)); }

ALWAYS_INLINE ints load_quarters(const int32_t (*sums)[4]) {
    ints q[4];
    UNROLL
    for (int e = 0; e < 4; e++) {
        q[e] = i_load(sums[2 * e]);
    }
    return i_sum_quarters(q);
}

ALWAYS_INLINE uint32_t bits32(const uint8_t *p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

ALWAYS_INLINE __m128i bytes8(uint32_t low, uint32_t high) { return _mm_cvtsi64_si128((int64_t)((uint64_t)high << 32 | low)); }

/* -- blocks of 256 ------------------------------------------------------------------------------------------------------------------------- */

/* Sixteen-bit factors of columns 32 i .. 32 i + 31, from the scales of a block: each lane of 128 bits has eight of them, and takes number i. */
ALWAYS_INLINE ints factor_of(ints scales, const int i) { return _mm256_shuffle_epi8(scales, _mm256_set1_epi16((int16_t)(0x0100 + 0x0202 * i))); }

/* The scales or minimums of Q4_K and Q5_K as eight bytes. */
ALWAYS_INLINE __m128i scales_4_5(const uint8_t *b) {
    uint32_t first = bits32(b + 4), last = bits32(b + 12);
    return bytes8(first & 0x3f3f3f3f, (last & 0x0f0f0f0f) | (first >> 2 & 0x30303030));
}
ALWAYS_INLINE __m128i minimums_4_5(const uint8_t *b) {
    uint32_t middle = bits32(b + 8), last = bits32(b + 12);
    return bytes8(middle & 0x3f3f3f3f, (last >> 4 & 0x0f0f0f0f) | (middle >> 2 & 0x30303030));
}
ALWAYS_INLINE ints factors_4_5(const uint8_t *b) { return _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(scales_4_5(b))); }
/* Even groups of 16 in the low half, odd ones in the high half, as columns are. */
ALWAYS_INLINE ints factors_6(const uint8_t *b) {
    __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(b + 192)), apart));
}
ALWAYS_INLINE ints factors_iq4_xs(const uint8_t *b) {
    ints low = _mm256_srlv_epi32(i_set1((int32_t)bits32(b + 4)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    ints high = _mm256_srlv_epi32(i_set1((int32_t)(bits32(b) >> 16)), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    ints scales = i_sub(i_or(i_and(low, i_set1(15)), i_left(i_and(high, i_set1(3)), 4)), i_set1(32));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(scales, scales), 0x88);
}

/* Columns 32 i .. 32 i + 31 of a block as bytes. */
ALWAYS_INLINE ints columns_4(const uint8_t *b, const int i) {
    ints w = i_load(b + 16 + 32 * (i / 2));
    return i_and(i % 2 ? i_right(w, 4) : w, EACH_BYTE(0x0f));
}
ALWAYS_INLINE ints columns_5(const uint8_t *b, const int i) {
    ints w = i_load(b + 48 + 32 * (i / 2)), high = i_load(b + 16);
    high = i_and(i < 4 ? i_left(high, 4 - i) : i_right(high, i - 4), EACH_BYTE(0x10));
    return i_or(i_and(i % 2 ? i_right(w, 4) : w, EACH_BYTE(0x0f)), high);
}
ALWAYS_INLINE ints columns_6(const uint8_t *b, const int i) {
    ints w = i_load(b + 64 * (i / 4) + 32 * (i % 2)), high = i_load(b + 128 + 32 * (i / 4));
    high = i % 4 == 0 ? i_left(high, 4) : i % 4 == 1 ? i_left(high, 2) : i % 4 == 2 ? high : i_right(high, 2);
    return i_or(i_and(i % 4 < 2 ? w : i_right(w, 4), EACH_BYTE(0x0f)), i_and(high, EACH_BYTE(0x30)));
}
/* Sixteen bytes of nibbles: the low ones are the first 16 columns. */
ALWAYS_INLINE ints nibbles_of(const uint8_t *p) {
    __m128i w = _mm_loadu_si128((const __m128i *)p);
    return i_and(_mm256_inserti128_si256(_mm256_castsi128_si256(w), _mm_srli_epi16(w, 4), 1), EACH_BYTE(0x0f));
}
ALWAYS_INLINE ints columns_iq4_xs(const uint8_t *b, const int i) { return i_lookup(iq4_values, nibbles_of(b + 8 + 16 * i)); }

/* One block of one row with n tokens. */
ALWAYS_INLINE void row_block(kind k, const int n, const int type, const uint8_t *b, const void *const *units, row_sums *s, int sum, int row) {
    const block256 *const *x = (const block256 *const *)units;
    ints sums[MOST_ROW_TOKENS];
    ints factors = type == Q6_K ? factors_6(b) : type == IQ4_XS ? factors_iq4_xs(b) : factors_4_5(b);
    UNROLL
    for (int t = 0; t < n; t++) {
        sums[t] = i_set1(0);
        if (k.offset && !k.is_signed) { /* the offset times the scales times the sums of activations */
            ints scales = type == Q6_K ? _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 192))) : _mm256_castsi128_si256(_mm256_castsi256_si128(factors));
            ints x_sums = type == Q6_K ? i_load(x[t]->sums16) : _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)x[t]->sums32));
            sums[t] = i_mul(OP(madd_epi16)(scales, x_sums), i_set1(-k.offset));
        }
    }
    UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 2 == 0) {
            __builtin_prefetch(b + FETCH_AHEAD + 32 * i, 0, 3);
        }
        ints w = type == Q4_K ? columns_4(b, i) : type == Q5_K ? columns_5(b, i) : type == Q6_K ? columns_6(b, i) : columns_iq4_xs(b, i);
        ints factor = factor_of(factors, i);
        UNROLL
        for (int t = 0; t < n; t++) {
            ints columns = i_load(x[t]->q + 32 * i);
            ints products = k.is_signed ? i_signed_products(w, columns) : i_products(w, columns);
            sums[t] = i_pairs(sums[t], products, factor);
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        _mm_store_si128((__m128i *)s->isum[sum + t][row_place(row)], fold(sums[t]));
        if (k.minimums) {
            __m128i minimums = _mm_madd_epi16(_mm_cvtepu8_epi16(minimums_4_5(b)), _mm_loadu_si128((const __m128i *)x[t]->sums32));
            _mm_store_si128((__m128i *)s->msum[sum + t][row_place(row)], minimums);
        }
    }
    s->head[sum][row] = type == Q6_K ? (uint32_t)b[208] | (uint32_t)b[209] << 8 : bits32(b);
}

ALWAYS_INLINE floats join_rows(kind k, const row_sums *s, int unit_sum, int sum, float dx, floats before) {
    ints head = i_load(s->head[unit_sum]);
    floats value = f_mul(i_halves(head), i_floats(load_quarters(s->isum[sum])));
    if (k.minimums) {
        value = f_minus_madd(i_halves(i_right(head, 16)), i_floats(load_quarters(s->msum[sum])), value);
    }
    return f_madd(f_set1(dx), value, before);
}

/* -- blocks of 32 -------------------------------------------------------------------------------------------------------------------------- */

/* Sixteen in each byte whose bit is set. */
ALWAYS_INLINE ints fifth_bits(uint32_t bits) {
    ints repeated = _mm256_shuffle_epi8(i_set1((int32_t)bits), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    ints each = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    return i_and(_mm256_cmpeq_epi8(i_and(repeated, each), each), EACH_BYTE(0x10));
}

/* The 32 columns of a block. */
ALWAYS_INLINE ints columns_32(kind k, const int type, const uint8_t *columns, const int8_t *table) {
    ints w = k.nibbles ? nibbles_of(columns) : i_load(columns);
    w = type == Q5_0 ? i_or(w, fifth_bits(bits32(columns - 4))) : w;
    w = table ? i_lookup(table, w) : w;
    return k.is_signed ? SIGNED_BYTES(w) : w;
}

/* Eight lanes of each of eight vectors added up. */
ALWAYS_INLINE ints i_sum_eights(const ints v[8]) {
    ints q[4];
    UNROLL
    for (int e = 0; e < 4; e++) {
        q[e] = i_add(_mm256_permute2x128_si256(v[e], v[e + 4], 0x20), _mm256_permute2x128_si256(v[e], v[e + 4], 0x31));
    }
    return i_sum_quarters(q);
}

/* The scales of the eight blocks of a unit in its lanes. */
ALWAYS_INLINE floats scales_32(const int type, const uint8_t *b, size_t block_bytes) {
    _Alignas(16) uint16_t halves[8];
    UNROLL
    for (int i = 0; i < 8; i++) {
        halves[i] = type == MXFP4 ? b[(size_t)i * block_bytes] : (uint16_t)(b[(size_t)i * block_bytes] | b[(size_t)i * block_bytes + 1] << 8);
    }
    __m128i d = _mm_load_si128((const __m128i *)halves);
    return type == MXFP4 ? e8m0_halved(_mm256_cvtepu16_epi32(d)) : _mm256_cvtph_ps(d);
}

/* A unit of one row with n tokens. */
ALWAYS_INLINE void row_unit(kind k, const int n, const int type, size_t block_bytes, const int8_t *table, const uint8_t *b,
                            const void *const *units, row_sums *s, int sum, int row) {
    const blocks32 *const *x = (const blocks32 *const *)units;
    size_t head_bytes = block_bytes - (k.nibbles ? 16 : 32);
    floats d = scales_32(type, b, block_bytes);
    ints w[8];
    UNROLL
    for (int i = 0; i < 8; i++) {
        if (i == 0 || (size_t)i * block_bytes / 64 != (size_t)(i - 1) * block_bytes / 64) {
            __builtin_prefetch(b + FETCH_AHEAD + (size_t)i * block_bytes, 0, 3);
        }
        w[i] = columns_32(k, type, b + (size_t)i * block_bytes + head_bytes, table);
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        ints dots[8];
        UNROLL
        for (int i = 0; i < 8; i++) {
            ints columns = i_load(x[t]->q + 32 * i);
#if DIRECT_DOT
            dots[i] = i_dot(i_set1(0), w[i], columns);
#else
            dots[i] = i_pairs(i_set1(0), k.is_signed ? i_signed_products(w[i], columns) : i_products(w[i], columns), i_set1(0x00010001));
#endif
        }
        ints isum = i_sum_eights(dots);
        if (OFFSET(k)) {
            isum = i_sub(isum, i_mul(i_load(x[t]->sums), i_set1(OFFSET(k))));
        }
        f_store(s->values[sum + t][row], f_mul(d, i_floats(isum)));
    }
}

/* Lane r of out[i] = lane i of row r. */
ALWAYS_INLINE void transpose_floats(const float (*rows)[8], floats out[8]) {
    floats pairs[8], fours[8];
    UNROLL
    for (int i = 0; i < 4; i++) {
        floats a = f_load(rows[2 * i]), b = f_load(rows[2 * i + 1]);
        pairs[2 * i] = _mm256_unpacklo_ps(a, b), pairs[2 * i + 1] = _mm256_unpackhi_ps(a, b);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            floats a = pairs[4 * i + half], b = pairs[4 * i + 2 + half];
            fours[4 * i + 2 * half] = _mm256_shuffle_ps(a, b, 0x44), fours[4 * i + 2 * half + 1] = _mm256_shuffle_ps(a, b, 0xee);
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x20), out[4 + i] = _mm256_permute2f128_ps(fours[i], fours[4 + i], 0x31);
    }
}

/* The same blocks of eight rows, in the order of the chain. */
ALWAYS_INLINE floats join_row_units(const row_sums *s, int sum, const blocks32 *x, int num_blocks, floats before) {
    floats values[8];
    transpose_floats(s->values[sum], values);
    for (int i = 0; i < num_blocks; i++) {
        before = f_madd(f_set1(x->d[i]), values[i], before);
    }
    return before;
}

/* -- all rows of a tile --------------------------------------------------------------------------------------------------------------------- */

/* The sums of `count` units of eight rows with a token, added to `sum`. */
ALWAYS_INLINE floats join_units(kind k, const int n, const tile_job *j, const row_sums *s, size_t first, size_t count, int token, int t, floats sum) {
    for (size_t u = 0; u < count; u++) {
        const void *x = unit_of(k, j, first + u, token + t);
        int unit_sum = (int)u * n;
        sum = k.block == 256 ? join_rows(k, s, unit_sum, unit_sum + t, ((const block256 *)x)->d, sum)
                             : join_row_units(s, unit_sum + t, x, min_int(256, j->cols - (int)(first + u) * 256) / 32, sum);
    }
    return sum;
}

/* A tile's rows with n tokens, eight rows after the other eight, and of long rows a part after the other. */
ALWAYS_INLINE void rows_with(kind k, const int n, const int type, size_t block_bytes, const int8_t *table, const tile_job *j, int token, row_sums *s) {
    size_t units = ((size_t)j->cols + 255) / 256, most = ROW_SUMS / n, unit_bytes = 256 / (size_t)k.block * block_bytes;
    for (int lane = 0; lane < INT_ROWS; lane += 8) {
        for (size_t first = 0; first < units; first += most) {
            size_t count = units - first < most ? units - first : most;
            for (int row = 0; row < 8; row++) {
                const uint8_t *b = j->rows + (size_t)(lane + row) * j->stride + first * unit_bytes;
                for (size_t u = 0; u < count; u++, b += unit_bytes) {
                    const void *x[MOST_ROW_TOKENS];
                    UNROLL
                    for (int t = 0; t < n; t++) {
                        x[t] = unit_of(k, j, first + u, token + t);
                    }
                    if (k.block == 256) {
                        row_block(k, n, type, b, x, s, (int)u * n, row);
                        continue;
                    }
                    size_t bytes = (size_t)(j->cols - (int)(first + u) * 256) / 32 * block_bytes;
                    const uint8_t *unit = b;
                    uint8_t padded[8 * 34];
                    if (bytes < unit_bytes) { /* a short last unit: nothing after it may be read */
                        memset(padded, 0, sizeof padded);
                        unit = memcpy(padded, b, bytes);
                    }
                    row_unit(k, n, type, block_bytes, table, unit, x, s, (int)u * n, row);
                }
            }
            UNROLL
            for (int t = 0; t < n; t++) {
                float *sums = j->sums + (size_t)(token + t) * INT_ROWS + lane;
                f_store(sums, join_units(k, n, j, s, first, count, token, t, first == 0 ? f_set1(0.0f) : f_load(sums)));
            }
        }
    }
}

/* All tokens of a job, up to four at a time: more need more registers than there are. */
ALWAYS_INLINE void run_rows(kind k, const int type, size_t block_bytes, const int8_t *table, const tile_job *j) {
    row_sums s;
    int token = 0;
    for (; token + 4 <= j->num_tokens; token += 4) {
        rows_with(k, 4, type, block_bytes, table, j, token, &s);
    }
    if (token + 2 <= j->num_tokens) {
        rows_with(k, 2, type, block_bytes, table, j, token, &s);
        token += 2;
    }
    if (token < j->num_tokens) {
        rows_with(k, 1, type, block_bytes, table, j, token, &s);
    }
}
#endif

#endif
