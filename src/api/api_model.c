#include "api/api_call.h"
#include "base/alloc.h"
#include "model/model.h"
#include "plan/plan_cost.h"
#include "session/estimate.h"
#include "text/prompt.h"
#include "text/text_stream.h"

KVI_NO_TAIL_PADDING(kvcsa_model_params, plan);
KVI_NO_TAIL_PADDING(kvcsa_model_info, reserved);
KVI_NO_TAIL_PADDING(kvcsa_plan_row, cost_only);
KVI_NO_TAIL_PADDING(kvcsa_cost, window_read_bytes);
KVI_NO_TAIL_PADDING(kvcsa_estimate, n_blocks);
KVI_FIRST_SIZE(kvcsa_model_params, plan, 32);
KVI_FIRST_SIZE(kvcsa_model_info, expert_bytes, 96);
KVI_FIRST_SIZE(kvcsa_plan_row, kv_heads, 88);
KVI_FIRST_SIZE(kvcsa_cost, rate, 80);

static const kvcsa_model_params default_model_params = {.struct_size = sizeof(kvcsa_model_params)};

const char *kvcsa_format_name(uint32_t format)
{
    return kvi_format_name(format);
}

void kvcsa_model_params_default(kvcsa_model_params *params, size_t struct_size)
{
    kvi_params_default(params, struct_size, &default_model_params, sizeof default_model_params);
}

kvcsa_status kvcsa_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out,
                              kvcsa_error *err)
{
    kvcsa_model_params p = default_model_params;
    kvcsa_status       st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    KVI_REQUIRE(path, err);
    if ((st = KVI_IMPORT_GROWN(p, plan, params, "kvcsa_model_params", err)) != KVCSA_OK)
        return st;
    if (p.flags & ~(uint32_t)(KVCSA_MODEL_PLAN_ONLY | KVCSA_MODEL_READ))
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "flags is 0x%x, unknown bits in it", p.flags);
    return kvi_model_open(path, &p, out, err);
}

void kvcsa_model_release(kvcsa_model **model)
{
    if (!model)
        return;
    kvi_model_release(*model);
    *model = NULL;
}

kvcsa_status kvcsa_model_get_info(const kvcsa_model *model, kvcsa_model_info *info,
                                  kvcsa_error *err)
{
    kvcsa_model_info i = {.struct_size = sizeof i};

    kvi_error_clear(err);
    KVI_REQUIRE(model, err);
    KVI_REQUIRE(info, err);
    i.architecture = model->config.architecture;
    i.skipped_names = model->skipped_names ? model->skipped_names : "";
    i.max_context_tokens = model->plan.max_tokens;
    i.weight_bytes = model->weight_bytes;
    i.skipped_bytes = model->skipped_bytes;
    i.fingerprint = model->fingerprint;
    i.n_tensors = model->n_tensors;
    i.n_skipped_tensors = model->n_skipped;
    i.vocab_tokens = model->config.vocab_size;
    i.n_layers = model->plan.n_layers;
    i.hidden_size = model->config.hidden_size;
    i.block_tokens = model->plan.block_tokens;
    i.bos_token = model->config.bos;
    i.eos_token = model->config.eos;
    i.pad_token = model->config.pad;
    i.image_token = model->config.image;
    i.expert_bytes = model->config.expert_bytes;
    i.n_experts = model->config.n_experts;
    i.n_experts_per_token = model->config.n_experts_per_token;
    i.n_moe_layers = model->config.n_moe_layers;
    i.span_tokens = kvi_plan_has_index(&model->plan) ? kvi_plan_span_tokens(&model->plan) : 0;
    for (uint32_t l = 0; l < model->plan.n_layers; l++)
        i.cost_only |= model->plan.rows[l].cost_only;
    return KVI_EXPORT_GROWN(i, expert_bytes, info, "kvcsa_model_info", err);
}

kvcsa_status kvcsa_model_plan_row(const kvcsa_model *model, uint32_t layer, kvcsa_plan_row *row,
                                  kvcsa_error *err)
{
    kvcsa_plan_row r = {.struct_size = sizeof r};

    kvi_error_clear(err);
    KVI_REQUIRE(model, err);
    KVI_REQUIRE(row, err);
    if (layer >= model->plan.n_layers)
        return kvi_fail(err, KVCSA_ERR_ARG, "layer is %u, must be below %u", layer,
                        model->plan.n_layers);
    kvi_plan_public_row(&model->plan, layer, &r);
    return KVI_EXPORT_GROWN(r, kv_heads, row, "kvcsa_plan_row", err);
}

