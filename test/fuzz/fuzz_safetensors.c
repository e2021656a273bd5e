/* One safetensors file in memory: whatever its bytes, the table that comes out lies inside it. */
#include "base/alloc.h"
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    kvcsa_allocator a;
    kvi_tensors    *t = NULL;
    uint64_t        total = 0;

    if (kvi_allocator_import(NULL, &a, NULL) != KVCSA_OK ||
        kvi_tensors_create(&a, &t, NULL) != KVCSA_OK)
        return 0;
    if (kvi_tensors_add_file(t, data, n_bytes, "fuzz.safetensors", NULL) == KVCSA_OK) {
        for (size_t i = 0; i < kvi_tensors_count(t); i++) {
            const kvi_tensor *x = kvi_tensors_at(t, i);

            if (x->data < data || x->n_bytes > (uint64_t)(data + n_bytes - x->data) ||
                kvi_tensors_find(t, x->name) != x)
                abort();
            total += x->n_bytes;
        }
        if (total > n_bytes) /* tensors do not overlap */
            abort();
    }
    kvi_tensors_destroy(t);
    return 0;
}
