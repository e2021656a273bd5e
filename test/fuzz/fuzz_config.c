/* config.json, and what is derived from it without a checkpoint: the plan and the Engram buckets.
 */
#include "base/alloc.h"
#include "model/engram_hash.h"
#include "model/layer_plan.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    kvi_config     *c = malloc(sizeof *c);
    kvcsa_allocator a;
    kvi_plan        plan;
    kvi_engram_hash hash;

    if (c && kvi_allocator_import(NULL, &a, NULL) == KVCSA_OK &&
        kvi_config_parse((const char *)data, n_bytes, "config.json", c, NULL) == KVCSA_OK) {
        /* the checks of the configuration are meant to leave the plan nothing to refuse but the
         * size of a block */
        const kvcsa_status st = kvi_layer_plan_build(c, 16, &a, &plan, NULL);

        if (st != KVCSA_OK && st != KVCSA_ERR_NOMEM && st != KVCSA_ERR_ARG)
            abort();
        if (st == KVCSA_OK)
            kvi_layer_plan_fini(&plan, &a);
        if (kvi_engram_hash_init(&hash, c, 0, &a, NULL) == KVCSA_OK)
            kvi_engram_hash_fini(&hash, c, &a);
    }
    free(c);
    return 0;
}
