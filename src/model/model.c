/* Opening a checkpoint.
 *
 * (M1) A model never changes after kvi_model_open; only its reference count is written to.
 * (M2) Whatever fails, everything taken so far is given back: kvi_model_release works on a
 *      half-built model.
 */
#include "model/model.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "model/layer_plan.h"
#include "model/model_int.h"
#include "model/plan_override.h"
#include "text/token_map.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)
#define MAX_TOKENIZER_BYTES ((uint64_t)256 << 20)
#define MAX_TOKEN_MAP_BYTES ((uint64_t)256 << 20)
#define EDGE_BYTES 64u  /* of a tensor's sample at each end */
#define SPREAD_COUNT 8u /* pieces between them */
#define SPREAD_BYTES 16u

/* ------------------------------------------------------------------ fingerprint */

static uint64_t mix(uint64_t h, const void *data, size_t n_bytes)
{
    return kvi_hash64(data, n_bytes, h);
}

static uint64_t mix_u64(uint64_t h, uint64_t x)
{
    return mix(h, &x, sizeof x);
}

/* What the fields of the released format do not say of a family without a network. */
static uint64_t hash_cache(uint64_t h, const kvi_cache_shape *s, uint32_t n_layers)
{
    const uint64_t ints[] = {
        s->kv_heads,     s->key_width,    s->value_width,  s->value_kind,  s->rotated,
        s->entry_format, s->value_format, s->window_format, s->index_format, s->sink,
        s->state_heads,  s->state_bytes,
    };

    h = mix(h, ints, sizeof ints);
    return mix(h, s->layers, n_layers);
}

/* Field by field: the struct may grow and has padding. A new field that changes results is added at
 * the end. */
static uint64_t hash_config(const kvi_config *c)
{
    const uint64_t ints[] = {
        c->vocab_size,
        c->hidden_size,
        c->n_layers,
        c->n_draft_layers,
        c->n_heads,
        c->head_dim,
        c->rope_dim,
        c->q_lora_rank,
        c->o_lora_rank,
        c->o_groups,
        c->window,
        c->index_heads,
        c->index_dim,
        c->index_topk,
        c->candidate_blocks,
        c->candidate_block_size,
        (uint64_t)(int64_t)c->candidate_source,
        c->n_experts,
        c->n_experts_per_token,
        c->moe_inner,
        c->norm_topk_prob,
        c->hc_copies,
        c->hc_iters,
        c->n_engram_layers,
        c->engram_ngram,
        c->engram_heads,
        c->engram_head_dim,
        c->engram_pad_token,
        c->engram_compressed_vocab,
        c->engram_vocab,
        c->max_tokens,
        c->rope_original_tokens,
        (uint64_t)(int64_t)c->bos,
        (uint64_t)(int64_t)c->eos,
        (uint64_t)(int64_t)c->pad,
        (uint64_t)(int64_t)c->image,
    };
    const float reals[] = {
        c->rope_theta,     c->compress_rope_theta, c->rope_factor,
        c->rope_beta_fast, c->rope_beta_slow,      c->norm_eps,
        c->hc_eps,         c->routed_scale,        c->swiglu_limit,
    };
    uint64_t h = mix(0, c->architecture, strlen(c->architecture));

    h = mix(h, ints, sizeof ints);
    h = mix(h, reals, sizeof reals);
    h = mix(h, c->ratios, (c->n_layers + c->n_draft_layers) * sizeof c->ratios[0]);
    h = mix(h, c->kv_source, c->n_layers);
    h = mix(h, c->index_source, c->n_layers);
    h = mix(h, c->engram_layers, c->n_engram_layers * sizeof c->engram_layers[0]);
    h = mix(h, c->engram_rows, c->n_engram_layers * sizeof c->engram_rows[0]);
    return c->has_network ? h : hash_cache(h, &c->cache, c->n_layers);
}

/* A piece of every page would read the whole checkpoint; this tells a retrained one from another.
 * Routed experts (nearly all tensors of a release) give their ends only, which share pages with
 * their neighbours. */
