/* Products in integers: activations are rounded to 8 bits per token and block, a block's dot product is exact in 32 bits, and one
 * chain of float operations joins the blocks in their order. Exact integers have no order, so one token and many, and all builds,
 * give the same bits. The chain is the definition:
 *
 *   blocks of 256   t = d * isum; t = fma(-dmin, msum, t) (types with minimums); sum = fma(dx, t, sum)
 *   blocks of 32    t = d * isum;                                                sum = fma(dx, t, sum)
 *
 * A tile is 16 rows by 256 columns, unpacked to bytes with the rows in lanes: no sum ever crosses lanes. It stays in the nearest cache
 * while it is applied to all tokens. */
#include "int_matmul.h"

#include "int_amx.h"
#include "int_one_token.h"
#include "int_rows.h"
#include "simd_math.h"

int int_wants_gathered(int num_tokens) {
#ifdef __AMX_INT8__
    return num_tokens >= LEAST_TILE_TOKENS;
#else
    (void)num_tokens;
    return 0;
#endif
}

/* Multiplies an unpacked unit with all tokens, as many at a time as the vector registers hold. */
ALWAYS_INLINE void apply_to_tokens(kind k, const tile_job *j, const tile *t, int num_blocks, size_t unit) {
    int token = 0;
    for (; token + MOST_TOKENS <= j->num_tokens; token += MOST_TOKENS) {
        apply(k, MOST_TOKENS, j, t, num_blocks, unit, token);
    }
    if (MOST_TOKENS == 8 && token + 4 <= j->num_tokens) {
        apply(k, 4, j, t, num_blocks, unit, token);
        token += 4;
    }
    if (token + 2 <= j->num_tokens) {
        apply(k, 2, j, t, num_blocks, unit, token);
        token += 2;
    }
    if (token < j->num_tokens) {
        apply(k, 1, j, t, num_blocks, unit, token);
    }
}

ALWAYS_INLINE void run_tile(kind k, int type, size_t block_bytes, unpack_fn unpack, one_token_fn one, unpack_fn head, const int8_t *table, const tile_job *j) {
#if INT_LANES == 8
    if (j->num_tokens <= FEW_TOKENS) {
        run_rows(k, type, block_bytes, table, j);
        return;
    }
#endif
    tile t;
#if ONE_TOKEN_TILES
    if (one && j->num_tokens == 1) {
        one_token_256(k, block_bytes, one, j, &t);
        return;
    }
    if (head && j->num_tokens == 1) {
        one_token_32(k, block_bytes, head, table, j, &t);
        return;
    }
#else
    (void)one, (void)head;
#endif
    (void)type, (void)table;
#ifdef __AMX_INT8__
    int tiles = j->num_tokens >= LEAST_TILE_TOKENS && !j->gather;
    if (tiles) {
        begin_tiles(k.block == 256 ? 64 : 32);
    }
#endif
    const uint8_t *rows = j->rows;
#if INT_LANES == 8
    _Alignas(64) uint8_t copy[MOST_COPIED];
    if (INT_ROWS * j->stride <= sizeof copy) {
        rows = copy_rows(copy, rows, INT_ROWS * j->stride);
    }
#endif
    size_t at = 0;
    for (size_t unit = 0; unit * 256 < (size_t)j->cols; unit++) {
        int num_blocks = min_int(256, j->cols - (int)unit * 256) / k.block;
        if (rows == j->rows) {
            fetch_next(j, unit);
        }
        for (int block = 0; block < num_blocks; block++, at += block_bytes) {
            for (int lane = 0; lane < INT_ROWS; lane += INT_LANES) {
                unpack(rows + at + (size_t)lane * j->stride, j->stride, &t, lane, block);
            }
        }
#ifdef __AMX_INT8__
        if (tiles) {
            apply_tiles(k, j, &t, num_blocks, unit);
            continue;
        }
#endif
        apply_to_tokens(k, j, &t, num_blocks, unit);
    }
#ifdef __AMX_INT8__
    if (tiles) {
        end_tiles();
    }
#endif
}

/* unchecked: 2 x largest byte x 127 x steps stays below 32768. */
#define KERNEL_256(name, type, bytes, one, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){.block = 256, __VA_ARGS__}, type, bytes, unpack_##name, one, NULL, NULL, j); }
#define KERNEL_32(name, type, bytes, head, table, ...) \
    static void run_##name(const tile_job *j) { run_tile((kind){.block = 32, .groups = 1, __VA_ARGS__}, type, bytes, unpack_##name, NULL, head, table, j); }
