#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cli_fail(const char *doing, const kvcsa_error *err)
{
    fprintf(stderr, "kvcsa: %s: %s (%s)\n", doing, err->text, kvcsa_status_name(err->status));
    return CLI_FAILED;
}

int cli_no_memory(void)
{
    fprintf(stderr, "kvcsa: out of memory\n");
    return CLI_FAILED;
}

int cli_finish_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    perror("kvcsa: stdout");
    return CLI_FAILED;
}

int64_t cli_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double cli_rate(uint64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

const char *cli_num(char *buf, uint64_t v)
{
    char   digits[CLI_NUM];
    size_t n = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = 0;
    return buf;
}

const char *cli_bytes(char *buf, uint64_t v)
{
    static const char *const unit[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double                   x = (double)v;
    size_t                   u = 0;

    if (v < 10000) {
        snprintf(buf, CLI_NUM, "%llu B", (unsigned long long)v);
        return buf;
    }
    for (x /= 1000; x >= 1000 && u < 5; u++)
        x /= 1000;
    snprintf(buf, CLI_NUM, "%.*f %s", x < 10 ? 2 : x < 100 ? 1 : 0, x, unit[u]);
    return buf;
}

const char *cli_format_name(uint32_t format)
{
    switch (format) {
    case KVCSA_FORMAT_NONE:
        return "none";
    case KVCSA_FORMAT_FP4_E4M3_G16:
        return "fp4-e4m3-g16";
    case KVCSA_FORMAT_FP4_E8M0_G32:
        return "fp4-e8m0-g32";
    case KVCSA_FORMAT_FP8_E8M0_G32:
        return "fp8-e8m0-g32";
    default:
        return kvcsa_format_name(format);
    }
}

json_t *cli_json_text(const char *text, size_t n)
{
    json_t *j = json_stringn(text, n);
    char   *plain;

    if (j || !(plain = malloc(n + 1)))
        return j;
    for (size_t i = 0; i < n; i++)
        plain[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    j = json_stringn(plain, n);
    free(plain);
    return j;
}

json_t *cli_json_rate(double v)
{
    return v == floor(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

static void set_uint(json_t *to, const char *key, uint64_t v)
{
    json_object_set_new(to, key, json_integer((json_int_t)v));
}

void cli_json_cost(json_t *to, const kvcsa_cost *c)
{
    set_uint(to, "n_tokens", c->n_tokens);
    json_object_set_new(to, "rate", cli_json_rate(c->rate));
    set_uint(to, "const", c->const_bytes);
    set_uint(to, "resident", c->resident_bytes);
    set_uint(to, "read", c->read_bytes);
    set_uint(to, "persist", c->persist_bytes);
    set_uint(to, "pending", c->pending_bytes);
    set_uint(to, "block_tokens", c->block_tokens);
    set_uint(to, "block_bytes", c->block_bytes);
    set_uint(to, "index_part_bytes", c->index_part_bytes);
    set_uint(to, "main_part_bytes", c->main_part_bytes);
    set_uint(to, "kv_layers", c->n_kv_layers);
    json_object_set_new(to, "entry_bytes", cli_json_rate(c->entry_bytes));
    json_object_set_new(to, "sequence_factor", cli_json_rate(c->sequence_factor));
    json_object_set_new(to, "written", cli_json_rate(c->written_bytes));
    set_uint(to, "state", c->state_bytes);
    set_uint(to, "index_read", c->index_read_bytes);
    set_uint(to, "window_read", c->window_read_bytes);
}

int cli_json_print(json_t *root)
{
    int bad = !root || json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) ||
              putchar('\n') == EOF;

    json_decref(root);
    if (bad)
        fprintf(stderr, "kvcsa: writing JSON failed\n");
    return cli_finish_stdout() != CLI_OK || bad ? CLI_FAILED : CLI_OK;
}

void cli_print_cost(FILE *to, const kvcsa_cost *c)
{
    char a[CLI_NUM];
    char n[CLI_NUM];

    cli_num(n, c->n_tokens);
    fprintf(to, "  rate      %12.10g B   per token, in blocks of %u tokens (%s B)\n",
            c->rate, c->block_tokens, cli_num(a, c->block_bytes));
    fprintf(to, "  const     %12s B   per sequence, whatever its length\n",
            cli_num(a, c->const_bytes));
    fprintf(to, "  resident  %12s B   in memory at %s tokens\n", cli_num(a, c->resident_bytes), n);
    fprintf(to, "  read      %12s B   by one decode step there\n", cli_num(a, c->read_bytes));
    fprintf(to, "  persist   %12s B   to keep so that it can resume there\n",
            cli_num(a, c->persist_bytes));
}
