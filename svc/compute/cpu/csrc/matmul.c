/* Tiles of weight rows are dequantized exactly to float once and applied to all tokens, a block of rows x tokens in registers; or,
 * where activations are rounded to 8 bits, computed in integers (int_matmul.c).
 * A task is a tile of rows of one product; the reduced dimension is never split. */
#include "matmul.h"

#include "int_matmul.h"
#include "lane_math.h"

#define TILE_ROWS 16 /* most rows of a tile */

/* Rows of a tile of this product: fewer for one token and for long rows, so that the dequantized tile stays in a near cache. */
static int tile_rows(const product *p) {
    size_t floats = TILE_ROWS * ROUND_LANES(p->weight->cols) * (p->up ? 2 : 1);
    return p->num_tokens == 1 || floats > (size_t)1 << 17 ? TILE_ROWS / 2 : TILE_ROWS;
}

#if LANES_AVX512
#define MANY_ROWS 4 /* rows x tokens held in registers: 16 accumulators of the 32 registers */
#define MANY_TOKENS 4
#define PAIR_ROWS 8
#define ONE_ROWS 8
#elif LANES_AVX2
#define MANY_ROWS 4 /* 12 accumulators of the 16 registers, for one half of the lanes at a time */
#define MANY_TOKENS 3
#define PAIR_ROWS 4
#define ONE_ROWS 8
#elif LANES_PLAIN
#define MANY_ROWS 1
#define MANY_TOKENS 2
#define PAIR_ROWS 1
#define ONE_ROWS 1
#else /* NEON: a vector is four of the 32 registers */
#define MANY_ROWS 2
#define MANY_TOKENS 2
#define PAIR_ROWS 2
#define ONE_ROWS 4
#endif

