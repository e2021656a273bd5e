#include "cli.h"

#include <string.h>

static int cmd_help(int argc, char **argv)
{
    const char *text = cli_help_text(argc > 0 ? argv[0] : NULL);

    if (!text)
        return cli_usage("help", "there is no command \"%s\"", argv[0]);
    fputs(text, stdout);
    return cli_finish_stdout();
}

static int cmd_version(int argc, char **argv)
{
    if (argc > 0)
        return cli_usage("version", "\"%s\" is one word too many", argv[0]);
    printf("kvcsa %s\n", kvcsa_version_string());
    if (kvcsa_version_number() != KVCSA_VERSION_NUMBER)
        printf("built for %d.%d.%d\n", KVCSA_VERSION_MAJOR, KVCSA_VERSION_MINOR,
               KVCSA_VERSION_PATCH);
    return cli_finish_stdout();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int, char **);
    } all[] = {
        {"run", cmd_run},       {"plan", cmd_plan},       {"tokenize", cmd_tokenize},
        {"score", cmd_score},   {"info", cmd_info},       {"cost", cmd_cost},
        {"diff", cmd_diff},     {"needle", cmd_needle},   {"need", cmd_need},
        {"synth", cmd_synth},   {"help", cmd_help},       {"version", cmd_version},
        {"--help", cmd_help},   {"-h", cmd_help},         {"--version", cmd_version},
    };
    const char *names[sizeof all / sizeof *all];
    const char *near;
    int         rc;

    if (argc < 2) {
        fputs(cli_help_text(NULL), stderr);
        return CLI_USAGE;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        names[i] = all[i].name;
        if (strcmp(argv[1], all[i].name) != 0)
            continue;
        rc = all[i].run(argc - 2, argv + 2);
        return rc == CLI_HELPED ? cli_finish_stdout() : rc;
    }
    near = cli_nearest(argv[1], names, 12);
    fprintf(stderr, "kvcsa: there is no command \"%s\"%s%s%s\nSee: kvcsa help\n", argv[1],
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return CLI_USAGE;
}