kvcsa_status kvcsa_model_cost(const kvcsa_model *model, uint64_t n_tokens, kvcsa_cost *cost,
                              kvcsa_error *err)
{
    kvcsa_cost c = {.struct_size = sizeof c};

    kvi_error_clear(err);
    KVI_REQUIRE(model, err);
    KVI_REQUIRE(cost, err);
    if (n_tokens > model->plan.max_tokens)
        return kvi_fail(err, KVCSA_ERR_LIMIT, "n_tokens is %llu, the context limit is %llu",
                        (unsigned long long)n_tokens, (unsigned long long)model->plan.max_tokens);
    kvi_plan_cost(&model->plan, n_tokens, &c);
    return KVI_EXPORT_GROWN(c, rate, cost, "kvcsa_cost", err);
}

kvcsa_status kvcsa_model_estimate(const kvcsa_model *model, const kvcsa_session_params *params,
                                  uint64_t n_tokens, uint64_t n_sessions, uint64_t n_shared_tokens,
                                  kvcsa_estimate *estimate, kvcsa_error *err)
{
    kvcsa_session_params p = {.struct_size = sizeof p}; /* all defaults are 0 */
    kvcsa_estimate       e = {.struct_size = sizeof e};
    kvcsa_status         st;

    kvi_error_clear(err);
    KVI_REQUIRE(model, err);
    KVI_REQUIRE(estimate, err);
    if ((st = KVI_EXPORT(e, estimate, "kvcsa_estimate", err)) != KVCSA_OK ||
        (st = KVI_IMPORT_GROWN(p, salt, params, "kvcsa_session_params", err)) != KVCSA_OK ||
        (st = kvi_estimate(model, &p, n_tokens, n_sessions, n_shared_tokens, &e, err)) != KVCSA_OK)
        return st;
    return KVI_EXPORT(e, estimate, "kvcsa_estimate", err);
}

static kvcsa_status need_tokenizer(const kvcsa_model *model, kvcsa_error *err)
{
    if (!model->tokenizer)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "the model was opened for its plan only, it has no tokenizer");
    return KVCSA_OK;
}

kvcsa_status kvcsa_model_tokenize(const kvcsa_model *model, const char *text, size_t n_bytes,
                                  uint32_t flags, int32_t *ids, size_t cap, size_t *n_ids,
                                  kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_ids, err);
    *n_ids = 0;
    KVI_REQUIRE(model, err);
    if (n_bytes)
        KVI_REQUIRE(text, err);
    if (cap)
        KVI_REQUIRE(ids, err);
    if (flags & ~(uint32_t)KVCSA_TOKENIZE_SPECIAL)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED, "flags is 0x%x, unknown bits in it", flags);
    if ((st = need_tokenizer(model, err)) != KVCSA_OK)
        return st;
    return kvi_tokenizer_encode(model->tokenizer, text, n_bytes, flags, ids, cap, n_ids, err);
}

static kvcsa_status token_bytes(const kvcsa_model *model, int32_t id, const uint8_t **bytes,
                                size_t *n, kvcsa_error *err)
{
    if (!kvi_tokenizer_bytes(model->tokenizer, id, bytes, n))
        return kvi_fail(err, KVCSA_ERR_ARG, "token id is %d, must be in 0..%u", id,
                        kvi_tokenizer_size(model->tokenizer) - 1);
    return KVCSA_OK;
}

kvcsa_status kvcsa_model_token_text(const kvcsa_model *model, int32_t id, const char **text,
                                    size_t *n_bytes, kvcsa_error *err)
{
    const uint8_t *bytes = NULL;
    size_t         n = 0;
    kvcsa_status   st;

    kvi_error_clear(err);
    KVI_REQUIRE(text, err);
    *text = NULL;
    KVI_REQUIRE(n_bytes, err);
    *n_bytes = 0;
    KVI_REQUIRE(model, err);
    if ((st = need_tokenizer(model, err)) != KVCSA_OK ||
        (st = token_bytes(model, id, &bytes, &n, err)) != KVCSA_OK)
        return st;
    *text = (const char *)bytes;
    *n_bytes = n;
    return KVCSA_OK;
}

