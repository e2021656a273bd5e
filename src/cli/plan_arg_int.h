/* What the commands share that look at plans only: plan and cost. */
#ifndef KVCSA_CLI_PLAN_ARG_INT_H
#define KVCSA_CLI_PLAN_ARG_INT_H

#include "cli.h"

typedef struct cli_plan {
    const char      *word; /* as it was given */
    kvcsa_model     *model;
    kvcsa_model_info info;
} cli_plan;

/* Opens the plan of PATH, PATH@KEY=VALUE,... or PATH@{JSON}; what stands behind @ changes the plan
 * (kvcsa_model_params.plan). CLI_OK, or a message was printed. Release plan->model. */
int cli_plan_open(const char *command, const char *word, cli_plan *plan);

#define CLI_LABEL 64
/* The part of a word that tells models apart, into char [CLI_LABEL]: the folder of a config.json,
 * or the name of a file, without .json; with what stands behind @. */
const char *cli_plan_label(char *buf, const char *word);

/* "1,234", "3514.25": whole numbers as cli_num. */
const char *cli_real(char *buf, double v);

/* kvcsa plan A B ... --compare */
typedef struct cli_compare {
    const char       **words;
    size_t             n_words;
    uint64_t           n_tokens; /* UINT64_MAX = as much of 4096 as all of them take */
    uint64_t           n_users;  /* 0 = n_devices */
    uint32_t           n_devices;
    int                json;
} cli_compare;

int cli_compare_plans(const cli_compare *c);

#endif
