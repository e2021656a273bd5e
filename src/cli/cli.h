/* The command `kvcsa`: a host program like any other. It sees kvcsa.h and nothing else of the
 * library.
 *
 * Text that was asked for goes to stdout, everything else to stderr. */
#ifndef KVCSA_CLI_H
#define KVCSA_CLI_H

#include "kvcsa.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { /* exit codes */
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_HELPED = 3 /* inside: the help text was asked for and printed; main turns it into CLI_OK */
};

/* ------------------------------------------------------------------ options.c */

enum { /* cli_opt.kind, and what value points to */
    CLI_FLAG,  /* int */
    CLI_TEXT,  /* const char * */
    CLI_U32,   /* uint32_t */
    CLI_U64,   /* uint64_t */
    CLI_BYTES, /* uint64_t; accepts the suffixes K, M, G (powers of 1024) */
    CLI_F32,   /* float, finite and >= 0 */
    CLI_LIST   /* cli_list; may be repeated */
};

#define CLI_MAX_LIST 16u

typedef struct cli_list {
    const char *items[CLI_MAX_LIST];
    size_t      n;
} cli_list;

typedef struct cli_opt {
    const char *name; /* "-n" or "--json"; two entries with one value are aliases */
    int         kind;
    void       *value;
} cli_opt;

/* Reads "-x V", "--name V", "--name=V" and exactly n_pos words. An option named "" of kind
 * CLI_TEXT, whose value is a const char *[argc] of NULL, takes any further words. An unknown flag
 * is refused with the nearest known one as a hint. CLI_OK, or CLI_USAGE (a message was printed), or
 * CLI_HELPED. */
int cli_parse(const char *command, const cli_opt *opts, size_t n_opts, int argc, char **argv,
              const char **pos, size_t n_pos);

/* Prints "kvcsa COMMAND: ..." and where to find help; returns CLI_USAGE. */
int cli_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The one of `names` that `word` was probably meant to be; NULL if none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* ------------------------------------------------------------------ input.c */

typedef struct cli_text {
    char  *data; /* n bytes and a 0 */
    size_t n;
} cli_text;

typedef struct cli_ids {
    int32_t *data;
    size_t   n;
} cli_ids;

/* The text of -p, or of the file of -f ("-" = stdin). Exactly one must be set. Free with free(). */
int cli_read_text(const char *command, const char *prompt, const char *file, cli_text *out);

/* Token ids of a text, behind `bos` if that is >= 0. */
int cli_tokenize(const kvcsa_model *model, const cli_text *text, uint32_t flags, int32_t bos,
                 cli_ids *out);

/* Token ids of a conversation of one question. */
int cli_chat_ids(const kvcsa_model *model, const char *system, const cli_text *text, cli_ids *out);

/* Open a model; warnings of the library go to stderr. */
int cli_open(const char *path, uint32_t flags, kvcsa_model **model, kvcsa_model_info *info);

/* What computes: shared by all commands that do. */
typedef struct cli_pool {
    const char *backend;     /* "auto", "cpu", "cuda"; NULL = auto */
    const char *backend_dir; /* NULL = beside the library */
    uint64_t    budget;      /* bytes, 0 = no limit of its own */
    uint32_t    threads;
    int         portable;    /* no kernels of any instruction set */
} cli_pool;
#define CLI_POOL_OPTS(p)                                                                           \
    {"--backend", CLI_TEXT, &(p)->backend}, {"--backend-dir", CLI_TEXT, &(p)->backend_dir},        \
    {"--threads", CLI_U32, &(p)->threads}

/* CLI_OK, CLI_USAGE or CLI_FAILED (a message was printed). */
int cli_open_pool(const char *command, const cli_pool *how, kvcsa_pool **pool);

/* ------------------------------------------------------------------ report.c */

/* Prints "kvcsa: doing: message (KVCSA_ERR_X)"; returns CLI_FAILED. */
int cli_fail(const char *doing, const kvcsa_error *err);

/* Says so; returns CLI_FAILED. */
int cli_no_memory(void);

/* Flush stdout and notice a full disk or a closed pipe. */
int cli_finish_stdout(void);

