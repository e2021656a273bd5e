/* The formats of cached rows: names and bytes. What the bytes mean is the format room's
 * business. */
#include "plan/cache_plan.h"
#include "plan/plan_cost.h"
#include "plan/plan_int.h"

#include <string.h>

static const kvi_format formats[] = {
    [KVCSA_FORMAT_FP4_E4M3_G16] = {"fp4", 16, 9, 0, 1},
    [KVCSA_FORMAT_FP4_E8M0_G32] = {"mxfp4", 32, 17, 0, 1},
    [KVCSA_FORMAT_FP8_E8M0_G32] = {"mxfp8", 32, 33, 0, 1},
    [KVCSA_FORMAT_F32] = {"f32", 1, 4, 0, 1},
    [KVCSA_FORMAT_F16] = {"f16", 1, 2, 0, 1},
    [KVCSA_FORMAT_BF16] = {"bf16", 1, 2, 0, 1},
    [KVCSA_FORMAT_FP4_AS_F32] = {"fp4-as-f32", 16, 64, 0, 1},
    [KVCSA_FORMAT_Q8_0] = {"q8_0", 32, 34, 0, 1},
    [KVCSA_FORMAT_Q4_0] = {"q4_0", 32, 18, 0, 1},
    [KVCSA_FORMAT_INT3_F16_G32] = {"int3", 32, 14, 0, 1},
    [KVCSA_FORMAT_FP8_E4M3] = {"fp8", 1, 1, 0, 0},
    [KVCSA_FORMAT_FP8_F32_G128] = {"fp8-f32", 128, 132, 0, 0},
    [KVCSA_FORMAT_INT6] = {"int6", 4, 3, 0, 0},
    [KVCSA_FORMAT_MLA_FP8_656] = {"mla-fp8-656", 576, 656, 1, 0},
    [KVCSA_FORMAT_MLA_FP4_432] = {"mla-fp4-432", 576, 432, 1, 0},
    [KVCSA_FORMAT_CSA_FP8_584] = {"csa-fp8-584", 512, 584, 1, 0},
};
_Static_assert(sizeof formats / sizeof *formats == KVI_MAX_FORMAT + 1, "a format without a row");

const kvi_format *kvi_format_find(uint32_t id)
{
    return id <= KVI_MAX_FORMAT && formats[id].name ? &formats[id] : NULL;
}

uint32_t kvi_format_row_bytes(uint32_t id, uint32_t width)
{
    const kvi_format *f = kvi_format_find(id);

    if (!f || width == 0 || width > KVI_MAX_ROW_CHANNELS || width % f->channels != 0 ||
        (f->is_record && width != f->channels))
        return 0;
    return width / f->channels * f->bytes;
}

uint32_t kvi_format_value_bytes(uint32_t id, uint32_t width)
{
    const uint32_t bytes = kvi_format_row_bytes(id, width);
    const int      has_scale = id == KVCSA_FORMAT_FP4_E4M3_G16 || id == KVCSA_FORMAT_FP4_E8M0_G32 ||
                          id == KVCSA_FORMAT_FP8_E8M0_G32;

    return has_scale && bytes ? bytes - width / formats[id].channels : bytes;
}

const char *kvi_format_name(uint32_t id)
{
    const kvi_format *f = kvi_format_find(id);

    return f ? f->name : "?";
}

uint32_t kvi_format_by_name(const char *name)
{
    for (uint32_t id = 1; id <= KVI_MAX_FORMAT; id++)
        if (formats[id].name && strcmp(formats[id].name, name) == 0)
            return id;
    return 0;
}

int kvi_format_can_store(uint32_t id)
{
    const kvi_format *f = kvi_format_find(id);

    return f && f->can_store;
}
