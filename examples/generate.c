/* The main job in one file: open a model, read a text into a session, write on.
 *
 *   cc generate.c $(pkg-config --cflags --libs kvcsa) -o generate
 *   ./generate examples/models/tiny "In the beginning" 40
 *
 * Every call that can fail gives a status and fills `err`; a failed call leaves its objects as they were. So error handling is
 * one label that releases what there is: release functions accept NULL. */
#include <kvcsa.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text as token ids, behind the start token if the model has one. */
static kvcsa_status read_prompt(const kvcsa_model *model, const char *text, int32_t bos, int32_t **ids, size_t *n,
                                kvcsa_error *err)
{
    const size_t start = bos >= 0;
    kvcsa_status st;

    st = kvcsa_model_tokenize(model, text, strlen(text), 0, NULL, 0, n, err); /* how many? */
    if (st != KVCSA_OK)
        return st;
    *ids = malloc((*n + start + 1) * sizeof **ids);
    if (!*ids) {
        snprintf(err->text, sizeof err->text, "no memory for %zu tokens", *n);
        return err->status = KVCSA_ERR_NOMEM;
    }
    if (start)
        (*ids)[0] = bos;
    st = kvcsa_model_tokenize(model, text, strlen(text), 0, *ids + start, *n, n, err);
    *n += start;
    return st;
}

/* Queue tokens, then compute all that is queued. Several sessions could be stepped together. */
static kvcsa_status compute(kvcsa_pool *pool, kvcsa_session *session, const int32_t *ids, size_t n, kvcsa_error *err)
{
    const kvcsa_status st = kvcsa_session_append(session, ids, n, NULL, NULL, err);

    return st != KVCSA_OK ? st : kvcsa_pool_step(pool, &session, 1, NULL, NULL, err);
}

/* Write up to n tokens to stdout as they are made. */
static kvcsa_status write_on(kvcsa_pool *pool, kvcsa_session *session, kvcsa_text_stream *stream, int32_t eos, long n,
                             kvcsa_error *err)
{
    kvcsa_sampler_params how;
    const char          *text;
    size_t               n_bytes;
    int32_t              token;
    int32_t              stopped = -1;
    kvcsa_status         st = KVCSA_OK;

    kvcsa_sampler_params_default(&how, sizeof how); /* greedy; see temperature, top_p, seed */
    for (long i = 0; i < n && stopped < 0; i++) {
        if (i > 0 && (st = compute(pool, session, &token, 1, err)) != KVCSA_OK)
            return st;
        if ((st = kvcsa_session_sample(session, &how, &token, err)) != KVCSA_OK)
            return st;
        if (token == eos)
            break;
        if ((st = kvcsa_text_stream_push(stream, token, &text, &n_bytes, &stopped, err)) != KVCSA_OK)
            return st;
        fwrite(text, 1, n_bytes, stdout); /* never half a character */
        fflush(stdout);
    }
    if ((st = kvcsa_text_stream_finish(stream, &text, &n_bytes, err)) == KVCSA_OK) {
        fwrite(text, 1, n_bytes, stdout);
        putchar('\n');
    }
    return st;
}

int main(int argc, char **argv)
{
    kvcsa_model       *model = NULL;
    kvcsa_pool        *pool = NULL;
    kvcsa_session     *session = NULL;
    kvcsa_text_stream *stream = NULL;
    kvcsa_model_info   info = {.struct_size = sizeof info};
    kvcsa_cost         cost = {.struct_size = sizeof cost};
    kvcsa_error        err = {.status = KVCSA_OK};
    int32_t           *ids = NULL;
    size_t             n = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: generate MODEL TEXT TOKENS\n");
        return 2;
    }
    /* NULL as parameters means all defaults: no log, libc's allocator, one thread per core, no limit of bytes. */
    if (kvcsa_model_open(argv[1], NULL, &model, &err) != KVCSA_OK ||
        kvcsa_model_get_info(model, &info, &err) != KVCSA_OK || kvcsa_pool_create(NULL, &pool, &err) != KVCSA_OK ||
        kvcsa_session_create(pool, model, NULL, &session, &err) != KVCSA_OK ||
        kvcsa_text_stream_create(model, NULL, 0, &stream, &err) != KVCSA_OK)
        goto done;
    if (read_prompt(model, argv[2], info.bos_token, &ids, &n, &err) != KVCSA_OK ||
        compute(pool, session, ids, n, &err) != KVCSA_OK || kvcsa_model_cost(model, n, &cost, &err) != KVCSA_OK)
        goto done;
    fprintf(stderr, "%zu tokens read; the cache holds %llu bytes, %g more with each token\n", n,
            (unsigned long long)cost.resident_bytes, (double)cost.rate_bytes_per_token);
    write_on(pool, session, stream, info.eos_token, atol(argv[3]), &err);
done:
    if (err.status != KVCSA_OK)
        fprintf(stderr, "generate: %s (%s)\n", err.text, kvcsa_status_name(err.status));
    free(ids);
    kvcsa_text_stream_release(&stream);
    kvcsa_session_release(&session);
    kvcsa_pool_release(&pool);
    kvcsa_model_release(&model);
    return err.status == KVCSA_OK ? 0 : 1;
}