int64_t cli_now_ns(void);
double  cli_rate(uint64_t n, int64_t ns);      /* n per second; 0 if no time has passed */

#define CLI_NUM 32
const char *cli_num(char *buf, uint64_t v);    /* "1,234,567" into char [CLI_NUM] */
const char *cli_bytes(char *buf, uint64_t v);  /* "1.2 MB", "890 B" into char [CLI_NUM] */
const char *cli_format_name(uint32_t format);  /* KVCSA_FORMAT_* */

json_t *cli_json_text(const char *text, size_t n); /* bytes that are not UTF-8 become '?' */
json_t *cli_json_rate(double v);                   /* an integer where it is one */
void    cli_json_cost(json_t *to, const kvcsa_cost *c);
int     cli_json_print(json_t *root);              /* to stdout; takes the reference */

void cli_print_cost(FILE *to, const kvcsa_cost *c);

/* ------------------------------------------------------------------ progress.c */

typedef struct cli_progress {
    const char *label;
    uint64_t    total;    /* tokens */
    uint64_t    offset;   /* tokens of earlier sessions */
    int64_t     started;  /* ns */
    int64_t     shown;    /* ns of the last update */
    int         terminal; /* a bar that is redrawn; otherwise a line now and then */
    int         quiet;
    int         drawn;
} cli_progress;

void cli_progress_start(cli_progress *p, const char *label, uint64_t total, int quiet);
void cli_progress_update(cli_progress *p, uint64_t done);
void cli_progress_end(cli_progress *p); /* clears the bar */

/* kvcsa_progress_fn; user is a cli_progress. Cancels after SIGINT. */
int32_t cli_on_progress(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued);

/* Ctrl-C asks for a clean end once; a second one kills as usual. */
void cli_catch_interrupt(void);
int  cli_interrupted(void);

/* ------------------------------------------------------------------ setting.c */

/* A way to run a text, by name: for diff, needle and need. */
typedef struct cli_setting {
    char                *text;    /* as it was given */
    kvcsa_model         *model;   /* of its own where the plan is another one; a reference */
    kvcsa_session_params session;
    kvcsa_setting        setting; /* points to the two above */
    uint64_t             hidden[2 * CLI_MAX_LIST];
} cli_setting;

/* Parts joined with '+'; the grammar is in `kvcsa help diff`. base: the model at `path`, opened;
 * pool: borrowed. The caller closes *out in every case. CLI_OK, CLI_USAGE or CLI_FAILED (a message
 * was printed). `out` must not move afterwards. */
int  cli_setting_open(const char *command, const char *text, const char *path, kvcsa_model *base,
                      kvcsa_pool *pool, cli_setting *out);
void cli_setting_close(cli_setting *s); /* accepts a zeroed one */

/* Bytes that one more token takes in the cache under a setting, at a context of n tokens. */
double cli_setting_rate(const cli_setting *s, uint64_t n_tokens);

/* ------------------------------------------------------------------ plot.c */

typedef struct cli_series {
    const char   *label;
    const double *x;
    const double *y;
    size_t        n;
} cli_series;

typedef struct cli_panel {
    const char       *title, *x_label, *y_label;
    const cli_series *series;
    size_t            n_series;
    int               log_y;   /* values <= 0 are drawn on the floor */
    int               log_x;
    int               points;  /* markers with their label beside them, no lines */
} cli_panel;

/* Panels below each other in one SVG file, readable on a white and on a dark page. CLI_OK, or
 * CLI_FAILED (a message was printed). */
int cli_plot(const char *path, const char *title, const cli_panel *panels, size_t n_panels);

/* ------------------------------------------------------------------ commands */

int cmd_run(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_cost(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_needle(int argc, char **argv);
int cmd_need(int argc, char **argv);
int cmd_synth(int argc, char **argv);

/* Texts of `kvcsa help COMMAND` that stand beside their command. */
extern const char cli_help_plan[];
extern const char cli_help_cost[];
extern const char cli_help_diff[];
extern const char cli_help_needle[];
extern const char cli_help_need[];
extern const char cli_help_synth[];

const char *cli_help_text(const char *command); /* NULL = no such command; command NULL =
                                                 * overview */

#endif
