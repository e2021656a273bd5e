/* Ways to run a text, by name: "bounded:64+entries:bf16". The grammar is in `kvcsa help diff`. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_APPEND 128u  /* tokens of an append that nobody asked for: rows of logits are held for
                          * so many */
#define MIN_APPEND 16u   /* below it an append costs more than the logits that it saves */
#define DECODER_APPEND 256u /* of decoder replay: long enough to skip something */
#define MAX_ARGS 2u
#define LAST_FORMAT KVCSA_FORMAT_INT3_F16_G32 /* what follows it is for plans only */

typedef struct reader {
    const char  *command;
    const char  *path;    /* of the model */
    const char  *whole;   /* the setting, for messages */
    cli_setting *out;
    const char  *entries; /* format's name; NULL = the model's own */
    uint64_t     span;    /* tokens; what can be hidden */
    uint64_t     decoder_append; /* 0 = not given */
} reader;

enum {
    PART_EXACT,
    PART_REPLAY,
    PART_BOUNDED,
    PART_DECODER,
    PART_WINDOW,
    PART_TOP,
    PART_CANDIDATES,
    PART_ENTRIES,
    PART_KEEP,
    PART_MASS,
    PART_DROP,
    PART_APPEND,
    PART_CHUNK,
    N_PARTS
};

static const struct {
    const char *name;
    const char *form;
    size_t      min_args, max_args;
} parts[N_PARTS] = {
    {"exact", "exact", 0, 0},
    {"replay", "replay:N", 1, 1},
    {"bounded", "bounded:N or bounded:N:chain", 1, 2},
    {"decoder", "decoder or decoder:N", 0, 1},
    {"window", "window", 0, 0},
    {"top", "top:K", 1, 1},
    {"candidates", "candidates:B", 1, 1},
    {"entries", "entries:FORMAT", 1, 1},
    {"keep", "keep:FIRST:LAST", 2, 2},
    {"mass", "mass:F", 1, 1},
    {"drop", "drop:BEGIN:END", 2, 2},
    {"append", "append:N", 1, 1},
    {"chunk", "chunk:N", 1, 1},
};

/* ------------------------------------------------------------------ arguments */

/* min..max; a message otherwise. */
static int number(const reader *r, const char *what, const char *text, uint64_t min, uint64_t max,
                  uint64_t *out)
{
    uint64_t v = 0;
    int      bad = !*text;

    for (const char *p = text; *p && !bad; p++) {
        const uint64_t digit = (uint64_t)(*p - '0');

        bad = *p < '0' || *p > '9' || v > (max - digit) / 10;
        v = v * 10 + digit;
    }
    if (bad || v < min || v > max)
        return cli_usage(r->command, "%s: %s is \"%s\", must be a number %llu..%llu", r->whole,
                         what, text, (unsigned long long)min, (unsigned long long)max);
    *out = v;
    return CLI_OK;
}

static int number_u32(const reader *r, const char *what, const char *text, uint32_t *out)
{
    uint64_t  v = 0;
    const int rc = number(r, what, text, 1, UINT32_MAX, &v);

    *out = (uint32_t)v;
    return rc;
}

static int set_hits(reader *r, uint32_t reuse, char *const *args, size_t n_args)
{
    if (r->out->setting.hit_tokens)
        return cli_usage(r->command, "%s: replay and bounded exclude each other", r->whole);
    r->out->session.reuse = reuse;
    if (n_args == 2 && strcmp(args[1], "chain") != 0)
        return cli_usage(r->command, "%s: \"%s\" must be chain", r->whole, args[1]);
    if (n_args == 2)
        r->out->setting.flags |= KVCSA_SETTING_CHAIN_HITS;
    return number(r, "N", args[0], 1, UINT32_MAX, &r->out->setting.hit_tokens);
}

static int set_decoder(reader *r, char *const *args, size_t n_args)
{
    r->out->session.decoder_replay = KVCSA_DECODER_REPLAY_ON;
    return n_args ? number(r, "N", args[0], 1, UINT32_MAX, &r->decoder_append) : CLI_OK;
}

static int set_entries(reader *r, const char *format)
{
    const char *names[LAST_FORMAT];
    const char *near;

    for (uint32_t f = 0; f < LAST_FORMAT; f++) {
        names[f] = kvcsa_format_name(f + 1);
        if (strcmp(names[f], format) == 0)
            r->entries = names[f];
    }
    if (r->entries)
        return CLI_OK;
    near = cli_nearest(format, names, LAST_FORMAT);
    if (near)
        return cli_usage(r->command, "%s: there is no format \"%s\"; did you mean %s?", r->whole,
                         format, near);
    return cli_usage(r->command, "%s: there is no format \"%s\"", r->whole, format);
}

static int set_keep(reader *r, char *const *args)
{
    int rc = number(r, "FIRST", args[0], 0, UINT32_MAX, &r->out->setting.keep_first_tokens);

    if (rc == CLI_OK)
        rc = number(r, "LAST", args[1], 1, UINT32_MAX, &r->out->setting.keep_last_tokens);
    return rc;
}

