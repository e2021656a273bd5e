#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORD 32u

int cli_usage(const char *command, const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "kvcsa %s: ", command);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fprintf(stderr, "\nSee: kvcsa help %s\n", command);
    return CLI_USAGE;
}

/* Levenshtein distance; words longer than MAX_WORD count as far away. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MAX_WORD + 1];
    size_t n = strlen(a);
    size_t m = strlen(b);

    if (n > MAX_WORD || m > MAX_WORD)
        return MAX_WORD;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diag = row[0];

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diag + (a[i - 1] != b[j - 1]);

            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diag = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *cli_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t      best_d = 3; /* three slips are another word */

    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, names[i]);

        if (d < best_d && d < strlen(names[i])) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}

/* Digits only; an optional suffix K, M or G if `bytes`. -1 = not a number, or above max. */
static int parse_uint(const char *text, uint64_t max, int bytes, uint64_t *out)
{
    char              *end = NULL;
    unsigned long long v;
    unsigned           shift = 0;

    if (text[0] < '0' || text[0] > '9')
        return -1;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (bytes && *end && strchr("KMG", *end)) {
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
        end++;
    }
    if (errno || *end || v > max >> shift)
        return -1;
    *out = (uint64_t)v << shift;
    return 0;
}

static int store(const char *command, const cli_opt *o, const char *text)
{
    uint64_t  v = 0;
    char     *end = NULL;
    float     f;
    cli_list *list;

    switch (o->kind) {
    case CLI_TEXT:
        *(const char **)o->value = text;
        return CLI_OK;
    case CLI_U32:
        if (parse_uint(text, UINT32_MAX, 0, &v))
            return cli_usage(command, "%s is \"%s\", must be a number 0..%u", o->name, text,
                             UINT32_MAX);
        *(uint32_t *)o->value = (uint32_t)v;
        return CLI_OK;
    case CLI_U64:
    case CLI_BYTES:
        if (parse_uint(text, UINT64_MAX, o->kind == CLI_BYTES, &v))
            return cli_usage(command, "%s is \"%s\", must be a number%s", o->name, text,
                             o->kind == CLI_BYTES ? ", with K, M or G behind it if you like" : "");
        *(uint64_t *)o->value = v;
        return CLI_OK;
    case CLI_F32:
        f = strtof(text, &end);
        if (end == text || *end || !isfinite(f) || f < 0)
            return cli_usage(command, "%s is \"%s\", must be a number >= 0", o->name, text);
        *(float *)o->value = f;
        return CLI_OK;
    default:
        list = o->value;
        if (list->n == CLI_MAX_LIST)
            return cli_usage(command, "%s may be given %u times", o->name, CLI_MAX_LIST);
        list->items[list->n++] = text;
        return CLI_OK;
    }
}

static int unknown(const char *command, const char *word, const cli_opt *opts, size_t n_opts)
{
    const char *names[32];
    const char *near;
    size_t      n = 0;

    for (size_t i = 0; i < n_opts && n < 32; i++)
        if (strncmp(opts[i].name, "--", 2) == 0) /* one letter is near to every other letter */
            names[n++] = opts[i].name;
    near = cli_nearest(word, names, n);
    if (near)
        return cli_usage(command, "unknown option %s; did you mean %s?", word, near);
    return cli_usage(command, "unknown option %s", word);
}

/* One option at argv[*i]; moves *i to the last word that it used. */
static int take_option(const char *command, const cli_opt *opts, size_t n_opts, int argc,
                       char **argv, int *i)
{
    const char *word = argv[*i];
    const char *eq = word[1] == '-' ? strchr(word, '=') : NULL;
    size_t      len = eq ? (size_t)(eq - word) : strlen(word);

    for (size_t k = 0; k < n_opts; k++) {
        const cli_opt *o = &opts[k];

        if (strlen(o->name) != len || strncmp(o->name, word, len) != 0)
            continue;
        if (o->kind == CLI_FLAG) {
            if (eq)
                return cli_usage(command, "%s takes no value", o->name);
            *(int *)o->value = 1;
            return CLI_OK;
        }
        if (!eq && *i + 1 >= argc)
            return cli_usage(command, "%s wants a value", o->name);
        return store(command, o, eq ? eq + 1 : argv[++*i]);
    }
    return unknown(command, word, opts, n_opts);
}

/* A word behind the first n_pos. A command that takes any number of them has an option without a
 * name, whose value is an array [argc] of NULL: the word goes to its first free place. */
static int take_word(const char *command, const cli_opt *opts, size_t n_opts, const char *word)
{
    for (size_t k = 0; k < n_opts; k++) {
        const char **words = opts[k].value;

        if (*opts[k].name)
            continue;
        while (*words)
            words++;
        *words = word;
        return CLI_OK;
    }
    return cli_usage(command, "\"%s\" is one word too many", word);
}

int cli_parse(const char *command, const cli_opt *opts, size_t n_opts, int argc, char **argv,
              const char **pos, size_t n_pos)
{
    size_t n = 0;
    int    words_only = 0;
    int    rc;

    for (int i = 0; i < argc; i++) {
        if (!words_only && strcmp(argv[i], "--") == 0) {
            words_only = 1;
        } else if (!words_only && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            fputs(cli_help_text(command), stdout);
            return CLI_HELPED;
        } else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
            if ((rc = take_option(command, opts, n_opts, argc, argv, &i)) != CLI_OK)
                return rc;
        } else if (n == n_pos) {
            if ((rc = take_word(command, opts, n_opts, argv[i])) != CLI_OK)
                return rc;
        } else {
            pos[n++] = argv[i];
        }
    }
    if (n_pos && n == 0)
        return cli_usage(command, "which model? Name its directory");
    if (n < n_pos)
        return cli_usage(command, "a word is missing behind \"%s\"", pos[n - 1]);
    return CLI_OK;
}
