/* kvcsa info: what is in a checkpoint, what the processor does for it, and what computes. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static json_t *cpu_json(const kvcsa_cpu_info *c)
{
    char numerics[17];

    snprintf(numerics, sizeof numerics, "%016llx", (unsigned long long)c->numerics);
    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:i}", "processor", c->processor, "kernels", c->kernels,
                     "why", c->why, "numerics", numerics, "detected", (int)c->detected, "used",
                     (int)c->used);
}

static void print_cpu(const kvcsa_cpu_info *c)
{
    printf("processor     %s\n", c->processor[0] ? c->processor : "(does not say)");
    printf("kernels       %s: %s\n", c->kernels, c->why);
}

static json_t *backend_json(const kvcsa_backend_info *b)
{
    char numerics[17];

    snprintf(numerics, sizeof numerics, "%016llx", (unsigned long long)b->numerics);
    return json_pack("{s:s,s:o,s:s,s:s,s:o,s:o,s:I,s:I}", "name", b->name, "device",
                     cli_json_text(b->device, strlen(b->device)), "kernels", b->kernels,
                     "numerics", numerics, "features",
                     cli_json_text(b->features, strlen(b->features)), "why",
                     cli_json_text(b->why, strlen(b->why)), "memory_bytes",
                     (json_int_t)b->memory_bytes, "memory_free_bytes",
                     (json_int_t)b->memory_free_bytes);
}

/* Behind a label, broken between words. */
static void print_wrapped(const char *label, const char *text)
{
    const size_t width = 84;

    for (size_t n; *text; text += n + strspn(text + n, " "), label = "") {
        n = strlen(text);
        if (n > width)
            for (n = width; n > 0 && text[n] != ' '; n--)
                ;
        n = n ? n : width; /* one long word */
        printf("%-13s %.*s\n", label, (int)n, text);
    }
}

static void print_backend(const kvcsa_backend_info *b)
{
    char total[CLI_NUM];
    char left[CLI_NUM];

    printf("backend       %s\n", b->name);
    print_wrapped("chosen since", b->why);
    if (!b->reference)
        printf("device        %s, %s\n", b->device, b->kernels);
    if (b->memory_bytes)
        printf("memory        %s, %s free\n", cli_bytes(total, b->memory_bytes),
               cli_bytes(left, b->memory_free_bytes));
    print_wrapped("operators", b->features);
}

static json_t *model_json(const kvcsa_model_info *i)
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
    return root;
}

static void print_model(const kvcsa_model_info *i)
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
}

static int get_computer(const cli_pool *how, kvcsa_cpu_info *cpu, kvcsa_backend_info *backend)
{
    kvcsa_pool *pool = NULL;
    kvcsa_error err;
    int         rc = cli_open_pool("info", how, &pool);

    if (rc == CLI_OK && kvcsa_pool_get_cpu(pool, cpu, &err) != KVCSA_OK)
        rc = cli_fail("the processor", &err);
    if (rc == CLI_OK && kvcsa_pool_get_backend(pool, backend, &err) != KVCSA_OK)
        rc = cli_fail("the backend", &err);
    kvcsa_pool_release(&pool);
    return rc;
}

int cmd_info(int argc, char **argv)
{
    const char       **words = calloc((size_t)argc + 1, sizeof *words);
    int                json = 0;
    cli_pool           how = {.threads = 1};
    const cli_opt      opts[] = {{"--json", CLI_FLAG, &json},
                                 {"--backend", CLI_TEXT, &how.backend},
                                 {"--backend-dir", CLI_TEXT, &how.backend_dir},
                                 {"", CLI_TEXT, words}};
    kvcsa_model       *model = NULL;
    kvcsa_model_info   info;
    kvcsa_cpu_info     cpu = {.struct_size = sizeof cpu};
    kvcsa_backend_info backend = {.struct_size = sizeof backend};
    int                rc;

    if (!words)
        return cli_no_memory();
    rc = cli_parse("info", opts, sizeof opts / sizeof *opts, argc, argv, NULL, 0);
    if (rc == CLI_OK && words[0] && words[1]) {
        rc = cli_usage("info", "at most one model directory");
    } else if (rc == CLI_OK && words[0]) {
        rc = cli_open(words[0], 0, &model, &info);
    }
    if (rc == CLI_OK)
        rc = get_computer(&how, &cpu, &backend);
    if (rc == CLI_OK && json) {
        json_t *root = model ? model_json(&info) : json_object();

        json_object_set_new(root, "cpu", cpu_json(&cpu));
        json_object_set_new(root, "backend", backend_json(&backend));
        rc = cli_json_print(root);
    } else if (rc == CLI_OK) {
        if (model)
            print_model(&info);
        print_cpu(&cpu);
        print_backend(&backend);
        rc = cli_finish_stdout();
    }
    kvcsa_model_release(&model);
    free(words);
    return rc;
}
