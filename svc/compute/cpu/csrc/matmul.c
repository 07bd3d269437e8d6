/* Products as one phase of tasks: in floats (float_matmul.c) or, where activations are rounded to 8 bits, in integers (int_matmul.c).
 * A task is a tile of rows of one product; the reduced dimension is never split. */
#include "matmul.h"

#include "float_matmul.h"
#include "int_matmul.h"

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
    /* All tiles with one group of tokens, then with the next: activations are read more often than weights. */
    int tile = task - ph->first_tile[low], height = div_up(p->weight->rows, FLOAT_ROWS);
    float_product_tile(ph->e, p, tile % height * FLOAT_ROWS, tile / height * float_group(p), ph->e->scratch[worker]);
}

static int num_tiles(const product *p, int in_floats) {
    if (!p->num_tokens) {
        return 0;
    }
    return in_floats ? div_up(p->weight->rows, FLOAT_ROWS) * div_up(p->num_tokens, float_group(p)) : div_up(p->weight->rows, INT_ROWS);
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
        size_t columns = (size_t)(products[i].up ? 2 : 1) * ROUND_LANES(products[i].weight->cols), floats = float_scratch(products + i);
        widest = source_of[i] < 0 && floats > widest ? floats : widest;
        work += (size_t)products[i].weight->rows * columns * (size_t)(products[i].num_tokens + 4); /* 4: to dequantize one weight */
    }
    reserve_scratch(e, widest);
    if (e->out_of_memory) {
        return;
    }
    first_tile[0] = 0;
    for (int i = 0; i < count; i++) {
        first_tile[i + 1] = first_tile[i] + num_tiles(products + i, source_of[i] < 0);
    }
    phase ph = {e, products, sources, source_of, first_tile, count};
    run_tasks(e, product_task, &ph, first_tile[count], work);
}
