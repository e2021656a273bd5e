/* kvcsa info: what is in a checkpoint. */
#include "cli.h"

#include <string.h>

static int print_json(const kvcsa_model_info *i)
{
    char    fingerprint[17];
    json_t *root;
    json_t *skipped = json_array();

    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)i->fingerprint);
    for (const char *s = i->skipped_names; *s;) {
        size_t n = strcspn(s, "\n");

        json_array_append_new(skipped, cli_json_text(s, n));
        s += n + (s[n] == '\n');
    }
    root = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:i,s:i,s:i}", "architecture",
                     i->architecture, "fingerprint", fingerprint, "layers", (json_int_t)i->n_layers,
                     "hidden_size", (json_int_t)i->hidden_size, "vocab_tokens",
                     (json_int_t)i->vocab_tokens, "max_context_tokens",
                     (json_int_t)i->max_context_tokens, "tensors", (json_int_t)i->n_tensors,
                     "weight_bytes", (json_int_t)i->weight_bytes, "bos_token", i->bos_token,
                     "eos_token", i->eos_token, "pad_token", i->pad_token, "image_token",
                     i->image_token);
    json_object_set_new(root, "skipped_tensors", json_integer(i->n_skipped_tensors));
    json_object_set_new(root, "skipped_bytes", json_integer((json_int_t)i->skipped_bytes));
    json_object_set_new(root, "skipped_names", skipped);
    return cli_json_print(root);
}

static int print_text(const kvcsa_model_info *i)
{
    char a[CLI_NUM];
    char b[CLI_NUM];

    printf("architecture  %s\n", i->architecture);
    printf("fingerprint   %016llx\n", (unsigned long long)i->fingerprint);
    printf("layers        %u, hidden size %u\n", i->n_layers, i->hidden_size);
    printf("vocabulary    %s tokens\n", cli_num(a, i->vocab_tokens));
    printf("context       %s tokens at most\n", cli_num(a, i->max_context_tokens));
    printf("weights       %s B in %s tensors\n", cli_num(a, i->weight_bytes),
           cli_num(b, i->n_tensors));
    printf("not used      %s B in %s tensors\n", cli_num(a, i->skipped_bytes),
           cli_num(b, i->n_skipped_tensors));
    printf("tokens        start %d, end %d, padding %d, image %d (-1 = none)\n", i->bos_token,
           i->eos_token, i->pad_token, i->image_token);
    return cli_finish_stdout();
}

int cmd_info(int argc, char **argv)
{
    const char      *path = NULL;
    int              json = 0;
    const cli_opt    opts[] = {{"--json", CLI_FLAG, &json}};
    kvcsa_model     *model = NULL;
    kvcsa_model_info info;
    int              rc = cli_parse("info", opts, 1, argc, argv, &path, 1);

    if (rc != CLI_OK || (rc = cli_open(path, 0, &model, &info)) != CLI_OK)
        return rc;
    rc = json ? print_json(&info) : print_text(&info);
    kvcsa_model_release(&model);
    return rc;
}