kvcsa_status kvcsa_model_detokenize(const kvcsa_model *model, const int32_t *ids, size_t n_ids,
                                    char *text, size_t cap, size_t *n_bytes, kvcsa_error *err)
{
    size_t       total = 0;
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_bytes, err);
    *n_bytes = 0;
    KVI_REQUIRE(model, err);
    if (n_ids)
        KVI_REQUIRE(ids, err);
    if (cap)
        KVI_REQUIRE(text, err);
    if ((st = need_tokenizer(model, err)) != KVCSA_OK)
        return st;
    for (size_t i = 0; i < n_ids; i++) { /* first pass: nothing is written if an id is wrong */
        const uint8_t *bytes = NULL;
        size_t         n = 0;

        if ((st = token_bytes(model, ids[i], &bytes, &n, err)) != KVCSA_OK)
            return st;
        total += n;
    }
    *n_bytes = total;
    for (size_t i = 0, at = 0; i < n_ids && at < cap; i++) {
        const uint8_t *bytes = NULL;
        size_t         n = 0;

        kvi_tokenizer_bytes(model->tokenizer, ids[i], &bytes, &n);
        for (size_t k = 0; k < n && at < cap; k++)
            text[at++] = (char)bytes[k];
    }
    return KVCSA_OK;
}

kvcsa_status kvcsa_model_chat_prompt(const kvcsa_model *model, const kvcsa_message *messages,
                                     size_t n_messages, int32_t *ids, size_t cap, size_t *n_ids,
                                     kvcsa_error *err)
{
    kvcsa_status st;

    kvi_error_clear(err);
    KVI_REQUIRE(n_ids, err);
    *n_ids = 0;
    KVI_REQUIRE(model, err);
    if (n_messages)
        KVI_REQUIRE(messages, err);
    if (cap)
        KVI_REQUIRE(ids, err);
    if ((st = need_tokenizer(model, err)) != KVCSA_OK)
        return st;
    return kvi_prompt_chat(model->tokenizer, model->config.bos, model->config.eos, messages,
                           n_messages, ids, cap, n_ids, err);
}

/* A stream keeps its model. */
struct kvcsa_text_stream {
    kvcsa_model     *model;
    kvi_text_stream *stream;
};

kvcsa_status kvcsa_text_stream_create(kvcsa_model *model, const char *const *stops, size_t n_stops,
                                      kvcsa_text_stream **out, kvcsa_error *err)
{
    kvcsa_text_stream *s = NULL;
    kvcsa_status       st;

    kvi_error_clear(err);
    KVI_REQUIRE(out, err);
    *out = NULL;
    KVI_REQUIRE(model, err);
    if (n_stops)
        KVI_REQUIRE(stops, err);
    if ((st = need_tokenizer(model, err)) != KVCSA_OK)
        return st;
    if (!(s = kvi_zalloc(&model->allocator, sizeof *s)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "text stream of %zu bytes", sizeof *s);
    st = kvi_text_stream_create(&model->allocator, model->tokenizer, stops, n_stops, &s->stream,
                                err);
    if (st != KVCSA_OK) {
        kvi_free(&model->allocator, s, sizeof *s);
        return st;
    }
    s->model = kvi_model_retain(model);
    *out = s;
    return KVCSA_OK;
}

kvcsa_status kvcsa_text_stream_push(kvcsa_text_stream *stream, int32_t token, const char **text,
                                    size_t *n_bytes, int32_t *stopped, kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(stream, err);
    KVI_REQUIRE(text, err);
    KVI_REQUIRE(n_bytes, err);
    KVI_REQUIRE(stopped, err);
    return kvi_text_stream_push(stream->stream, token, text, n_bytes, stopped, err);
}

kvcsa_status kvcsa_text_stream_finish(kvcsa_text_stream *stream, const char **text, size_t *n_bytes,
                                      kvcsa_error *err)
{
    kvi_error_clear(err);
    KVI_REQUIRE(stream, err);
    KVI_REQUIRE(text, err);
    KVI_REQUIRE(n_bytes, err);
    return kvi_text_stream_finish(stream->stream, text, n_bytes, err);
}

void kvcsa_text_stream_release(kvcsa_text_stream **stream)
{
    if (!stream || !*stream)
        return;

    kvcsa_model    *model = (*stream)->model;
    kvcsa_allocator a = model->allocator;

    kvi_text_stream_destroy((*stream)->stream);
    kvi_free(&a, *stream, sizeof **stream);
    *stream = NULL;
    kvi_model_release(model);
}
