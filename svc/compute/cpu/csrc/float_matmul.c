/* Products with activations in floats: v_dot of simd.h for every row and token, with any type, blocks and tiles.
 *
 * Lane sums of a tile (FLOAT_ROWS rows x some tokens x 16 lanes) stay in memory while a piece of the columns is applied to all tokens,
 * so that weights are dequantized once and the piece stays in the nearest cache. For few tokens F32, F16 and BF16 are
 * multiplied in place in the mapped file and converted in registers. Within a piece a block of rows x tokens is in registers. */
#include "float_matmul.h"

#include "simd_floats.h"
#include "simd_math.h"

#define PIECE 256       /* columns dequantized at a time: 16 KiB of floats, a multiple of every type's block */
#define MOST_TOKENS 128 /* in a group. Lane sums of a token take 1 KiB; each group dequantizes the weights again */
#define LEAST_TOKENS 24 /* in a group, if there are more tokens */
#define GROUP_FLOATS (3 << 16) /* of activations, 768 KiB, that stay in a near cache for all tiles */
#define DIRECT_TOKENS (2 * MANY_TOKENS) /* most tokens for which conversion in registers, once per block of tokens, is faster */
#ifndef DIRECT_PIECE
#define DIRECT_PIECE (PART == LANES ? (size_t)-1 : 2 * PIECE) /* columns, before the next part of the lanes reads the same weights */
#endif
#define SUMS_OF_TOKEN (FLOAT_ROWS * LANES)

/* Rows of one matrix as the inner loops read them. */
typedef struct {
    const uint8_t *data;
    size_t stride;        /* bytes from row to row */
    size_t columns;       /* a multiple of LANES */
    int rows;             /* at most FLOAT_ROWS */
    int first, last;      /* sums begin, end with these columns */
    const float *const *x; /* [num_tokens], at the first of the columns */
    int num_tokens;
    float *sums;   /* [num_tokens][FLOAT_ROWS][LANES], between pieces */
    float *totals; /* [num_tokens][FLOAT_ROWS], after the last */
} piece;

/* totals [..][FLOAT_ROWS] of a block of lane sums [num_tokens][num_rows]. */
ALWAYS_INLINE void add_lanes(int num_rows, int num_tokens, f32x16 lanes[LANES], float *totals) {
    float out[LANES];
    UNROLL
    for (int i = num_rows * num_tokens; i < LANES; i++) {
        lanes[i] = v_zero();
    }
    v_store(out, v_sum16(lanes));
    UNROLL
    for (int t = 0; t < num_tokens; t++) {
        memcpy(totals + t * FLOAT_ROWS, out + t * num_rows, (size_t)num_rows * sizeof *out);
    }
}

/* Loads one part of a block's lane sums, SUMS_OF_TOKEN apart per token and LANES per row; zero for the first columns. */
ALWAYS_INLINE void begin_sums(int num_rows, int num_tokens, int is_first, const float *sums, part *acc) {
    UNROLL
    for (int t = 0; t < num_tokens; t++) {
        UNROLL
        for (int r = 0; r < num_rows; r++) {
            acc[t * num_rows + r] = is_first ? p_zero() : p_load(sums + t * SUMS_OF_TOKEN + r * LANES);
        }
    }
}

ALWAYS_INLINE void keep_sums(int num_rows, int num_tokens, float *sums, const part *acc) {
    UNROLL
    for (int t = 0; t < num_tokens; t++) {
        UNROLL
        for (int r = 0; r < num_rows; r++) {
            p_store(sums + t * SUMS_OF_TOKEN + r * LANES, acc[t * num_rows + r]);
        }
    }
}

