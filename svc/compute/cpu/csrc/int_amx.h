/* Many tokens on AMX: a tile of weights is an operand of the matrix unit as it stands, and so are 16 tokens of activations.
 *
 * The unit adds up whole columns in 32 bits and knows no scales. A block of 256 therefore goes through it with its scales multiplied
 * in, as 128 high + low with both factors in signed bytes; the integer that comes out is the one that all other builds add up. A
 * block of 32 ends in a float scale, and is a product of its own. */
#ifndef HEADRACE_INT_AMX_H
#define HEADRACE_INT_AMX_H

#include "int_unpack.h"

#ifdef __AMX_INT8__
#define LEAST_TILE_TOKENS 10 /* fewer are done sooner in vectors */
#define TILE_TOKENS 16

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

typedef struct {
    _Alignas(64) int8_t low[64][INT_ROWS][4], high[64][INT_ROWS][4];
} split_tile;

typedef int32_t tile_sums[TILE_TOKENS][INT_ROWS];

/* Tiles 0 .. 3: sums; 4 and 5: tokens, `columns` of them; 6 and 7: weights. */
static void begin_tiles(int columns) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = (uint16_t)(i < 4 || i > 5 ? 64 : columns);
        c.rows[i] = (uint8_t)(i > 5 ? columns / 4 : 16);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* some compilers think that only the first bytes are read */
    _tile_loadconfig(&c);
}

static void end_tiles(void) { _tile_release(); }

/* Bytes that are too large by `offset` (signed ones: with the sign turned round) -> signed bytes. */
ALWAYS_INLINE ints to_signed(int is_signed, int offset, ints w) {
    return is_signed ? i_xor(w, i_set1((int32_t)0x80808080)) : _mm512_sub_epi8(w, _mm512_set1_epi8((char)offset));
}

/* Multiplies the weights of a block of 256 by the scales of their groups. */
ALWAYS_INLINE void split_scaled(int groups, int is_signed, int offset, const tile *t, split_tile *out) {
    ints odd_bytes = _mm512_set1_epi16((short)0xff00), seven_bits = EACH_BYTE(0x7f);
    int steps = 64 / groups;
    for (int group = 0; group < groups; group++) {
        ints scale = in_halves(i_load(t->scale[group]), i_load(t->scale[group]));
        UNROLL
        for (int i = group * steps; i < (group + 1) * steps; i++) {
            ints w = i_load(t->w[i]), even = _mm512_and_si512(w, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(w, 8);
            if (offset) {
                w = to_signed(is_signed, offset, w);
                even = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), odd = _mm512_srai_epi16(w, 8);
            }
            even = _mm512_mullo_epi16(even, scale), odd = _mm512_mullo_epi16(odd, scale);
            /* 0xca: the second where the mask is set, else the third */
            ints low = _mm512_ternarylogic_epi32(odd_bytes, _mm512_slli_epi16(odd, 8), even, 0xca);
            i_store(out->low[i], i_and(low, seven_bits));
            i_store(out->high[i], _mm512_ternarylogic_epi32(odd_bytes, _mm512_slli_epi16(odd, 1), _mm512_srai_epi16(even, 7), 0xca));
        }
    }
}

/* Starts the sums of 16 tokens of a block of 256, `stride` bytes apart, low and high; odd groups of tokens use other tiles. They are
 * stored later: the unit works on while vectors join the sums of the group before. */
#define MULTIPLY_256(sums_low, sums_high, w, x, stride)                                                                              \
    do {                                                                                                                             \
        _tile_zero(sums_low);                                                                                                        \
        _tile_zero(sums_high);                                                                                                       \
        UNROLL                                                                                                                       \
        for (int step = 0; step < 4; step++) {                                                                                       \
            _tile_loadd(4, (x) + 64 * step, stride);                                                                                 \
            _tile_loadd(6, (w)->low[16 * step], 64);                                                                                 \
            _tile_dpbssd(sums_low, 4, 6);                                                                                            \
            _tile_loadd(7, (w)->high[16 * step], 64);                                                                                \
            _tile_dpbssd(sums_high, 4, 7);                                                                                           \
        }                                                                                                                            \
    } while (0)

ALWAYS_INLINE void multiply_256(int odd, const split_tile *w, const int8_t *x, size_t stride) {
    if (odd) {
        MULTIPLY_256(2, 3, w, x, stride);
    } else {
        MULTIPLY_256(0, 1, w, x, stride);
    }
}

ALWAYS_INLINE void store_256(int odd, tile_sums *low, tile_sums *high) {
    if (odd) {
        _tile_stored(2, low, 64);
        _tile_stored(3, high, 64);
    } else {
        _tile_stored(0, low, 64);
        _tile_stored(1, high, 64);
    }
}

#define MULTIPLY_32(i, a, b, w, x, stride)                                                                                           \
    do {                                                                                                                             \
        _tile_zero(i);                                                                                                               \
        _tile_loadd(a, (x) + 32 * (i), stride);                                                                                      \
        _tile_loadd(b, (w)[8 * (i)], 64);                                                                                            \
        _tile_dpbssd(i, a, b);                                                                                                       \
    } while (0)

/* The same for four blocks of 32. */
ALWAYS_INLINE void multiply_4_of_32(const uint8_t (*w)[INT_ROWS][4], const int8_t *x, size_t stride) {
    MULTIPLY_32(0, 4, 6, w, x, stride);
    MULTIPLY_32(1, 5, 7, w, x, stride);
    MULTIPLY_32(2, 4, 6, w, x, stride);
    MULTIPLY_32(3, 5, 7, w, x, stride);
}

ALWAYS_INLINE void store_4_of_32(tile_sums *out) {
    _tile_stored(0, out[0], 64);
    _tile_stored(1, out[1], 64);
    _tile_stored(2, out[2], 64);
    _tile_stored(3, out[3], 64);
}
#endif

#endif