static int set_mass(reader *r, const char *text)
{
    char       *end = NULL;
    const float f = strtof(text, &end);

    if (end == text || *end || !(f > 0 && f <= 1))
        return cli_usage(r->command, "%s: F is \"%s\", must be above 0 and at most 1", r->whole,
                         text);
    r->out->setting.keep_fraction = f;
    return CLI_OK;
}

static int set_drop(reader *r, char *const *args)
{
    uint64_t *const hidden = r->out->hidden;
    size_t *const   n = &r->out->setting.n_hidden;
    uint64_t        begin = 0;
    uint64_t        end = UINT64_MAX;
    int             rc;

    if (*n == CLI_MAX_LIST)
        return cli_usage(r->command, "%s: drop may be given %u times", r->whole, CLI_MAX_LIST);
    if ((rc = number(r, "BEGIN", args[0], 0, UINT32_MAX, &begin)) != CLI_OK ||
        (strcmp(args[1], "end") != 0 &&
         (rc = number(r, "END", args[1], 1, UINT32_MAX, &end)) != CLI_OK))
        return rc;
    if (begin >= end || begin % r->span || (end != UINT64_MAX && end % r->span))
        return cli_usage(r->command,
                         "%s: BEGIN and END must be multiples of %llu tokens, BEGIN below END",
                         r->whole, (unsigned long long)r->span);
    for (size_t i = 0; i < *n; i++)
        if (begin < hidden[2 * i + 1] && end > hidden[2 * i])
            return cli_usage(r->command, "%s: two drops overlap", r->whole);
    hidden[2 * *n] = begin;
    hidden[2 * *n + 1] = end;
    ++*n;
    return CLI_OK;
}

static int set_part(reader *r, int part, char *const *args, size_t n_args)
{
    switch (part) {
    case PART_REPLAY:
        return set_hits(r, KVCSA_REUSE_EXACT, args, n_args);
    case PART_BOUNDED:
        return set_hits(r, KVCSA_REUSE_BOUNDED, args, n_args);
    case PART_DECODER:
        return set_decoder(r, args, n_args);
    case PART_WINDOW:
        r->out->session.flags |= KVCSA_SESSION_WINDOW_ONLY;
        return CLI_OK;
    case PART_TOP:
        return number_u32(r, "K", args[0], &r->out->session.select_entries);
    case PART_CANDIDATES:
        return number_u32(r, "B", args[0], &r->out->session.candidate_blocks);
    case PART_ENTRIES:
        return set_entries(r, args[0]);
    case PART_KEEP:
        return set_keep(r, args);
    case PART_MASS:
        return set_mass(r, args[0]);
    case PART_DROP:
        return set_drop(r, args);
    case PART_APPEND:
        return number(r, "N", args[0], 1, UINT32_MAX, &r->out->setting.append_tokens);
    case PART_CHUNK:
        return number_u32(r, "N", args[0], &r->out->session.chunk_tokens);
    default: /* exact says nothing */
        return CLI_OK;
    }
}

/* ------------------------------------------------------------------ parts */

static int find_part(const reader *r, const char *name, int *part)
{
    const char *names[N_PARTS];
    const char *near;

    for (int i = 0; i < N_PARTS; i++) {
        names[i] = parts[i].name;
        if (strcmp(names[i], name) == 0) {
            *part = i;
            return CLI_OK;
        }
    }
    near = cli_nearest(name, names, N_PARTS);
    if (near)
        return cli_usage(r->command, "%s: there is no setting \"%s\"; did you mean %s?", r->whole,
                         name, near);
    return cli_usage(r->command, "%s: there is no setting \"%s\"", r->whole, name);
}

/* One part, cut at its colons in place. */
static int read_part(reader *r, char *word, uint32_t *seen)
{
    char  *args[MAX_ARGS] = {0};
    size_t n_args = 0;
    int    part = 0;
    int    rc;

    for (char *colon = strchr(word, ':'); colon; colon = strchr(colon + 1, ':')) {
        *colon = 0;
        if (n_args < MAX_ARGS)
            args[n_args] = colon + 1;
        n_args++;
    }
    if ((rc = find_part(r, word, &part)) != CLI_OK)
        return rc;
    if (n_args < parts[part].min_args || n_args > parts[part].max_args)
        return cli_usage(r->command, "%s: write %s", r->whole, parts[part].form);
    if (*seen & 1u << part && part != PART_DROP)
        return cli_usage(r->command, "%s: %s stands there twice", r->whole, word);
    *seen |= 1u << part;
    return set_part(r, part, args, n_args);
}

static int read_parts(reader *r)
{
    char    *copy = strdup(r->whole);
    char    *word = copy;
    uint32_t seen = 0;
    int      rc = CLI_OK;

    if (!copy)
        return cli_no_memory();
    while (word && rc == CLI_OK) {
        char *plus = strchr(word, '+');

        if (plus)
            *plus = 0;
        rc = read_part(r, word, &seen);
        word = plus ? plus + 1 : NULL;
    }
    free(copy);
    if (rc == CLI_OK && seen & 1u << PART_EXACT && seen != 1u << PART_EXACT)
        return cli_usage(r->command, "%s: exact stands alone", r->whole);
    return rc;
}