/* out[token * num_rows + row] for a block of num_rows x num_tokens <= 16 dot products; both are constants after inlining. */
#if LANES_AVX2
ALWAYS_INLINE void dot_block(int num_rows, int num_tokens, const float *rows, size_t ldr, const float *const *tokens, size_t n, float *out) {
    f32x16 sums[LANES]; /* lanes do not mix before the end: the low halves go first, then the high halves */
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256 part[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < num_rows * num_tokens; i++) {
            part[i] = _mm256_setzero_ps();
        }
        for (size_t k = (size_t)half * 8; k < n; k += LANES) {
            __m256 x[MANY_TOKENS];
#pragma GCC unroll 16
            for (int t = 0; t < num_tokens; t++) {
                x[t] = _mm256_loadu_ps(tokens[t] + k);
            }
#pragma GCC unroll 16
            for (int r = 0; r < num_rows; r++) {
                __m256 w = _mm256_loadu_ps(rows + (size_t)r * ldr + k);
#pragma GCC unroll 16
                for (int t = 0; t < num_tokens; t++) {
                    part[t * num_rows + r] = _mm256_fmadd_ps(w, x[t], part[t * num_rows + r]);
                }
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < num_rows * num_tokens; i++) {
            *(half ? &sums[i].hi : &sums[i].lo) = part[i];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < num_rows * num_tokens; i++) {
        out[i] = v_sum(sums[i]);
    }
}
#else
ALWAYS_INLINE void dot_block(int num_rows, int num_tokens, const float *rows, size_t ldr, const float *const *tokens, size_t n, float *out) {
    f32x16 sums[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        sums[i] = v_zero();
    }
    for (size_t k = 0; k < n; k += LANES) {
        f32x16 x[MANY_TOKENS];
#pragma GCC unroll 16
        for (int t = 0; t < num_tokens; t++) {
            x[t] = v_load(tokens[t] + k);
        }
#pragma GCC unroll 16
        for (int r = 0; r < num_rows; r++) {
            f32x16 w = v_load(rows + (size_t)r * ldr + k);
#pragma GCC unroll 16
            for (int t = 0; t < num_tokens; t++) {
                sums[t * num_rows + r] = v_madd(w, x[t], sums[t * num_rows + r]);
            }
        }
    }
    if (LANES_AVX512 && num_rows * num_tokens >= 8) {
        v_store(out, v_sum16(sums));
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < num_rows * num_tokens; i++) {
        out[i] = v_sum(sums[i]);
    }
}
#endif

typedef struct {
    const product *p;
    const float *tile, *up_tile; /* dequantized rows, ld apart */
    size_t ld;
    int first_row;
} tile_view;

ALWAYS_INLINE void finish_block(int num_rows, int num_tokens, const tile_view *v, int row, int token, float *block, float *up_block) {
    const product *p = v->p;
    if (p->up) {
        v_store(block, v_mul(v_silu(v_load(block)), v_load(up_block)));
    }
    for (int t = 0; t < num_tokens; t++) {
        float *out = p->out + (size_t)(token + t) * p->ldo + v->first_row + row;
        for (int r = 0; r < num_rows; r++) {
            out[r] = p->add ? out[r] + block[t * num_rows + r] : block[t * num_rows + r];
        }
    }
}

ALWAYS_INLINE void rows_by_tokens(int num_rows, int num_tokens, const tile_view *v, int row, int token, const float *const *x) {
    _Alignas(64) float block[LANES] = {0}, up_block[LANES] = {0};
    dot_block(num_rows, num_tokens, v->tile + (size_t)row * v->ld, v->ld, x, v->ld, block);
    if (v->p->up) {
        dot_block(num_rows, num_tokens, v->up_tile + (size_t)row * v->ld, v->ld, x, v->ld, up_block);
    }
    finish_block(num_rows, num_tokens, v, row, token, block, up_block);
}

#define COVER_ROWS(block_rows, block_tokens)                                  \
    do {                                                                      \
        int row = 0;                                                          \
        for (; row + (block_rows) <= num_rows; row += (block_rows)) {         \
            rows_by_tokens(block_rows, block_tokens, v, row, token, x);       \
        }                                                                     \
        for (; row < num_rows; row++) {                                       \
            rows_by_tokens(1, block_tokens, v, row, token, x);                \
        }                                                                     \
    } while (0)

static void many_tokens(const tile_view *v, int num_rows, int token, const float *const *x) { COVER_ROWS(MANY_ROWS, MANY_TOKENS); }
static void two_tokens(const tile_view *v, int num_rows, int token, const float *const *x) { COVER_ROWS(PAIR_ROWS, 2); }
static void one_token(const tile_view *v, int num_rows, int token, const float *const *x) { COVER_ROWS(ONE_ROWS, 1); }

static void apply_tile(const tile_view *v, int num_rows) {
    const product *p = v->p;
    for (int token = 0; token < p->num_tokens;) {
        const float *x[MANY_TOKENS];
        int rest = p->num_tokens - token, step = rest >= MANY_TOKENS ? MANY_TOKENS : rest >= 2 ? 2 : 1;
        for (int t = 0; t < step; t++) {
            x[t] = p->x + (size_t)(p->gather ? p->gather[token + t] : token + t) * p->ldx;
        }
        (step == MANY_TOKENS ? many_tokens : step == 2 ? two_tokens : one_token)(v, num_rows, token, x);
        token += step;
    }
}

/* -- activations rounded to 8 bits, once for all products that want the same ----------------------------------------------------- */

typedef struct {
    const float *x;
    size_t ldx;
    int cols, block, num_rows;
    uint8_t *rounded; /* [num_rows][row_bytes] */
    size_t row_bytes;
} source;

/* Columns per scale of the activations for this product; 0: it is computed in floats. Depends on the weights alone. */
static int product_block(const engine *e, const product *p) {
    int block = e->round_activations && p->weight->rows >= INT_ROWS ? int_block(p->weight->type) : 0;
    return p->up && int_block(p->up->type) != block ? 0 : block;
}

/* The source of a product: an earlier one with the same activations, if it is the first or the last, or a new one. */
static int add_source(source *sources, int *count, const product *p, int block) {
    int num_rows = p->num_tokens;
    for (int i = 0; p->gather && i < p->num_tokens; i++) {
        num_rows = p->gather[i] + 1 > num_rows ? p->gather[i] + 1 : num_rows;
    }
    for (int i = *count - 1; i >= 0; i = i > 0 ? 0 : -1) {
        source *s = sources + i;
        if (s->x == p->x && s->ldx == p->ldx && s->cols == p->weight->cols && s->block == block) {
            s->num_rows = s->num_rows > num_rows ? s->num_rows : num_rows;
            return i;
        }
    }
    sources[*count] = (source){.x = p->x, .ldx = p->ldx, .cols = p->weight->cols, .block = block, .num_rows = num_rows,
                               .row_bytes = int_row_bytes(block, p->weight->cols)};
    return (*count)++;
}

typedef struct {
    const source *sources;
    const int *first_row; /* [count] */
} rounding;

static void round_task(void *context, int row, int worker) {
    const rounding *r = context;
    (void)worker;
    int i = 0;
    while (r->first_row[i + 1] <= row) {
        i++;
    }
    const source *s = r->sources + i;
    size_t number = (size_t)(row - r->first_row[i]);
    int_quantize(s->x + number * s->ldx, s->block, s->cols, s->rounded + number * s->row_bytes);
}

/* Rounds what products need -> the source of each product, -1 for those in floats; NULL without memory. */
static const int *round_activations(engine *e, const product *products, int count, source *sources) {
    int *source_of = arena_bytes(e, (size_t)count * sizeof *source_of), *first_row = arena_bytes(e, (size_t)(count + 1) * sizeof *first_row);
    int num_sources = 0;
    size_t work = 0;
    if (e->out_of_memory) {
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        int block = products[i].num_tokens ? product_block(e, products + i) : 0;
        source_of[i] = block ? add_source(sources, &num_sources, products + i, block) : -1;
    }
    first_row[0] = 0;
    for (int i = 0; i < num_sources; i++) {
        first_row[i + 1] = first_row[i] + sources[i].num_rows;
        work += 4 * (size_t)sources[i].num_rows * (size_t)sources[i].cols;
        sources[i].rounded = arena_bytes(e, (size_t)sources[i].num_rows * sources[i].row_bytes);
    }
    if (e->out_of_memory) {
        return NULL;
    }
    rounding r = {sources, first_row};
    run_tasks(e, round_task, &r, first_row[num_sources], work);
    return source_of;
}

/* -- all products as one phase -------------------------------------------------------------------------------------------------------- */

typedef struct {
    engine *e;
    const product *products;
    const source *sources;
    const int *source_of;  /* [count]; -1: in floats */
    const int *first_tile; /* [count + 1] */
    int count;
} phase;

static void dequantize_tile(const engine *e, const matrix *m, int expert, int first_row, int num_rows, size_t ld, float *out) {
    dequantize_fn dequantize = dequantizer(m->type);
    for (int r = 0; r < num_rows; r++) {
        float *row = out + (size_t)r * ld;
        dequantize(m->data + expert * m->expert_bytes + (first_row + r) * m->row_bytes, row, (size_t)m->cols, &e->books);
        memset(row + m->cols, 0, (ld - (size_t)m->cols) * sizeof *row);
    }
}

static void product_task(void *context, int task, int worker) {
    const phase *ph = context;
    int low = 0, high = ph->count - 1; /* the product this tile belongs to: last one that starts at or before it */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (ph->first_tile[middle] <= task) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const product *p = ph->products + low;
    if (ph->source_of[low] >= 0) {
        const source *s = ph->sources + ph->source_of[low];
        int_product_tile(p, s->rounded, s->row_bytes, (task - ph->first_tile[low]) * INT_ROWS, ph->e->scratch[worker]);
        return;
    }
    int height = tile_rows(p), first_row = (task - ph->first_tile[low]) * height;
    int num_rows = min_int(height, p->weight->rows - first_row);
    size_t ld = ROUND_LANES(p->weight->cols);
    float *tile = ph->e->scratch[worker], *up_tile = tile + (size_t)height * ld;
    dequantize_tile(ph->e, p->weight, p->expert, first_row, num_rows, ld, tile);
    if (p->up) {
        dequantize_tile(ph->e, p->up, p->expert, first_row, num_rows, ld, up_tile);
    }
    tile_view view = {p, tile, up_tile, ld, first_row};
    apply_tile(&view, num_rows);
}

void run_products(engine *e, const product *products, int count) {
    int *first_tile = arena_bytes(e, (size_t)(count + 1) * sizeof *first_tile);
    source *sources = arena_bytes(e, (size_t)count * sizeof *sources);
    if (e->out_of_memory) {
        return;
    }
    const int *source_of = round_activations(e, products, count, sources);
    size_t widest = INT_SCRATCH, work = 0;
    for (int i = 0; source_of && i < count; i++) {
        size_t columns = (size_t)(products[i].up ? 2 : 1) * ROUND_LANES(products[i].weight->cols), floats = TILE_ROWS * columns;
        widest = source_of[i] < 0 && floats > widest ? floats : widest;
        work += (size_t)products[i].weight->rows * columns * (size_t)(products[i].num_tokens + 4); /* 4: to dequantize one weight */
    }
    reserve_scratch(e, widest);
    if (e->out_of_memory) {
        return;
    }
    first_tile[0] = 0;
    for (int i = 0; i < count; i++) {
        int height = source_of[i] < 0 ? tile_rows(products + i) : INT_ROWS;
        first_tile[i + 1] = first_tile[i] + (products[i].num_tokens ? div_up(products[i].weight->rows, height) : 0);
    }
    phase ph = {e, products, sources, source_of, first_tile, count};
    run_tasks(e, product_task, &ph, first_tile[count], work);
}
