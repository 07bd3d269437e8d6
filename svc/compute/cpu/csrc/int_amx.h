/* Many tokens on AMX: a tile of weights is an operand of the matrix unit without change, and so are 16 tokens of activations.
 *
 * The unit sums whole columns in 32 bits and has no scales. A block of 256 is therefore multiplied by its scales first, as
 * 128 high + low with both parts in signed bytes; the resulting integer is the same as in all other builds. A block of 32 has a float
 * scale and is a product of its own. */
#ifndef HEADRACE_INT_AMX_H
#define HEADRACE_INT_AMX_H

#include "int_tile.h"

#ifdef __AMX_INT8__
#define LEAST_TILE_TOKENS 10 /* fewer are faster in vectors */
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
    __asm__ volatile("" : : "r"(&c) : "memory"); /* some compilers assume that only the first bytes are read */
    _tile_loadconfig(&c);
}

static void end_tiles(void) { _tile_release(); }

/* Bytes that are too large by `offset` (or signed ones with the sign bit flipped) -> signed bytes. */
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
            /* 0xca: the mask selects the second, else the third */
            ints low = _mm512_ternarylogic_epi32(odd_bytes, _mm512_slli_epi16(odd, 8), even, 0xca);
            i_store(out->low[i], i_and(low, seven_bits));
            i_store(out->high[i], _mm512_ternarylogic_epi32(odd_bytes, _mm512_slli_epi16(odd, 1), _mm512_srai_epi16(even, 7), 0xca));
        }
    }
}

/* Starts the sums of 16 tokens of a block of 256, `stride` bytes apart, low and high; odd groups of tokens use other tiles. The
 * sums are stored later, so that the unit works while vectors join the sums of the previous group. */
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
ALWAYS_INLINE void join_group_256(kind k, const tile_job *j, const tile *t, size_t unit, int token, const tile_sums *low, const tile_sums *high) {
    const block256 *b = unit_of(k, j, unit, token);
    float *sums = j->sums + (size_t)token * INT_ROWS;
    int count = min_int(TILE_TOKENS, j->num_tokens - token);
    for (int i = 0; i < count; i++, sums += INT_ROWS) {
        ints isum = i_add(i_load((*low)[i]), i_left(i_load((*high)[i]), 7));
        f_store(sums, join_256(k, t, 0, b + i, 0, isum, unit ? f_load(sums) : f_set1(0.0f)));
    }
}

/* Multiplies an unpacked unit with all tokens, sixteen at a time; the last group may read other tokens or padding. */
ALWAYS_INLINE void apply_tiles_256(kind k, const tile_job *j, const tile *t, size_t unit) {
    kind signed_kind = {.block = 256, .groups = k.groups, .minimums = k.minimums};
    split_tile split;
    _Alignas(64) tile_sums low[2], high[2];
    split_scaled(k.groups, k.is_signed, k.offset, t, &split);
    int groups = div_up(j->num_tokens, TILE_TOKENS);
    for (int group = 0; group < groups; group++) {
        const block256 *b = unit_of(k, j, unit, group * TILE_TOKENS);
        multiply_256(group & 1, &split, b->q, sizeof *b);
        if (group) {
            join_group_256(signed_kind, j, t, unit, (group - 1) * TILE_TOKENS, low + (~group & 1), high + (~group & 1));
        }
        store_256(group & 1, low + (group & 1), high + (group & 1));
    }
    join_group_256(signed_kind, j, t, unit, (groups - 1) * TILE_TOKENS, low + (~groups & 1), high + (~groups & 1));
}

ALWAYS_INLINE void apply_tiles_32(kind k, const tile_job *j, tile *t, int num_blocks, size_t unit) {
    for (int i = 0; i < 8 * num_blocks; i++) {
        i_store(t->w[i], to_signed(k.is_signed, k.offset, i_load(t->w[i])));
    }
    for (int token = 0; token < j->num_tokens; token += TILE_TOKENS) {
        int count = min_int(TILE_TOKENS, j->num_tokens - token);
        const blocks32 *b = unit_of(k, j, unit, token);
        float *sums = j->sums + (size_t)token * INT_ROWS;
        floats sum[TILE_TOKENS];
        UNROLL
        for (int i = 0; i < TILE_TOKENS; i++) {
            sum[i] = unit && i < count ? f_load(sums + i * INT_ROWS) : f_set1(0.0f);
        }
        _Alignas(64) tile_sums dots[8];
        multiply_4_of_32((const uint8_t(*)[INT_ROWS][4])t->w, b->q, sizeof *b);
        store_4_of_32(dots);
        if (num_blocks > 4) {
            multiply_4_of_32((const uint8_t(*)[INT_ROWS][4])t->w[32], b->q + 128, sizeof *b);
        }
        for (int block = 0; block < num_blocks; block++) {
            if (block == 4) {
                store_4_of_32(dots + 4);
            }
            UNROLL
            for (int i = 0; i < TILE_TOKENS; i++) {
                sum[i] = join_32(t, 0, b + i, block, i_load(dots[block][i]), sum[i]);
            }
        }
        UNROLL
        for (int i = 0; i < TILE_TOKENS; i++) {
            if (i < count) {
                f_store(sums + i * INT_ROWS, sum[i]);
            }
        }
    }
}

ALWAYS_INLINE void apply_tiles(kind k, const tile_job *j, tile *t, int num_blocks, size_t unit) {
    if (k.block == 256) {
        apply_tiles_256(k, j, t, unit);
    } else {
        apply_tiles_32(k, j, t, num_blocks, unit);
    }
}
#endif

#endif