/* The largest divisor of n up to MAX_APPEND, or n itself where all of those are small. */
static uint64_t append_for_hits(uint64_t n)
{
    for (uint64_t a = n < MAX_APPEND ? n : MAX_APPEND; a >= MIN_APPEND; a--)
        if (n % a == 0)
            return a;
    return n;
}

/* Hits fall between appends. */
static int settle_append(reader *r)
{
    kvcsa_setting *s = &r->out->setting;

    if (!s->append_tokens)
        s->append_tokens = r->decoder_append;
    if (!s->append_tokens && s->hit_tokens % DECODER_APPEND == 0 &&
        r->out->session.decoder_replay == KVCSA_DECODER_REPLAY_ON)
        s->append_tokens = DECODER_APPEND;
    if (!s->append_tokens && s->hit_tokens)
        s->append_tokens = append_for_hits(s->hit_tokens);
    if (s->hit_tokens && s->hit_tokens % s->append_tokens)
        return cli_usage(r->command, "%s: a hit every %llu tokens, but appends of %llu", r->whole,
                         (unsigned long long)s->hit_tokens,
                         (unsigned long long)s->append_tokens);
    return CLI_OK;
}

/* The same checkpoint under another plan. */
static int open_with_entries(const reader *r)
{
    kvcsa_model_params p;
    kvcsa_error        err;
    char               plan[64];

    snprintf(plan, sizeof plan, "{\"entry_format\": \"%s\"}", r->entries);
    kvcsa_model_params_default(&p, sizeof p);
    p.plan = plan;
    if (kvcsa_model_open(r->path, &p, &r->out->model, &err) != KVCSA_OK)
        return cli_fail(r->whole, &err);
    return CLI_OK;
}

int cli_setting_open(const char *command, const char *text, const char *path, kvcsa_model *base,
                     kvcsa_pool *pool, cli_setting *out)
{
    kvcsa_model_info info = {.struct_size = sizeof info};
    reader           r = {.command = command, .path = path, .out = out};
    kvcsa_error      err;
    int              rc;

    memset(out, 0, sizeof *out);
    if (!(out->text = strdup(text)))
        return cli_no_memory();
    if (kvcsa_model_get_info(base, &info, &err) != KVCSA_OK)
        return cli_fail("describe model", &err);
    r.whole = out->text;
    r.span = info.span_tokens ? info.span_tokens : 1;
    kvcsa_setting_default(&out->setting, sizeof out->setting);
    kvcsa_session_params_default(&out->session, sizeof out->session);
    out->setting.pool = pool;
    out->setting.session = &out->session;
    out->setting.hidden = out->hidden;
    if ((rc = read_parts(&r)) != CLI_OK || (rc = settle_append(&r)) != CLI_OK ||
        (r.entries && (rc = open_with_entries(&r)) != CLI_OK))
        return rc;
    out->setting.model = out->model ? out->model : base;
    return CLI_OK;
}

void cli_setting_close(cli_setting *s)
{
    kvcsa_model_release(&s->model);
    free(s->text);
    memset(s, 0, sizeof *s);
}

/* ------------------------------------------------------------------ what it costs */

static double round_up(uint64_t tokens, uint64_t span)
{
    return (double)((tokens + span - 1) / span * span);
}

/* Part of the entries of n tokens that is not hidden. */
static double kept_part(const cli_setting *s, uint64_t n, uint64_t span)
{
    const kvcsa_setting *k = &s->setting;
    double               kept = 1;
    double               hidden = 0;

    if (s->session.flags & KVCSA_SESSION_WINDOW_ONLY)
        return 0;
    if (n == 0)
        return 1;
    if (k->keep_last_tokens)
        kept = fmin(1, (round_up(k->keep_first_tokens, span) +
                        round_up(k->keep_last_tokens, span)) / (double)n);
    if (k->keep_fraction > 0)
        kept *= (double)k->keep_fraction;
    for (size_t i = 0; i < k->n_hidden; i++) {
        const uint64_t begin = s->hidden[2 * i] < n ? s->hidden[2 * i] : n;
        const uint64_t end = s->hidden[2 * i + 1] < n ? s->hidden[2 * i + 1] : n;

        hidden += (double)(end - begin);
    }
    return kept * (1 - hidden / (double)n);
}

double cli_setting_rate(const cli_setting *s, uint64_t n_tokens)
{
    kvcsa_cost       cost = {.struct_size = sizeof cost};
    kvcsa_model_info info = {.struct_size = sizeof info};
    kvcsa_error      err;

    if (kvcsa_model_cost(s->setting.model, 0, &cost, &err) != KVCSA_OK ||
        kvcsa_model_get_info(s->setting.model, &info, &err) != KVCSA_OK)
        return 0;
    return cost.rate *
           kept_part(s, n_tokens, info.span_tokens ? info.span_tokens : 1);
}
