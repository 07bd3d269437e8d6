/* Products as one phase of tasks: in floats (float_matmul.c) or, with activations rounded to 8 bits, in integers (int_matmul.c).
 * A task is a tile of rows of one product; the reduced dimension is never split. */
#include "matmul.h"

#include "float_matmul.h"
#include "int_matmul.h"

/* -- activations rounded to 8 bits, once for all products that share them ----------------------------------------------------- */

typedef struct {
    const float *x;
    size_t ldx;
    int cols, block, num_rows, num_gathered;
    const int32_t *gather; /* [num_gathered] rows that products take from here, or NULL */
    uint8_t *rounded;      /* [units of 256 columns][num_rows] */
    uint8_t *gathered;     /* [units][num_gathered], if products need it; else NULL */
} source;

/* Columns per scale of the activations for this product; 0: it is computed in floats. Depends on the weights alone. */
static int product_block(const runtime *rt, const product *p) {
    int block = rt->round_activations && p->weight->rows >= INT_ROWS ? int_block(p->weight->type) : 0;
    return p->up && int_block(p->up->type) != block ? 0 : block;
}

/* The source of a product: an earlier one with the same activations, if it is the first or the last, or a new one. */
static int add_source(source *sources, int *count, const product *p, int block) {
    int found = -1, num_rows = p->num_tokens;
    for (int i = 0; p->gather && i < p->num_tokens; i++) {
        int row = p->gather[p->first + i];
        num_rows = row + 1 > num_rows ? row + 1 : num_rows;
    }
    for (int i = *count - 1; found < 0 && i >= 0; i = i > 0 ? 0 : -1) {
        const source *s = sources + i;
        int same_rows = !p->gather || !s->gather || p->gather == s->gather;
        found = same_rows && s->x == p->x && s->ldx == p->ldx && s->cols == p->weight->cols && s->block == block ? i : -1;
    }
    if (found < 0) {
        found = (*count)++;
        sources[found] = (source){.x = p->x, .ldx = p->ldx, .cols = p->weight->cols, .block = block};
    }
    source *s = sources + found;
    s->num_rows = s->num_rows > num_rows ? s->num_rows : num_rows;
    if (p->gather && int_wants_gathered(p->num_tokens)) {
        s->gather = p->gather, s->num_gathered = p->num_gathered;
    }
    return found;
}

/* Memory for the units of `rows` rows, and padding. */
static uint8_t *unit_memory(runtime *rt, const source *s, int num_rows) {
    size_t bytes = int_unit_bytes(s->block), units = (size_t)div_up(s->cols, 256) * (size_t)num_rows;
    uint8_t *memory = arena_bytes(rt, (units + INT_PADDING) * bytes);
    if (memory) {
        memset(memory + units * bytes, 0, INT_PADDING * bytes);
    }
    return memory;
}

typedef struct {
    const source *sources;
    const int *first_row; /* [count + 1] */
} rounding;

/* The source that task `*row` belongs to; *row becomes its row there. */
static const source *source_of_row(const rounding *r, int *row) {
    int i = 0;
    while (r->first_row[i + 1] <= *row) {
        i++;
    }
    *row -= r->first_row[i];
    return r->sources + i;
}

static void round_task(void *context, int row, int worker) {
    (void)worker;
    const source *s = source_of_row(context, &row);
    size_t bytes = int_unit_bytes(s->block);
    int_quantize(s->x + (size_t)row * s->ldx, s->block, s->cols, s->rounded + (size_t)row * bytes, (size_t)s->num_rows * bytes);
}

static void gather_task(void *context, int row, int worker) {
    (void)worker;
    const source *s = source_of_row(context, &row);
    size_t bytes = int_unit_bytes(s->block), from = (size_t)s->gather[row], to = (size_t)row;
    for (int unit = 0; unit < div_up(s->cols, 256); unit++, from += (size_t)s->num_rows, to += (size_t)s->num_gathered) {
        memcpy(s->gathered + to * bytes, s->rounded + from * bytes, bytes);
    }
}

