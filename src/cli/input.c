#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT ((size_t)1 << 30)

static void on_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= KVCSA_LOG_WARN)
        fprintf(stderr, "kvcsa: %s\n", text);
}

int cli_open(const char *path, uint32_t flags, kvcsa_model **model, kvcsa_model_info *info)
{
    const kvcsa_log    log = {on_log, NULL};
    kvcsa_model_params p;
    kvcsa_error        err;

    kvcsa_model_params_default(&p, sizeof p);
    p.log = &log;
    p.flags = flags;
    if (kvcsa_model_open(path, &p, model, &err) != KVCSA_OK)
        return cli_fail("open model", &err);
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    if (kvcsa_model_get_info(*model, info, &err) != KVCSA_OK) {
        kvcsa_model_release(model);
        return cli_fail("describe model", &err);
    }
    return CLI_OK;
}

/* All of a stream, growing by doubling. errno is set on failure. */
static int slurp(FILE *f, cli_text *out)
{
    size_t cap = 1 << 16;

    for (;;) {
        char *p = realloc(out->data, cap + 1);

        if (!p)
            return -1;
        out->data = p;
        out->n += fread(p + out->n, 1, cap - out->n, f);
        p[out->n] = 0;
        if (out->n < cap)
            return ferror(f) ? -1 : 0;
        if (cap >= MAX_TEXT) {
            errno = EFBIG;
            return -1;
        }
        cap *= 2;
    }
}

int cli_read_text(const char *command, const char *prompt, const char *file, cli_text *out)
{
    FILE *f;
    int   bad;

    memset(out, 0, sizeof *out);
    if (!prompt == !file)
        return cli_usage(command, "give the text with -p TEXT or with -f FILE (- is stdin)");
    if (prompt) {
        out->n = strlen(prompt);
        if ((out->data = malloc(out->n + 1)))
            memcpy(out->data, prompt, out->n + 1);
        return out->data ? CLI_OK : CLI_FAILED;
    }
    f = strcmp(file, "-") == 0 ? stdin : fopen(file, "rb");
    bad = !f || slurp(f, out);
    if (bad)
        fprintf(stderr, "kvcsa: read %s: %s\n", file, strerror(errno));
    if (f && f != stdin)
        fclose(f);
    if (bad) {
        free(out->data);
        memset(out, 0, sizeof *out);
        return CLI_FAILED;
    }
    return CLI_OK;
}

int cli_tokenize(const kvcsa_model *model, const cli_text *text, uint32_t flags, int32_t bos,
                 cli_ids *out)
{
    const size_t cap = text->n + 1; /* no token is shorter than a byte */
    size_t       n = 0;
    kvcsa_error  err;

    out->n = 0;
    if (!(out->data = malloc((cap + 1) * sizeof *out->data)))
        return cli_no_memory();
    if (bos >= 0)
        out->data[out->n++] = bos;
    if (kvcsa_model_tokenize(model, text->data, text->n, flags, out->data + out->n, cap, &n,
                             &err) != KVCSA_OK) {
        free(out->data);
        out->data = NULL;
        return cli_fail("tokenize", &err);
    }
    out->n += n;
    return CLI_OK;
}

int cli_chat_ids(const kvcsa_model *model, const char *system, const cli_text *text, cli_ids *out)
{
    kvcsa_message m[2];
    size_t        n = 0;
    kvcsa_error   err;

    memset(out, 0, sizeof *out);
    if (memchr(text->data, 0, text->n)) {
        fprintf(stderr, "kvcsa: the text holds a NUL byte, which a chat message cannot\n");
        return CLI_FAILED;
    }
    if (system)
        m[n++] = (kvcsa_message){"system", system};
    m[n++] = (kvcsa_message){"user", text->data};
    if (kvcsa_model_chat_prompt(model, m, n, NULL, 0, &out->n, &err) != KVCSA_OK)
        return cli_fail("chat prompt", &err);
    if (!(out->data = malloc((out->n + 1) * sizeof *out->data)))
        return cli_no_memory();
    if (kvcsa_model_chat_prompt(model, m, n, out->data, out->n, &out->n, &err) != KVCSA_OK) {
        free(out->data);
        out->data = NULL;
        return cli_fail("chat prompt", &err);
    }
    return CLI_OK;
}

/* Values of KVCSA_BACKEND_*. */
static const char *const backends[] = {"auto", "cpu", "cuda"};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

static int read_backend(const char *command, const char *name, uint32_t *out)
{
    for (*out = 0; *out < N_BACKENDS; ++*out)
        if (strcmp(name, backends[*out]) == 0)
            return CLI_OK;
    return cli_usage(command, "--backend is \"%s\", must be auto, cpu or cuda", name);
}

int cli_open_pool(const char *command, const cli_pool *how, kvcsa_pool **pool)
{
    kvcsa_pool_params p;
    kvcsa_error       err;
    char             *dir = NULL;
    int               rc = CLI_OK;

    kvcsa_pool_params_default(&p, sizeof p);
    p.n_threads = how->threads;
    p.budget_bytes = how->budget;
    if (how->portable)
        p.cpu_avoid = KVCSA_CPU_AVX2 | KVCSA_CPU_AVX512 | KVCSA_CPU_NEON | KVCSA_CPU_DOTPROD;
    if (how->backend && (rc = read_backend(command, how->backend, &p.backend)) != CLI_OK)
        return rc;
    if (how->backend_dir && !(dir = realpath(how->backend_dir, NULL))) {
        fprintf(stderr, "kvcsa: read %s: %s\n", how->backend_dir, strerror(errno));
        return CLI_FAILED;
    }
    p.backend_dir = dir;
    if (kvcsa_pool_create(&p, pool, &err) != KVCSA_OK)
        rc = cli_fail("create pool", &err);
    free(dir);
    return rc;
}