static uint64_t hash_tensor(uint64_t h, const kvi_tensor *t)
{
    const uint64_t edge = t->n_bytes < EDGE_BYTES ? t->n_bytes : EDGE_BYTES;

    h = mix(h, t->name, strlen(t->name));
    h = mix_u64(h, t->dtype);
    h = mix(h, t->shape, t->n_dims * sizeof t->shape[0]);
    h = mix_u64(h, t->n_bytes);
    h = mix(h, t->data, (size_t)edge);
    h = mix(h, t->data + (t->n_bytes - edge), (size_t)edge);
    if (t->n_bytes < (uint64_t)(SPREAD_COUNT + 2) * EDGE_BYTES || strstr(t->name, ".ffn.experts."))
        return h;
    for (uint64_t i = 1; i <= SPREAD_COUNT; i++)
        h = mix(h, t->data + t->n_bytes / (SPREAD_COUNT + 1) * i, SPREAD_BYTES);
    return h;
}

static uint64_t fingerprint(const kvcsa_model *m)
{
    uint64_t h = hash_config(&m->config);

    if (!m->tensors)
        return h;
    kvi_tensors_advise(m->tensors, 1);
    for (size_t i = 0; i < kvi_tensors_count(m->tensors); i++)
        h = hash_tensor(h, kvi_tensors_at(m->tensors, i));
    kvi_tensors_advise(m->tensors, 0);
    return h;
}

/* ------------------------------------------------------------------ parts */

static kvcsa_status read_named(kvcsa_model *m, const char *dir, const char *name,
                               uint64_t max_bytes, kvi_file *out, kvcsa_error *err)
{
    kvcsa_status st;
    char        *path = kvi_path_join(&m->allocator, dir, name);

    memset(out, 0, sizeof *out);
    if (!path)
        return kvi_fail(err, KVCSA_ERR_NOMEM, "path of %s", name);
    st = kvi_file_open(&m->allocator, path, name, max_bytes, 0, out, err);
    kvi_strfree(&m->allocator, path);
    return st;
}

static kvcsa_status load_config(kvcsa_model *m, const char *path, int is_dir,
                                kvi_plan_override *changes, kvcsa_error *err)
{
    kvcsa_status st;
    kvi_file     file = {0};
    const char  *slash = strrchr(path, '/');
    const char  *name = is_dir ? "config.json" : slash ? slash + 1 : path;

    if (is_dir)
        st = read_named(m, path, name, MAX_CONFIG_BYTES, &file, err);
    else
        st = kvi_file_open(&m->allocator, path, name, MAX_CONFIG_BYTES, 0, &file, err);
    if (st == KVCSA_OK)
        st = kvi_config_read((const char *)file.data, (size_t)file.n_bytes, name, m->plan_only,
                             &m->config, changes, err);
    kvi_file_close(&m->allocator, &file);
    return st;
}

/* The configuration stays what the weights are; only the plan is made of the changed one. */
static kvcsa_status build_plan(kvcsa_model *m, const kvcsa_model_params *params,
                               kvi_plan_override *changes, kvcsa_error *err)
{
    kvcsa_status st;
    kvi_config   changed;

    if ((st = kvi_plan_override_parse(params->plan, changes, err)) != KVCSA_OK ||
        (!m->plan_only && (st = kvi_plan_override_runs(changes, err)) != KVCSA_OK) ||
        (st = kvi_plan_override_apply(changes, &m->config, &changed, err)) != KVCSA_OK)
        return st;
    st = kvi_layer_plan_build(&changed, params->block_tokens, &m->allocator, &m->plan, err);
    if (st == KVCSA_OK)
        return kvi_plan_hash(&m->plan, &m->allocator, &m->plan_hash, err);
    return kvi_plan_override_blame(changes, st, err);
}

static kvcsa_status load_tokenizer(kvcsa_model *m, const char *dir, kvcsa_error *err)
{
    static const char name[] = "tokenizer.json";
    kvcsa_status      st;
    kvi_file          file = {0};

    if ((st = read_named(m, dir, name, MAX_TOKENIZER_BYTES, &file, err)) == KVCSA_OK)
        st = kvi_tokenizer_open(&m->allocator, (const char *)file.data, (size_t)file.n_bytes, name,
                                &m->tokenizer, err);
    kvi_file_close(&m->allocator, &file);
    if (st == KVCSA_OK && kvi_tokenizer_size(m->tokenizer) != m->config.vocab_size)
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: has %u ids, vocab_size of config.json is %u",
                      name, kvi_tokenizer_size(m->tokenizer), m->config.vocab_size);
    return st;
}