/* Rounds the activations of all products; returns the source of each, -1 for products in floats. NULL without memory. */
static const int *round_activations(runtime *rt, const product *products, int count, source *sources) {
    int *source_of = arena_bytes(rt, (size_t)count * sizeof *source_of), *first_row = arena_bytes(rt, (size_t)(count + 1) * sizeof *first_row);
    int *first_gathered = arena_bytes(rt, (size_t)(count + 1) * sizeof *first_gathered), num_sources = 0;
    size_t work = 0, copied = 0;
    if (rt->out_of_memory) {
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        int block = products[i].num_tokens ? product_block(rt, products + i) : 0;
        source_of[i] = block ? add_source(sources, &num_sources, products + i, block) : -1;
    }
    first_row[0] = first_gathered[0] = 0;
    for (int i = 0; i < num_sources; i++) {
        source *s = sources + i;
        first_row[i + 1] = first_row[i] + s->num_rows;
        first_gathered[i + 1] = first_gathered[i] + s->num_gathered;
        work += 4 * (size_t)s->num_rows * (size_t)s->cols;
        copied += (size_t)s->num_gathered * (size_t)s->cols;
        s->rounded = unit_memory(rt, s, s->num_rows);
        s->gathered = s->gather ? unit_memory(rt, s, s->num_gathered) : NULL;
    }
    if (rt->out_of_memory) {
        return NULL;
    }
    rounding rounded = {sources, first_row}, gathered = {sources, first_gathered};
    run_tasks(rt, round_task, &rounded, first_row[num_sources], work);
    run_tasks(rt, gather_task, &gathered, first_gathered[num_sources], copied);
    return source_of;
}

static int_source source_of_product(const source *s, const product *p) {
    if (!p->gather) {
        return (int_source){s->rounded, (size_t)s->num_rows, NULL};
    }
    if (s->gathered) {
        return (int_source){s->gathered + (size_t)p->first * int_unit_bytes(s->block), (size_t)s->num_gathered, NULL};
    }
    return (int_source){s->rounded, (size_t)s->num_rows, p->gather + p->first};
}

/* -- all products as one phase -------------------------------------------------------------------------------------------------------- */

typedef struct {
    runtime *rt;
    const product *products;
    const source *sources;
    const int *source_of;  /* [count]; -1: in floats */
    const int *first_tile; /* [count + 1] */
    int count;
    int int_rows; /* of a task, in integers */
} phase;

/* Rows of one task: several consecutive tiles, but enough tasks for all threads to finish at the same time. */
static int int_task_rows(const runtime *rt, const product *products, const int *source_of, int count) {
    int tiles = 0, most_tokens = 1;
    for (int i = 0; i < count; i++) {
        tiles += source_of[i] >= 0 ? div_up(products[i].weight->rows, INT_ROWS) : 0;
        most_tokens = products[i].num_tokens > most_tokens ? products[i].num_tokens : most_tokens;
    }
    int most = most_tokens > 16 ? 4 : 16, wanted = tiles / (8 * pool_threads(rt->threads));
    return INT_ROWS * (wanted < 1 ? 1 : min_int(wanted, most));
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
        int_source x = source_of_product(ph->sources + ph->source_of[low], p);
        int_product_rows(p, &x, (task - ph->first_tile[low]) * ph->int_rows, ph->int_rows, ph->rt->scratch[worker]);
        return;
    }
    /* All tiles with one group of tokens, then with the next: activations are read more often than weights. */
    int tile = task - ph->first_tile[low], height = div_up(p->weight->rows, FLOAT_ROWS);
    float_product_tile(ph->rt, p, tile % height * FLOAT_ROWS, tile / height * float_group(p), ph->rt->scratch[worker]);
}

static int num_tiles(const product *p, int in_floats, int int_rows) {
    if (!p->num_tokens) {
        return 0;
    }
    return in_floats ? div_up(p->weight->rows, FLOAT_ROWS) * div_up(p->num_tokens, float_group(p)) : div_up(p->weight->rows, int_rows);
}

void run_products(runtime *rt, const product *products, int count) {
    int *first_tile = arena_bytes(rt, (size_t)(count + 1) * sizeof *first_tile);
    source *sources = arena_bytes(rt, (size_t)count * sizeof *sources);
    if (rt->out_of_memory) {
        return;
    }
    const int *source_of = round_activations(rt, products, count, sources);
    size_t widest = INT_SCRATCH, work = 0;
    for (int i = 0; source_of && i < count; i++) {
        size_t columns = (size_t)(products[i].up ? 2 : 1) * ROUND_LANES(products[i].weight->cols), floats = float_scratch(products + i);
        widest = source_of[i] < 0 && floats > widest ? floats : widest;
        work += (size_t)products[i].weight->rows * columns * (size_t)(products[i].num_tokens + 4); /* 4: to dequantize one weight */
    }
    reserve_scratch(rt, widest);
    if (rt->out_of_memory) {
        return;
    }
    first_tile[0] = 0;
    int int_rows = int_task_rows(rt, products, source_of, count);
    for (int i = 0; i < count; i++) {
        first_tile[i + 1] = first_tile[i] + num_tiles(products + i, source_of[i] < 0, int_rows);
    }
    phase ph = {rt, products, sources, source_of, first_tile, count, int_rows};
    run_tasks(rt, product_task, &ph, first_tile[count], work);
}
