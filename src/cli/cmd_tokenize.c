/* kvcsa tokenize: text to ids. */
#include "cli.h"

#include <stdlib.h>

/* Text of a token on one line: control characters, quotes and stray bytes are escaped. */
static void print_escaped(const unsigned char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n')
            fputs("\\n", stdout);
        else if (s[i] == '"' || s[i] == '\\')
            printf("\\%c", s[i]);
        else if (s[i] < 0x20 || s[i] >= 0x7f)
            printf("\\x%02x", s[i]);
        else
            putchar(s[i]);
    }
    puts("\"");
}

static int print_list(const kvcsa_model *model, const cli_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        const char *text = NULL;
        size_t      n = 0;
        kvcsa_error err;

        if (kvcsa_model_token_text(model, ids->data[i], &text, &n, &err) != KVCSA_OK)
            return cli_fail("token text", &err);
        printf("%7d  ", ids->data[i]);
        print_escaped((const unsigned char *)text, n);
    }
    return cli_finish_stdout();
}

static int print_ids(const cli_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? " " : "", ids->data[i]);
    putchar('\n');
    return cli_finish_stdout();
}

static int print_json(const cli_ids *ids, size_t n_bytes)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ids->n; i++)
        json_array_append_new(list, json_integer(ids->data[i]));
    return cli_json_print(json_pack("{s:I,s:I,s:o}", "n_tokens", (json_int_t)ids->n, "n_bytes",
                                    (json_int_t)n_bytes, "ids", list));
}

int cmd_tokenize(int argc, char **argv)
{
    const char   *path = NULL;
    const char   *prompt = NULL;
    const char   *file = NULL;
    int           special = 0;
    int           only_ids = 0;
    int           json = 0;
    const cli_opt opts[] = {
        {"-p", CLI_TEXT, &prompt},         {"--prompt", CLI_TEXT, &prompt},
        {"-f", CLI_TEXT, &file},           {"--file", CLI_TEXT, &file},
        {"--special", CLI_FLAG, &special}, {"--ids", CLI_FLAG, &only_ids},
        {"--json", CLI_FLAG, &json},
    };
    kvcsa_model     *model = NULL;
    kvcsa_model_info info;
    cli_text         text = {0};
    cli_ids          ids = {0};
    int              rc;

    rc = cli_parse("tokenize", opts, sizeof opts / sizeof *opts, argc, argv, &path, 1);
    if (rc != CLI_OK)
        return rc;
    if (json && only_ids)
        return cli_usage("tokenize", "--ids and --json exclude each other");
    if ((rc = cli_read_text("tokenize", prompt, file, &text)) == CLI_OK &&
        (rc = cli_open(path, 0, &model, &info)) == CLI_OK &&
        (rc = cli_tokenize(model, &text, special ? KVCSA_TOKENIZE_SPECIAL : 0, -1, &ids)) ==
            CLI_OK) {
        rc = json ? print_json(&ids, text.n) : only_ids ? print_ids(&ids) : print_list(model, &ids);
    }
    kvcsa_model_release(&model);
    free(text.data);
    free(ids.data);
    return rc;
}
