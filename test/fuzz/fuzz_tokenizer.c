/* tokenizer.json, then after the first zero byte a text. Whatever opens must encode the text in
 * both modes, or refuse it without a trace, and what it encodes must decode to the text. The token
 * map and a text stream run over the same tokens. */
#include "base/alloc.h"
#include "text/text_stream.h"
#include "text/token_map.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_round_trip(const kvi_tokenizer *t, const uint8_t *text, size_t n_text,
                             uint32_t flags)
{
    int32_t *ids = malloc((n_text + 1) * sizeof *ids);
    size_t   n_ids = 0;
    size_t   at = 0;

    if (!ids)
        return;
    if (kvi_tokenizer_encode(t, (const char *)text, n_text, flags, ids, n_text + 1, &n_ids, NULL) ==
        KVCSA_OK) {
        if (n_ids > n_text)
            abort();
        for (size_t i = 0; i < n_ids; i++) {
            const uint8_t *bytes = NULL;
            size_t         n = 0;

            if (!kvi_tokenizer_bytes(t, ids[i], &bytes, &n) || n > n_text - at ||
                memcmp(bytes, text + at, n) != 0)
                abort();
            at += n;
        }
        if (at != n_text)
            abort();
    }
    free(ids);
}

static void check_map(const kvcsa_allocator *a, const kvi_tokenizer *t)
{
    const uint32_t n = kvi_tokenizer_size(t);
    uint32_t      *map = malloc(n * sizeof *map);
    uint32_t       n_compressed = 0;
    uint32_t       largest = 0;

    if (!map)
        return;
    if (kvi_token_map_build(a, t, n, map, &n_compressed, NULL) == KVCSA_OK) {
        for (uint32_t i = 0; i < n; i++) {
            if (map[i] > largest + (i > 0)) /* new ids count up */
                abort();
            largest = map[i] > largest ? map[i] : largest;
        }
        if (n_compressed != largest + 1)
            abort();
    }
    free(map);
}

static void run_stream(const kvcsa_allocator *a, const kvi_tokenizer *t, const uint8_t *text,
                       size_t n_text)
{
    static const char *const stops[] = {"ab", "\n\n", "aba"};
    kvi_text_stream         *s = NULL;
    const char              *out = NULL;
    size_t                   n = 0;
    int32_t                  stopped = -1;

    if (kvi_text_stream_create(a, t, stops, 3, &s, NULL) != KVCSA_OK)
        return;
    for (size_t i = 0; i < n_text; i++)
        if (kvi_text_stream_push(s, text[i] * 3, &out, &n, &stopped, NULL) == KVCSA_OK &&
            out[n] != 0)
            abort();
    if (kvi_text_stream_finish(s, &out, &n, NULL) == KVCSA_OK && out[n] != 0)
        abort();
    kvi_text_stream_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const uint8_t  *zero = n_bytes > 0 ? memchr(data, 0, n_bytes) : NULL;
    const size_t    n_json = zero ? (size_t)(zero - data) : n_bytes;
    const uint8_t  *text = zero ? zero + 1 : data + n_bytes;
    const size_t    n_text = n_bytes - n_json - (zero != NULL);
    kvi_tokenizer  *t = NULL;
    kvcsa_allocator a;

    if (kvi_allocator_import(NULL, &a, NULL) != KVCSA_OK ||
        kvi_tokenizer_open(&a, (const char *)data, n_json, "tokenizer.json", &t, NULL) != KVCSA_OK)
        return 0;
    check_round_trip(t, text, n_text, 0);
    check_round_trip(t, text, n_text, KVCSA_TOKENIZE_SPECIAL);
    check_map(&a, t);
    run_stream(&a, t, text, n_text);
    kvi_tokenizer_destroy(t);
    return 0;
}
