#include "bench_json.h"

#include "backend/backend.h"
#include "kvcsa.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* First line of what a command prints, "" if it fails. */
static void ask(const char *command, char *text, size_t cap)
{
    FILE *f = popen(command, "r");

    text[0] = 0;
    if (!f)
        return;
    if (!fgets(text, (int)cap, f))
        text[0] = 0;
    pclose(f);
    text[strcspn(text, "\n")] = 0;
}

static json_t *machine(void)
{
    kvi_cpu_found  found;
    struct utsname system;

    kvi_cpu_find(0, &found);
    if (uname(&system) != 0)
        system.sysname[0] = system.release[0] = system.machine[0] = 0;
    return json_pack("{s:s,s:s,s:i,s:s,s:s,s:s}", "processor", found.name, "kernels", found.kernels, "cores",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "system", system.sysname, "machine", system.machine, "compiler",
#if defined(__clang__)
                     "clang " __clang_version__
#else
                     "gcc " __VERSION__
#endif
    );
}

json_t *bench_json_open(const char *file)
{
    json_t *root = file && access(file, R_OK) == 0 ? json_load_file(file, 0, NULL) : NULL;

    if (!root || !json_is_object(json_object_get(root, "parts"))) {
        json_decref(root);
        root = json_pack("{s:{}}", "parts");
    }
    json_object_set_new(root, "machine", machine());
    return root;
}

json_t *bench_json_part(int quick)
{
    const time_t now = time(NULL);
    char         date[32];
    char         commit[64];
    char         changes[64];

    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    ask("git rev-parse --short HEAD 2>/dev/null", commit, sizeof commit);
    ask("git status --porcelain --untracked-files=no 2>/dev/null", changes, sizeof changes);
    if (changes[0])
        strcat(commit, "+");
    return json_pack("{s:s,s:s,s:s,s:b}", "date", date, "commit", commit, "version", kvcsa_version_string(), "quick", quick);
}

static json_t *pack_row(const bench_row *r)
{
    json_t *j = json_pack("{s:s,s:s,s:s,s:s}", "name", r->name, "size", r->size, "detail", r->detail, "unit", r->unit);
    char    goal[48];

    bench_goal_text(r, goal, sizeof goal);
    if (r->skipped)
        json_object_set_new(j, "skipped", json_string(r->skipped));
    else
        json_object_update_new(j, json_pack("{s:f,s:f,s:b}", "min", r->min, "median", r->median, "disturbed", r->disturbed));
    if (r->bound && !r->skipped)
        json_object_update_new(j, json_pack("{s:s,s:f,s:f}", "bound", r->bound, "share", r->share, "bound_per_second", r->bound_rate));
    if (r->cores > 0)
        json_object_update_new(j, json_pack("{s:f,s:f,s:s}", "two_cores_gave", r->cores, "of_two_cores", r->of_cores,
                                            "passed_by", bench_passed_by(r)));
    if (r->bound && r->share_goal > 0)
        json_object_set_new(j, "share_goal", json_real(r->share_goal));
    if (r->peer)
        json_object_set_new(j, "peer", json_string(r->peer));
    if (r->peer && !r->skipped && !r->peer_absent)
        json_object_update_new(j, json_pack("{s:f,s:f,s:f}", "peer_min", r->peer_min, "peer_median", r->peer_median, "ratio",
                                            r->median / r->peer_median));
    json_object_update_new(j, json_pack("{s:s,s:s}", "goal", goal, "verdict", r->skipped ? "not run" : bench_verdict(r)));
    return j;
}

json_t *bench_json_rows(const bench_rows *list)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < list->n; i++)
        json_array_append_new(rows, pack_row(&list->rows[i]));
    return rows;
}

void bench_json_save(json_t *root, const char *file)
{
    if (file && json_dump_file(root, file, JSON_INDENT(1) | JSON_REAL_PRECISION(6) | JSON_SORT_KEYS) != 0)
        bench_die(file, "cannot be written");
}