KERNEL_256(q4_k, Q4_K, 144, one_q4_k, .groups = 8, .unchecked = 8, .minimums = 1)
KERNEL_256(q5_k, Q5_K, 176, one_q5_k, .groups = 8, .unchecked = 4, .minimums = 1)
KERNEL_256(q6_k, Q6_K, 210, one_q6_k, .groups = 16, .unchecked = 2, .offset = 32)
KERNEL_256(iq4_xs, IQ4_XS, 136, NULL, .groups = 8, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(q8_0, Q8_0, 34, unpack_half, NULL, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(q4_0, Q4_0, 18, unpack_half, NULL, .nibbles = 1, .unchecked = 8, .offset = 8)
KERNEL_32(q5_0, Q5_0, 22, NULL, NULL, .nibbles = 1, .unchecked = 4, .offset = 16)
KERNEL_32(iq4_nl, IQ4_NL, 18, unpack_half, iq4_values, .nibbles = 1, .unchecked = 1, .is_signed = 1, .offset = 128)
KERNEL_32(mxfp4, MXFP4, 17, unpack_e8m0, e2m1_values, .nibbles = 1, .unchecked = 4, .offset = 12)

static void run_type(int type, const tile_job *j) {
    switch (type) {
    case Q4_K: run_q4_k(j); break;
    case Q5_K: run_q5_k(j); break;
    case Q6_K: run_q6_k(j); break;
    case Q8_0: run_q8_0(j); break;
    case Q4_0: run_q4_0(j); break;
    case Q5_0: run_q5_0(j); break;
    case IQ4_NL: run_iq4_nl(j); break;
    case IQ4_XS: run_iq4_xs(j); break;
    case MXFP4: run_mxfp4(j); break;
    default: break;
    }
}

static const uint8_t *row_of(const product *p, const matrix *m, int row) { return m->data + p->expert * m->expert_bytes + row * m->row_bytes; }

static void multiply_tile(const product *p, const matrix *m, const int_source *x, int first_row, const uint8_t *next, int first_token, int num_tokens, float *sums) {
    tile_job j = {.rows = row_of(p, m, first_row), .stride = (size_t)m->row_bytes, .x = x->units, .unit_rows = x->num_rows, .gather = x->gather, .cols = m->cols,
                  .next = next, .first_token = first_token, .num_tokens = num_tokens, .sums = sums};
    run_type(m->type, &j);
}

/* sums [num_tokens][INT_ROWS] to rows `done` .. of the tile, at out. */
static void store_sums(const product *p, const float *sums, int num_tokens, int done, float *out) {
    for (int t = 0; t < num_tokens; t++, sums += INT_ROWS, out += p->ldo) {
        if (done == 0) {
            f32x16 sum = v_load(sums);
            v_store(out, p->add ? v_add(v_load(out), sum) : sum);
        }
        for (int r = done; done && r < INT_ROWS; r++) {
            out[r - done] = p->add ? out[r - done] + sums[r] : sums[r];
        }
    }
}

/* Rows first_row .. of one tile; `next`: the first row of another that follows, or -1. */
static void product_tile(const product *p, const int_source *x, int first_row, int next_row, float *scratch) {
    float *sums = scratch, *up_sums = scratch + INT_TOKENS * INT_ROWS;
    int start = min_int(first_row, p->weight->rows - INT_ROWS); /* the last tile reaches back */
    const uint8_t *next = next_row < 0 ? NULL : row_of(p, p->weight, next_row);
    for (int first = 0; first < p->num_tokens; first += INT_TOKENS) {
        int num_tokens = min_int(INT_TOKENS, p->num_tokens - first);
        multiply_tile(p, p->weight, x, start, p->up ? row_of(p, p->up, start) : next, first, num_tokens, sums);
        if (p->up) {
            multiply_tile(p, p->up, x, start, next, first, num_tokens, up_sums);
            for (int i = 0; i < num_tokens * INT_ROWS; i += INT_ROWS) {
                v_store(sums + i, v_mul(v_silu(v_load(sums + i)), v_load(up_sums + i)));
            }
        }
        store_sums(p, sums, num_tokens, first_row - start, p->out + (size_t)first * p->ldo + first_row);
    }
}

void int_product_rows(const product *p, const int_source *x, int first_row, int num_rows, float *scratch) {
    int end = min_int(first_row + num_rows, p->weight->rows);
    for (int row = first_row; row < end; row += INT_ROWS) {
        int next = row + INT_ROWS < end ? min_int(row + INT_ROWS, p->weight->rows - INT_ROWS) : -1;
        product_tile(p, x, row, next, scratch);
    }
}