/* A block of rows x tokens, all constants after inlining; lanes do not mix, so a part of them goes through all columns first. */
ALWAYS_INLINE void multiply_block(int type, int num_rows, int num_tokens, const piece *p, int row, int token) {
    const uint8_t *rows = p->data + (size_t)row * p->stride;
    float *sums = p->sums + (size_t)token * SUMS_OF_TOKEN + (size_t)row * LANES;
    f32x16 lanes[LANES];
    size_t stride = p->stride;
    const float *x[MANY_TOKENS];
    UNROLL
    for (int t = 0; t < num_tokens; t++) {
        x[t] = p->x[token + t];
    }
    for (int lane = 0; lane < LANES; lane += PART) {
        part acc[LANES];
        begin_sums(num_rows, num_tokens, p->first, sums + lane, acc);
        for (size_t k = (size_t)lane; k < p->columns; k += LANES) {
            part v[MANY_TOKENS];
            UNROLL
            for (int t = 0; t < num_tokens; t++) {
                v[t] = p_load(x[t] + k);
            }
            UNROLL
            for (int r = 0; r < num_rows; r++) {
                part w = p_weights(type, rows + (size_t)r * stride, k);
                UNROLL
                for (int t = 0; t < num_tokens; t++) {
                    acc[t * num_rows + r] = p_madd(w, v[t], acc[t * num_rows + r]);
                }
            }
        }
        if (p->last) {
            UNROLL
            for (int i = 0; i < num_rows * num_tokens; i++) {
                p_put(lanes + i, lane, acc[i]);
            }
        } else {
            keep_sums(num_rows, num_tokens, sums + lane, acc);
        }
    }
    if (p->last) {
        add_lanes(num_rows, num_tokens, lanes, p->totals + (size_t)token * FLOAT_ROWS + row);
    }
}

/* Some tokens with all rows of a piece. */
#define COVER_ROWS(name, block_rows, block_tokens)                        \
    ALWAYS_INLINE void name(int type, const piece *p, int token) {        \
        int row = 0;                                                      \
        for (; row + (block_rows) <= p->rows; row += (block_rows)) {      \
            multiply_block(type, block_rows, block_tokens, p, row, token); \
        }                                                                 \
        for (; row < p->rows; row++) {                                    \
            multiply_block(type, 1, block_tokens, p, row, token);         \
        }                                                                 \
    }
COVER_ROWS(many_tokens, MANY_ROWS, MANY_TOKENS)
COVER_ROWS(three_tokens, THREE_ROWS, 3)
COVER_ROWS(two_tokens, TWO_ROWS, 2)
COVER_ROWS(one_token, ONE_ROWS, 1)

ALWAYS_INLINE void multiply_type(int type, const piece *p) {
    int token = 0, rest;
    for (; (rest = p->num_tokens - token) >= MANY_TOKENS; token += MANY_TOKENS) {
        many_tokens(type, p, token);
    }
    if (MANY_TOKENS > 3 && rest == 3) {
        three_tokens(type, p, token);
    } else if (MANY_TOKENS > 2 && rest == 2) {
        two_tokens(type, p, token);
    } else if (rest) {
        one_token(type, p, token);
    }
}

typedef void (*multiply_fn)(const piece *p);

static void multiply_f32(const piece *p) { multiply_type(F32, p); }
static void multiply_f16(const piece *p) { multiply_type(F16, p); }
static void multiply_bf16(const piece *p) { multiply_type(BF16, p); }

/* A group of tokens and a tile of rows. */
typedef struct {
    const runtime *rt;
    const float *const *x; /* [num_tokens] */
    int num_tokens, rows;
    float *weights; /* [FLOAT_ROWS][PIECE], dequantized */
    float *sums;    /* [num_tokens][FLOAT_ROWS][LANES] */
} group;

/* Multiplies columns first .. first + count of the activations with those of the weights at `data`. */
static void multiply_columns(const group *g, multiply_fn multiply, const uint8_t *data, size_t stride, size_t first, size_t count, int is_last, float *totals) {
    const float *x[MOST_TOKENS];
    for (int t = 0; t < g->num_tokens; t++) {
        x[t] = g->x[t] + first;
    }
    piece p = {data, stride, count, g->rows, first == 0, is_last, x, g->num_tokens, g->sums, totals};
    multiply(&p);
}

