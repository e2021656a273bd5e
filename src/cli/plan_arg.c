#include "plan_arg_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Where the changes of the plan begin, without the @; NULL = nowhere. A path may hold @ itself: a
 * word that names a file has no changes, and otherwise the last @ in front of any { counts. */
static const char *find_changes(const char *word)
{
    const char *json = strstr(word, "@{");
    const char *at;
    struct stat st;

    if (stat(word, &st) == 0)
        return NULL;
    if (json)
        return json + 1;
    at = strrchr(word, '@');
    return at ? at + 1 : NULL;
}

/* A number where it is one, true and false, otherwise text. */
static json_t *read_value(const char *text)
{
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);

    if (j && (json_is_number(j) || json_is_boolean(j)))
        return j;
    json_decref(j);
    return json_string(text);
}

/* "a=1,b=bf16" as an object; NULL = not of this form. Cuts `text` up. */
static json_t *read_changes(char *text)
{
    json_t *object = json_object();
    char   *part;

    while (object && (part = strsep(&text, ","))) {
        char *value = strchr(part, '=');

        if (value)
            *value++ = 0;
        if (!value || !*part || json_object_set_new(object, part, read_value(value)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static void on_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= KVCSA_LOG_WARN)
        fprintf(stderr, "kvcsa: %s\n", text);
}

static int open_changed(cli_plan *plan, const char *path, const char *changes)
{
    const kvcsa_log    log = {on_log, NULL};
    kvcsa_model_params p;
    kvcsa_error        err;

    kvcsa_model_params_default(&p, sizeof p);
    p.log = &log;
    p.flags = KVCSA_MODEL_PLAN_ONLY;
    p.plan = changes;
    if (kvcsa_model_open(path, &p, &plan->model, &err) != KVCSA_OK)
        return cli_fail(plan->word, &err);
    plan->info.struct_size = sizeof plan->info;
    if (kvcsa_model_get_info(plan->model, &plan->info, &err) == KVCSA_OK)
        return CLI_OK;
    kvcsa_model_release(&plan->model);
    return cli_fail(plan->word, &err);
}

/* "a=1,b=bf16" as JSON text, for free(); NULL = not of this form. */
static char *json_of_changes(const char *text)
{
    char   *copy = strdup(text);
    json_t *object = copy ? read_changes(copy) : NULL;
    char   *json = object ? json_dumps(object, JSON_COMPACT) : NULL;

    json_decref(object);
    free(copy);
    return json;
}

int cli_plan_open(const char *command, const char *word, cli_plan *plan)
{
    const char *changes = find_changes(word);
    char       *path = NULL;
    char       *json = NULL;
    int         rc = CLI_FAILED;

    memset(plan, 0, sizeof *plan);
    plan->word = word;
    if (!changes)
        return open_changed(plan, word, NULL);
    if (*changes != '{' && !(json = json_of_changes(changes)))
        return cli_usage(command, "\"%s\": what stands behind @ must be KEY=VALUE,...", word);
    if ((path = strndup(word, (size_t)(changes - word) - 1)))
        rc = open_changed(plan, path, json ? json : changes);
    else
        fprintf(stderr, "kvcsa: out of memory\n");
    free(path);
    free(json);
    return rc;
}

const char *cli_plan_label(char *buf, const char *word)
{
    const char  *changes = find_changes(word);
    size_t       n = changes ? (size_t)(changes - word) - 1 : strlen(word);
    const size_t tail = strlen(word) - n; /* "@..." */
    size_t       begin;

    while (n > 1 && word[n - 1] == '/')
        n--;
    if (n > 12 && strncmp(word + n - 12, "/config.json", 12) == 0)
        n -= 12;
    else if (n > 5 && strncmp(word + n - 5, ".json", 5) == 0)
        n -= 5;
    for (begin = n; begin > 0 && word[begin - 1] != '/';)
        begin--;
    snprintf(buf, CLI_LABEL, "%.*s%.*s", (int)(n - begin), word + begin, (int)tail,
             changes ? changes - 1 : "");
    return buf;
}

const char *cli_real(char *buf, double v)
{
    if (v >= 0 && v < 1e15 && v == floor(v))
        return cli_num(buf, (uint64_t)v);
    snprintf(buf, CLI_NUM, "%.10g", v);
    return buf;
}