/* From the side file if there is one, else derived. A map of another size would give wrong rows
 * without any sign. */
static kvcsa_status load_token_map(kvcsa_model *m, const char *dir, kvcsa_error *err)
{
    static const char name[] = "engram_token_map.json";
    const uint32_t    n = m->config.vocab_size;
    kvcsa_status      st;
    kvi_file          file = {0};
    uint32_t          n_compressed = 0;
    char             *path = NULL;
    int               side_file;

    if (m->config.n_engram_layers == 0)
        return KVCSA_OK;
    if (!(path = kvi_path_join(&m->allocator, dir, name)) ||
        !(m->token_map = kvi_alloc(&m->allocator, n * sizeof *m->token_map))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "token map of %u ids", n);
        goto done;
    }
    side_file = kvi_path_exists(path);
    if (!side_file)
        st = kvi_token_map_build(&m->allocator, m->tokenizer, n, m->token_map, &n_compressed, err);
    else if ((st = kvi_file_open(&m->allocator, path, name, MAX_TOKEN_MAP_BYTES, 0, &file, err)) ==
             KVCSA_OK)
        st = kvi_token_map_parse(&m->allocator, (const char *)file.data, (size_t)file.n_bytes, name,
                                 n, m->token_map, &n_compressed, err);
    if (st != KVCSA_OK)
        goto done;
    if (n_compressed != m->config.engram_compressed_vocab) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT,
                      "%s: gives %u compressed ids, engram_compressed_vocab_size is %u",
                      side_file ? name : "tokenizer.json", n_compressed,
                      m->config.engram_compressed_vocab);
        goto done;
    }
    m->engram.pad = m->token_map[m->config.engram_pad_token];
done:
    kvi_file_close(&m->allocator, &file);
    kvi_strfree(&m->allocator, path);
    return st;
}

/* Parts of the released format that a text model does not touch. */
static int is_known_unused(const char *name)
{
    static const char *const families[] = {"mtp.", "vision.", "aligner.", "image_"};
    static const char        bias_vl[] = ".ffn.gate.bias_vl";
    const size_t             n = strlen(name);

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strncmp(name, families[i], strlen(families[i])) == 0)
            return 1;
    return n >= sizeof bias_vl && strncmp(name, "layers.", 7) == 0 &&
           strcmp(name + n - (sizeof bias_vl - 1), bias_vl) == 0;
}