static void multiply_dequantized(const group *g, const matrix *m, const uint8_t *data, size_t first, size_t count, float *totals) {
    size_t padded = ROUND_LANES(count);
    dequantize_fn dequantize = dequantizer(m->type);
    for (int r = 0; r < g->rows; r++) {
        float *row = g->weights + (size_t)r * padded;
        dequantize(data + (size_t)r * (size_t)m->row_bytes, row, count, &g->rt->books);
        memset(row + count, 0, (padded - count) * sizeof *row);
    }
    int is_last = first + count == (size_t)m->cols;
    multiply_columns(g, multiply_f32, (const uint8_t *)g->weights, padded * sizeof(float), first, padded, is_last, totals);
}

/* totals [num_tokens][FLOAT_ROWS] of a tile of one matrix. */
static void multiply_matrix(const group *g, const matrix *m, int expert, int first_row, float *totals) {
    const uint8_t *data = m->data + expert * m->expert_bytes + first_row * m->row_bytes;
    size_t columns = (size_t)m->cols, done = 0, count;
    multiply_fn multiply = m->type == F32 ? multiply_f32 : m->type == F16 ? multiply_f16 : m->type == BF16 ? multiply_bf16 : NULL;
    if (multiply && g->num_tokens <= DIRECT_TOKENS) {
        for (size_t whole = columns / LANES * LANES; done < whole; done += count) {
            count = whole - done < DIRECT_PIECE ? whole - done : DIRECT_PIECE;
            multiply_columns(g, multiply, data + packed_bytes(m->type, done), (size_t)m->row_bytes, done, count, done + count == columns, totals);
        }
    }
    for (; done < columns; done += count) {
        count = columns - done < PIECE ? columns - done : PIECE;
        multiply_dequantized(g, m, data + packed_bytes(m->type, done), done, count, totals);
    }
}

int float_group(const product *p) {
    size_t fit = GROUP_FLOATS / ROUND_LANES(p->weight->cols) / LEAST_TOKENS * LEAST_TOKENS;
    return fit < LEAST_TOKENS ? LEAST_TOKENS : fit < MOST_TOKENS ? (int)fit : MOST_TOKENS;
}

size_t float_scratch(const product *p) {
    return FLOAT_ROWS * PIECE + (size_t)min_int(p->num_tokens, MOST_TOKENS) * (SUMS_OF_TOKEN + (p->up ? 2 : 1) * FLOAT_ROWS);
}

/* All sixteen lanes at once, or fewer one by one, because a memcpy of unknown size is a call. */
ALWAYS_INLINE void finish_token(const product *p, const float *totals, const float *up_totals, int rows, float *out) {
    f32x16 result = v_load(totals);
    if (p->up) {
        result = v_mul(v_silu(result), v_load(up_totals));
    }
    if (rows == LANES) {
        v_store(out, p->add ? v_add(v_load(out), result) : result);
        return;
    }
    float lanes[LANES];
    v_store(lanes, result);
    for (int r = 0; r < rows; r++) {
        out[r] = p->add ? out[r] + lanes[r] : lanes[r];
    }
}

void float_product_tile(const runtime *rt, const product *p, int first_row, int first_token, float *scratch) {
    const float *x[MOST_TOKENS];
    int rows = min_int(FLOAT_ROWS, p->weight->rows - first_row), num_tokens = min_int(float_group(p), p->num_tokens - first_token);
    group g = {rt, x, num_tokens, rows, scratch, scratch + FLOAT_ROWS * PIECE};
    float *totals = g.sums + (size_t)num_tokens * SUMS_OF_TOKEN, *up_totals = totals + (size_t)num_tokens * FLOAT_ROWS;
    for (int t = 0; t < num_tokens; t++) {
        x[t] = p->x + (size_t)(p->gather ? p->gather[p->first + first_token + t] : first_token + t) * p->ldx;
    }
    multiply_matrix(&g, p->weight, p->expert, first_row, totals);
    if (p->up) {
        multiply_matrix(&g, p->up, p->expert, first_row, up_totals);
    }
    for (int t = 0; t < num_tokens; t++) {
        size_t at = (size_t)t * FLOAT_ROWS;
        finish_token(p, totals + at, up_totals + at, rows, p->out + (size_t)(first_token + t) * p->ldo + first_row);
    }
}
