#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS 30u
#define REDRAW_NS 100000000      /* ten times a second is smooth enough */
#define LINE_EVERY_NS 5000000000 /* where nothing can be redrawn */

static volatile sig_atomic_t interrupted; /* a signal handler has no other way to tell */

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

void cli_catch_interrupt(void)
{
    struct sigaction a;

    if (sigaction(SIGINT, NULL, &a) == 0 && a.sa_handler == SIG_IGN)
        return; /* whoever started us wants us to ignore it */
    memset(&a, 0, sizeof a);
    a.sa_handler = on_interrupt;
    a.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    sigaction(SIGINT, &a, NULL);
}

int cli_interrupted(void)
{
    return interrupted != 0;
}

void cli_progress_start(cli_progress *p, const char *label, uint64_t total, int quiet)
{
    const char *term = getenv("TERM");

    memset(p, 0, sizeof *p);
    p->label = label;
    p->total = total;
    p->quiet = quiet;
    p->terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    p->started = cli_now_ns();
    p->shown = p->started;
}

static void draw_bar(const cli_progress *p, uint64_t done, double per_second)
{
    char     bar[BAR_CELLS + 1];
    unsigned full = p->total ? (unsigned)((double)done * BAR_CELLS / (double)p->total) : BAR_CELLS;

    if (full > BAR_CELLS)
        full = BAR_CELLS;
    memset(bar, '#', full);
    memset(bar + full, '.', BAR_CELLS - full);
    bar[BAR_CELLS] = 0;
    fprintf(stderr, "\r%s [%s] %llu/%llu tokens, %.0f/s", p->label, bar, (unsigned long long)done,
            (unsigned long long)p->total, per_second);
    if (per_second > 0 && p->total >= done)
        fprintf(stderr, ", %.0f s to go", (double)(p->total - done) / per_second);
    fprintf(stderr, "\033[K");
    fflush(stderr);
}

void cli_progress_update(cli_progress *p, uint64_t done)
{
    const int64_t now = cli_now_ns();
    double        per_second;

    done += p->offset;
    if (p->quiet || now - p->shown < (p->terminal ? REDRAW_NS : LINE_EVERY_NS))
        return;
    p->shown = now;
    per_second = cli_rate(done, now - p->started);
    if (p->terminal) {
        draw_bar(p, done, per_second);
        p->drawn = 1;
    } else {
        fprintf(stderr, "%s: %llu of %llu tokens, %.0f/s\n", p->label, (unsigned long long)done,
                (unsigned long long)p->total, per_second);
    }
}

void cli_progress_end(cli_progress *p)
{
    if (p->drawn)
        fprintf(stderr, "\r\033[K");
    p->drawn = 0;
}

int32_t cli_on_progress(void *user, kvcsa_session *session, uint64_t n_done, uint64_t n_queued)
{
    (void)session;
    (void)n_queued;
    if (user)
        cli_progress_update(user, n_done);
    return cli_interrupted();
}