/* Counts, and the list of what is not used, one name a line. */
static kvcsa_status take_stock(kvcsa_model *m, kvcsa_error *err)
{
    const size_t n = kvi_tensors_count(m->tensors);
    size_t       n_chars = 1;
    char        *at;

    for (size_t i = 0; i < n; i++) {
        const kvi_tensor *t = kvi_tensors_at(m->tensors, i);

        if (t->used) {
            m->n_tensors++;
            m->weight_bytes += t->n_bytes;
            continue;
        }
        m->n_skipped++;
        m->skipped_bytes += t->n_bytes;
        n_chars += strlen(t->name) + 1; /* at most 513 each */
        if (!is_known_unused(t->name))
            kvi_log(&m->log, KVCSA_LOG_WARN, "%s: tensor %s is not part of the format, skipped",
                    t->shard, t->name);
    }
    n_chars -=
        m->n_skipped > 0; /* lines are separated, not ended: kvi_strfree wants the exact length */
    if (!(m->skipped_names = kvi_alloc(&m->allocator, n_chars)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "list of %u skipped tensors", m->n_skipped);
    at = m->skipped_names;
    for (size_t i = 0; i < n; i++) {
        const kvi_tensor *t = kvi_tensors_at(m->tensors, i);
        const size_t      length = strlen(t->name);

        if (t->used)
            continue;
        if (at != m->skipped_names)
            *at++ = '\n';
        memcpy(at, t->name, length);
        at += length;
    }
    *at = '\0';
    return KVCSA_OK;
}

static kvcsa_status load_full(kvcsa_model *m, const char *dir, int read, kvcsa_error *err)
{
    kvcsa_status st;

    if ((st = load_tokenizer(m, dir, err)) != KVCSA_OK ||
        (st = load_token_map(m, dir, err)) != KVCSA_OK ||
        (st = kvi_tensors_open_dir(&m->allocator, dir, read, &m->tensors, err)) != KVCSA_OK ||
        (st = kvi_weights_bind(&m->config, m->tensors, &m->allocator, &m->weights, err)) !=
            KVCSA_OK ||
        (st = take_stock(m, err)) != KVCSA_OK)
        return st;
    kvi_log(&m->log, KVCSA_LOG_INFO, "%s: %u tensors in use (%llu bytes), %u skipped (%llu bytes)",
            dir, m->n_tensors, (unsigned long long)m->weight_bytes, m->n_skipped,
            (unsigned long long)m->skipped_bytes);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ lifetime */

/* Directory, or with plan_only a file too. */
static kvcsa_status check_path(const char *path, int plan_only, int *is_dir, kvcsa_error *err)
{
    struct stat info;

    *is_dir = 1;
    if (!path || !path[0])
        return kvi_fail(err, KVCSA_ERR_ARG, "path is %s", path ? "empty" : "NULL");
    if (stat(path, &info) != 0)
        return kvi_file_fail(err, path, "open");
    *is_dir = S_ISDIR(info.st_mode);
    if (!*is_dir && !plan_only)
        return kvi_fail(err, KVCSA_ERR_IO, "%s: is a file, must be a checkpoint directory", path);
    return KVCSA_OK;
}

kvcsa_status kvi_model_open(const char *path, const kvcsa_model_params *params, kvcsa_model **out,
                            kvcsa_error *err)
{
    const int         plan_only = (params->flags & KVCSA_MODEL_PLAN_ONLY) != 0;
    kvi_plan_override changes;
    kvcsa_allocator   a;
    kvcsa_model      *m = NULL;
    kvcsa_status      st;
    int               is_dir;

    *out = NULL;
    if ((st = check_path(path, plan_only, &is_dir, err)) != KVCSA_OK ||
        (st = kvi_allocator_import(params->allocator, &a, err)) != KVCSA_OK)
        return st;
    if (!(m = kvi_zalloc(&a, sizeof *m)))
        return kvi_fail(err, KVCSA_ERR_NOMEM, "model of %zu bytes", sizeof *m);
    atomic_init(&m->refs, 1);
    m->allocator = a;
    if (params->log)
        m->log = *params->log;
    m->plan_only = plan_only;
    if ((st = load_config(m, path, is_dir, &changes, err)) != KVCSA_OK ||
        (st = build_plan(m, params, &changes, err)) != KVCSA_OK ||
        (st = kvi_kv_layout_init(&m->layout, &m->plan, &m->allocator, err)) != KVCSA_OK ||
        /* with plan_only too: rows that do not fit the primes are a fault of the configuration; the
           pad id comes later */
        (st = kvi_engram_hash_init(&m->engram, &m->config, 0, &m->allocator, err)) != KVCSA_OK)
        goto fail;
    if (!plan_only &&
        (st = load_full(m, path, (params->flags & KVCSA_MODEL_READ) != 0, err)) != KVCSA_OK)
        goto fail;
    if (plan_only && !(m->skipped_names = kvi_strdup(&m->allocator, ""))) {
        st = kvi_fail(err, KVCSA_ERR_NOMEM, "list of skipped tensors");
        goto fail;
    }
    m->fingerprint = fingerprint(m);
    *out = m;
    return KVCSA_OK;
fail:
    kvi_model_release(m);
    return st;
}

kvcsa_model *kvi_model_retain(kvcsa_model *model)
{
    atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
    return model;
}

void kvi_model_release(kvcsa_model *m)
{
    kvcsa_allocator a;

    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    a = m->allocator;
    kvi_strfree(&a, m->skipped_names);
    kvi_weights_fini(&m->weights, &m->config, &a);
    kvi_tensors_destroy(m->tensors);
    kvi_free(&a, m->token_map, m->config.vocab_size * sizeof *m->token_map);
    kvi_tokenizer_destroy(m->tokenizer);
    kvi_engram_hash_fini(&m->engram, &m->config, &a);
    kvi_kv_layout_fini(&m->layout, &a);
    kvi_layer_plan_fini(&m->plan, &a);
    kvi_free(&a, m, sizeof *m);
}
