/* Rows of kvcsa_model_from_plan. 16 bytes choose the parameters; the rows follow, as many as there
 * are whole ones of the first one's struct_size. A model that comes out gives its rows back. */
#include "base/bytes.h"
#include "kvcsa.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { N_SETTINGS = 16, LARGEST_SIZE = 4096 };

static kvcsa_plan_params read_params(const uint8_t *data)
{
    kvcsa_plan_params p;

    kvcsa_plan_params_default(&p, sizeof p);
    p.name = data[0] & 1 ? "fuzz" : NULL;
    p.identity = data[1];
    p.block_tokens = data[2] | (uint32_t)data[3] << 8;
    p.max_tokens = kvi_load_u64(data + 4) >> data[0] % 64;
    p.vocab_tokens =
        data[12] | (uint32_t)data[13] << 8 | (uint32_t)data[14] << 16 | (uint32_t)data[15] << 24;
    return p;
}

static kvcsa_cost cost_of(const kvcsa_model *m)
{
    kvcsa_cost c;

    memset(&c, 0, sizeof c); /* compared as bytes */
    c.struct_size = sizeof c;
    if (kvcsa_model_cost(m, m->plan.max_tokens, &c, NULL) != KVCSA_OK)
        abort();
    return c;
}

static void use_costs(const kvcsa_model *m)
{
    const kvcsa_cost     c = cost_of(m);
    kvcsa_estimate       e = {.struct_size = sizeof e};
    kvcsa_serving_cost   s = {.struct_size = sizeof s};
    kvcsa_serving_params p;
    uint64_t             parts = (uint64_t)c.index_part_bytes + c.main_part_bytes;

    if (parts != c.block_bytes ||
        parts != (uint64_t)m->layout.index_part_bytes + m->layout.main_part_bytes ||
        c.persist_bytes < c.state_bytes || c.resident_bytes < c.window_read_bytes ||
        c.read_bytes < c.index_read_bytes)
        abort();
    if (kvcsa_model_estimate(m, NULL, 1000 < m->plan.max_tokens ? 1000 : m->plan.max_tokens, 2, 0,
                             &e, NULL) == KVCSA_OK &&
        e.used_bytes < e.block_bytes)
        abort();
    kvcsa_serving_params_default(&p, sizeof p);
    p.n_tokens = m->plan.max_tokens;
    p.n_devices = 2;
    (void)kvcsa_model_serving_cost(m, &p, &s, NULL);
}

/* The same rows, the same model. */
static void use_rows(const kvcsa_model *m, const kvcsa_plan_params *p)
{
    const uint32_t  n = m->plan.n_layers;
    kvcsa_plan_row *rows = calloc(n, sizeof *rows);
    kvcsa_model    *again = NULL;
    kvcsa_cost      was, is;

    if (!rows)
        return;
    for (uint32_t l = 0; l < n; l++) {
        rows[l].struct_size = sizeof *rows;
        if (kvcsa_model_plan_row(m, l, &rows[l], NULL) != KVCSA_OK ||
            rows[l].cost_only != (kvi_plan_row_kind(&m->plan, l) == KVI_ROW_NONE))
            abort();
    }
    if (kvcsa_model_from_plan(rows, n, p, &again, NULL) != KVCSA_OK ||
        again->fingerprint != m->fingerprint || again->plan_hash != m->plan_hash ||
        memcmp(again->plan.rows, m->plan.rows, n * sizeof *m->plan.rows) != 0)
        abort();
    was = cost_of(m);
    is = cost_of(again);
    if (memcmp(&was, &is, sizeof was) != 0)
        abort();
    kvcsa_model_release(&again);
    free(rows);
}

/* Bytes as long as the caller promises, in a block of their own. Of a row whose size is none, nothing
 * behind it may be read. */
static void *read_rows(const uint8_t *data, size_t n_bytes, size_t *n)
{
    size_t   size;
    uint8_t *rows;

    if (n_bytes < sizeof size)
        return NULL;
    size = (size_t)kvi_load_u64(data);
    if (size >= sizeof size && size <= LARGEST_SIZE) {
        *n = n_bytes / size;
        size *= *n;
    } else {
        *n = 1;
        size = sizeof size;
    }
    if (size == 0 || !(rows = malloc(size)))
        return NULL;
    memcpy(rows, data, size);
    return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    kvcsa_plan_params p;
    kvcsa_model      *m = NULL;
    kvcsa_error       err = {0};
    void             *rows;
    size_t            n;

    if (n_bytes < N_SETTINGS)
        return 0;
    p = read_params(data);
    if (!(rows = read_rows(data + N_SETTINGS, n_bytes - N_SETTINGS, &n)))
        return 0;
    if (kvcsa_model_from_plan(rows, n, &p, &m, &err) != KVCSA_OK) {
        if (m || !err.text[0] || err.status == KVCSA_ERR_INTERNAL)
            abort();
    } else {
        use_costs(m);
        use_rows(m, &p);
        kvcsa_model_release(&m);
    }
    free(rows);
    return 0;
}
