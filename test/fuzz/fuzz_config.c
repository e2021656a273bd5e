/* config.json of any family, and what is derived from it without a checkpoint: the plan, its cost
 * and the bytes of a block, and the Engram buckets. Behind a NUL stand the changes of a caller, as
 * in kvcsa_model_params.plan. */
#include "base/alloc.h"
#include "format/kv_layout.h"
#include "model/engram_hash.h"
#include "model/layer_plan.h"
#include "model/plan_override.h"
#include "plan/plan_cost.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void use_plan(const kvi_plan *plan, const kvcsa_allocator *a)
{
    kvi_kv_layout layout;
    kvcsa_cost    cost;

    kvi_plan_cost(plan, plan->max_tokens, &cost);
    if (kvi_kv_layout_init(&layout, plan, a, NULL) != KVCSA_OK)
        return;
    if ((uint64_t)layout.index_part_bytes + layout.main_part_bytes != cost.block_bytes ||
        cost.persist_bytes < cost.state_bytes || cost.resident_bytes < cost.window_read_bytes ||
        cost.read_bytes < cost.index_read_bytes)
        abort();
    kvi_kv_layout_fini(&layout, a);
}

/* The checks of the configuration are meant to leave the plan nothing to refuse but the size of a
 * block; changes may ask for what cannot be. */
static void build(const kvi_config *c, int changed, const kvcsa_allocator *a)
{
    kvi_plan           plan;
    const kvcsa_status st = kvi_layer_plan_build(c, 0, a, &plan, NULL);

    if (st != KVCSA_OK && st != KVCSA_ERR_NOMEM && st != KVCSA_ERR_ARG &&
        !(changed && st == KVCSA_ERR_FORMAT))
        abort();
    if (st == KVCSA_OK)
        use_plan(&plan, a);
    kvi_layer_plan_fini(&plan, a);
}

static void run(const char *json, size_t n_bytes, const char *plan, const kvcsa_allocator *a,
                kvi_config *c, kvi_config *changed)
{
    kvi_plan_override o;
    kvi_engram_hash   hash;

    if (kvi_config_read(json, n_bytes, "config.json", 1, c, &o, NULL) != KVCSA_OK)
        return;
    build(c, 0, a);
    if (kvi_plan_override_parse(plan, &o, NULL) == KVCSA_OK &&
        kvi_plan_override_apply(&o, c, changed, NULL) == KVCSA_OK)
        build(changed, 1, a);
    if (kvi_engram_hash_init(&hash, c, 0, a, NULL) == KVCSA_OK)
        kvi_engram_hash_fini(&hash, c, a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const uint8_t  *nul = n_bytes ? memchr(data, '\0', n_bytes) : NULL;
    const size_t    n_json = nul ? (size_t)(nul - data) : n_bytes;
    kvi_config     *c = malloc(2 * sizeof *c);
    char           *plan = calloc(n_bytes - n_json + 1, 1); /* it ends with a NUL of its own */
    kvcsa_allocator a;

    if (c && plan && kvi_allocator_import(NULL, &a, NULL) == KVCSA_OK) {
        if (nul)
            memcpy(plan, nul + 1, n_bytes - n_json - 1);
        run((const char *)data, n_json, nul ? plan : NULL, &a, &c[0], &c[1]);
    }
    free(plan);
    free(c);
    return 0;
}
