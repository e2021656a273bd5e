/* compare_cases GOLDEN.safetensors OURS.safetensors CASES.json --config CONFIG.json [--pre MORE.safetensors]
 *               [--lines N] [--eps E] [--bound B] [--all]
 *
 * Holds the results of run_cases against golden ones by the rules of support/compare.h. --pre names another golden file
 * for the same cases that has the values in front of decisions ("pre": 1 in every step), so that more exceptions can be
 * shown to be ties. --all also lists exceptions that follow from another. Exit status: 0 equal but for justified
 * exceptions, 1 different, 2 the files cannot be read. */
#include "support/compare.h"

#include <stdlib.h>
#include <string.h>

typedef struct paths {
    const char *file[3];
    const char *config;
    const char *pre;
} paths;

static int usage(const char *why)
{
    fprintf(stderr,
            "compare_cases: %s\nusage: compare_cases GOLDEN.safetensors OURS.safetensors CASES.json --config CONFIG.json\n"
            "                     [--pre MORE.safetensors] [--lines N] [--eps E] [--bound B] [--all]\n",
            why);
    return 2;
}

static int read_args(int argc, char **argv, paths *at, compare_params *p)
{
    int n = 0;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            if (n == 3)
                return usage("too many files");
            at->file[n++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--all") == 0) {
            p->list_all = 1;
            continue;
        }
        if (i + 1 == argc)
            return usage("an option without its value");
        if (strcmp(argv[i], "--config") == 0)
            at->config = argv[++i];
        else if (strcmp(argv[i], "--pre") == 0)
            at->pre = argv[++i];
        else if (strcmp(argv[i], "--lines") == 0)
            p->max_lines = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--eps") == 0)
            p->eps = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--exempt") == 0)
            p->bound_kl_exempt = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--bound") == 0)
            p->bound = strtod(argv[++i], NULL);
        else
            return usage("unknown option");
    }
    return n == 3 && at->config ? 0 : usage("three files and --config are needed");
}

int main(int argc, char **argv)
{
    paths            at = {0};
    compare_params   p;
    compare_totals   totals;
    compare_geometry g;
    case_list        cases = {0};
    st_file         *golden = NULL;
    st_file         *ours = NULL;
    st_file         *extra = NULL;
    char             err[512] = "";
    int              rc;

    compare_params_default(&p);
    if ((rc = read_args(argc, argv, &at, &p)) != 0)
        return rc;
    rc = 2;
    if (!(golden = st_open(at.file[0], err, sizeof err)) || !(ours = st_open(at.file[1], err, sizeof err)) ||
        (at.pre && !(extra = st_open(at.pre, err, sizeof err))) || cases_load(at.file[2], &cases, err, sizeof err) != 0 ||
        compare_geometry_load(at.config, &g, err, sizeof err) != 0) {
        fprintf(stderr, "compare_cases: %s\n", err);
    } else {
        p.golden = golden;
        p.ours = ours;
        p.extra = extra;
        p.cases = &cases;
        p.geometry = &g;
        rc = compare_run(&p, &totals);
    }
    cases_free(&cases);
    st_close(extra);
    st_close(ours);
    st_close(golden);
    return rc;
}
