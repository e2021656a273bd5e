/* Line and point plots as SVG: no scripts, no fonts of its own, drawn on a light ground of its own
 * so that they can be read on any page. Sizes are in pixels. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 920.0
#define TITLE_HEIGHT 40.0
#define PANEL_HEIGHT 372.0
#define PLOT_TOP 34.0        /* inside a panel: above it stands its title */
#define PLOT_HEIGHT 276.0    /* below it the numbers and the name of the axis */
#define PLOT_LEFT 84.0
#define MIN_WIDTH 400.0      /* of a plot, however long the words of its legend are */
#define LEGEND_LEFT 38.0     /* where they begin, behind a piece of line */
#define MARGIN 24.0
#define FLOOR_HEIGHT 26.0    /* of a logarithmic axis: where 0 is drawn */
#define FONT 11.0
#define CHAR_WIDTH 6.4       /* of FONT, on average; wider than most fonts have it */
#define LINE_HEIGHT 15.0
#define MAX_BOXES 128u
#define MAX_STEPS 40         /* a label gives up to so many places to others */
#define MAX_DECADES 8        /* more of them do not all get a number */

#define INK "#222222"
#define FAINT "#dddddd"
#define GROUND "#fcfcfc"

/* Colours that are told apart with any kind of colour blindness (Okabe and Ito, without yellow).
 * Dashes and markers repeat with other periods, so that no two of 40 lines look alike. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#b0508c",
                                      "#222222", "#e69f00", "#3aa0d8", "#7a5230"};
static const char *const dashes[] = {"none", "7 3", "2 2.5", "10 3 2 3", "4 4"};

#define N_COLOURS (sizeof colours / sizeof *colours)
#define N_DASHES (sizeof dashes / sizeof *dashes)
#define N_MARKERS 5u

typedef struct range { /* of one axis: values lo..hi are drawn at from..to */
    double lo, hi;     /* logarithms where log is set */
    double from, to;
    int    log;
    int    zero;       /* a logarithmic axis with a place for 0, at `floor` */
    double floor;
} range;

typedef struct box {
    double x0, y0, x1, y1;
} box;

typedef struct panel {
    FILE            *f;
    const cli_panel *p;
    double           top; /* of the plot */
    double           width;
    range            x, y;
    box              boxes[MAX_BOXES]; /* taken by markers and labels */
    size_t           n_boxes;
} panel;

/* ------------------------------------------------------------------ text */

/* Escapes for XML; what is not UTF-8 becomes '?'. */
static void put_text(FILE *f, const char *text)
{
    json_t     *j = cli_json_text(text, strlen(text));
    const char *p = j ? json_string_value(j) : "?";

    for (; *p; p++) {
        if (*p == '<')
            fputs("&lt;", f);
        else if (*p == '>')
            fputs("&gt;", f);
        else if (*p == '&')
            fputs("&amp;", f);
        else if (*p == '"')
            fputs("&quot;", f);
        else
            fputc((unsigned char)*p < ' ' ? '?' : *p, f);
    }
    json_decref(j);
}

static double text_width(const char *text)
{
    return (double)strlen(text) * CHAR_WIDTH;
}

static void text_at(FILE *f, double x, double y, const char *anchor, const char *more,
                    const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, more);
    put_text(f, text);
    fputs("</text>\n", f);
}

static void line_at(FILE *f, double x0, double y0, double x1, double y1, const char *stroke)
{
    fprintf(f,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "stroke-width=\"1\"/>\n",
            x0, y0, x1, y1, stroke);
}

/* ------------------------------------------------------------------ axes */

static double place(const range *r, double v)
{
    double t;

    if (r->log) {
        if (v <= 0)
            return r->floor;
        v = log10(v);
    }
    t = (v - r->lo) / (r->hi - r->lo);
    return r->from + fmin(1, fmax(0, t)) * (r->to - r->from); /* infinity is drawn at the end */
}

/* 1, 2 or 5 times a power of ten: about n steps in a span. */
static double round_step(double span, double n)
{
    const double raw = span / n;
    const double power = pow(10, floor(log10(raw)));
    const double digit = raw / power;

    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* Least and greatest value that can be drawn. 0 = there is none. */
static int extent(const cli_panel *p, int of_y, int log, double *lo, double *hi, int *zero)
{
    int any = 0;

    *zero = 0;
    for (size_t s = 0; s < p->n_series; s++) {
        const double *v = of_y ? p->series[s].y : p->series[s].x;

        for (size_t i = 0; i < p->series[s].n; i++) {
            if (isnan(v[i]) || isinf(v[i]))
                continue;
            if (log && v[i] <= 0) {
                *zero = 1;
                continue;
            }
            *lo = any ? fmin(*lo, v[i]) : v[i];
            *hi = any ? fmax(*hi, v[i]) : v[i];
            any = 1;
        }
    }
    return any;
}

/* `floor_towards`: where 0 is drawn, FLOOR_HEIGHT outside of lo. */
static void make_range(const cli_panel *p, int of_y, int log, double from, double to, range *r)
{
    double lo = log ? 1e-6 : 0;
    double hi = 1;

    memset(r, 0, sizeof *r);
    r->log = log;
    r->from = from;
    r->to = to;
    r->floor = from;
    extent(p, of_y, log, &lo, &hi, &r->zero);
    if (log) {
        r->lo = floor(log10(lo));
        r->hi = fmax(ceil(log10(hi)), r->lo + 1);
        if (r->zero)
            r->from += from < to ? FLOOR_HEIGHT : -FLOOR_HEIGHT;
        return;
    }
    if (lo > 0 && (lo < 0.6 * hi || lo == hi))
        lo = 0;
    if (!(hi > lo))
        hi = lo + 1;
    r->lo = lo;
    r->hi = hi;
    if (p->points || of_y) { /* markers stay clear of the frame */
        const double step = round_step(hi - lo, 6);

        r->lo = floor(lo / step + 1e-9) * step;
        r->hi = ceil(hi / step + (p->points ? 0.25 : -1e-9)) * step;
    }
}

static void grid_line(const panel *q, int of_y, double at, const char *stroke)
{
    if (of_y)
        line_at(q->f, PLOT_LEFT, at, PLOT_LEFT + q->width, at, stroke);
    else
        line_at(q->f, at, q->top, at, q->top + PLOT_HEIGHT, stroke);
}

static void number_at(const panel *q, int of_y, double at, const char *text)
{
    if (of_y)
        text_at(q->f, PLOT_LEFT - 8, at + 4, "end", "", text);
    else
        text_at(q->f, at, q->top + PLOT_HEIGHT + 18, "middle", "", text);
}

/* As 10 to a power where there are many, else like the numbers between them. */
static void power_at(const panel *q, int of_y, double at, int power, int few)
{
    const double x = of_y ? PLOT_LEFT - 8 : at;
    const double y = of_y ? at + 4 : q->top + PLOT_HEIGHT + 18;
    char         text[CLI_NUM];

    if (few) {
        snprintf(text, sizeof text, "%g", pow(10, power));
        number_at(q, of_y, at, text);
        return;
    }
    fprintf(q->f,
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">10<tspan dy=\"-5\" "
            "font-size=\"8.5\">%d</tspan></text>\n",
            x, y, of_y ? "end" : "middle", power);
}

static void log_ticks(const panel *q, int of_y, const range *r)
{
    const int n = (int)(r->hi - r->lo);
    const int every = (n + MAX_DECADES - 1) / MAX_DECADES;
    char      text[CLI_NUM];

    for (int d = (int)r->lo; d <= (int)r->hi; d++) {
        const double at = place(r, pow(10, d));

        grid_line(q, of_y, at, FAINT);
        if ((d - (int)r->lo) % every == 0)
            power_at(q, of_y, at, d, n <= 2);
        for (int k = 2; n <= 2 && d < (int)r->hi && k < 10; k++) {
            grid_line(q, of_y, place(r, k * pow(10, d)), "#eeeeee");
            snprintf(text, sizeof text, "%g", k * pow(10, d));
            if (k == 2 || k == 5)
                number_at(q, of_y, place(r, k * pow(10, d)), text);
        }
    }
    if (r->zero)
        number_at(q, of_y, r->floor, "0");
}

static void linear_ticks(const panel *q, int of_y, const range *r)
{
    const double step = round_step(r->hi - r->lo, 8);
    char         text[CLI_NUM];

    for (double k = ceil(r->lo / step - 1e-9) + 0.0; k * step <= r->hi + 1e-9 * step; k++) {
        grid_line(q, of_y, place(r, k * step), FAINT);
        snprintf(text, sizeof text, "%.10g", k * step);
        number_at(q, of_y, place(r, k * step), text);
    }
}

static void draw_axes(const panel *q)
{
    char more[96];

    for (int of_y = 0; of_y < 2; of_y++) {
        const range *r = of_y ? &q->y : &q->x;

        if (r->log)
            log_ticks(q, of_y, r);
        else
            linear_ticks(q, of_y, r);
    }
    fprintf(q->f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
            "stroke=\"" INK "\"/>\n",
            PLOT_LEFT, q->top, q->width, PLOT_HEIGHT);
    text_at(q->f, PLOT_LEFT, q->top - 12, "start", " font-weight=\"bold\" font-size=\"13\"",
            q->p->title);
    text_at(q->f, PLOT_LEFT + q->width / 2, q->top + PLOT_HEIGHT + 38, "middle",
            " font-size=\"12\"", q->p->x_label);
    snprintf(more, sizeof more, " font-size=\"12\" transform=\"rotate(-90 %.1f %.1f)\"", 24.0,
             q->top + PLOT_HEIGHT / 2);
    text_at(q->f, 24, q->top + PLOT_HEIGHT / 2, "middle", more, q->p->y_label);
}

/* ------------------------------------------------------------------ lines and markers */

static void draw_marker(FILE *f, size_t s, double x, double y, double r)
{
    const char *c = colours[s % N_COLOURS];

    switch (s % N_MARKERS) {
    case 0:
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, r, c);
        break;
    case 1:
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                x - r, y - r, 2 * r, 2 * r, c);
        break;
    case 2:
        fprintf(f, "<path d=\"M%.1f %.1fl%.1f %.1fh%.1fz\" fill=\"%s\"/>\n", x, y - r, r, 2 * r,
                -2 * r, c);
        break;
    case 3:
        fprintf(f, "<path d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\" fill=\"%s\"/>\n", x,
                y - 1.2 * r, 1.2 * r, 1.2 * r, -1.2 * r, 1.2 * r, -1.2 * r, -1.2 * r, c);
        break;
    default:
        fprintf(f,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"" GROUND
                "\" stroke=\"%s\" stroke-width=\"1.6\"/>\n",
                x, y, r, c);
    }
}

static void draw_line(const panel *q, size_t s)
{
    const cli_series *l = &q->p->series[s];
    const size_t      every = l->n / 24 + 1; /* so many markers can be told apart */
    int               pen = 0;

    fprintf(q->f,
            "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-dasharray=\"%s\" "
            "d=\"",
            colours[s % N_COLOURS], dashes[s % N_DASHES]);
    for (size_t i = 0; i < l->n; i++) {
        if (isnan(l->x[i]) || isnan(l->y[i])) { /* a gap */
            pen = 0;
            continue;
        }
        fprintf(q->f, "%s%.1f %.1f", pen ? "L" : "M", place(&q->x, l->x[i]),
                place(&q->y, l->y[i]));
        pen = 1;
    }
    fputs("\"/>\n", q->f);
    for (size_t i = s % every; i < l->n; i += every)
        if (!isnan(l->x[i]) && !isnan(l->y[i]))
            draw_marker(q->f, s, place(&q->x, l->x[i]), place(&q->y, l->y[i]), 2.8);
}

static void draw_legend(const panel *q)
{
    const double x = PLOT_LEFT + q->width + 14;
    double       y = q->top + 8;

    for (size_t s = 0; s < q->p->n_series; s++, y += LINE_HEIGHT + 2) {
        fprintf(q->f,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"1.8\" stroke-dasharray=\"%s\"/>\n",
                x, y, x + 30, y, colours[s % N_COLOURS], dashes[s % N_DASHES]);
        draw_marker(q->f, s, x + 15, y, 3.2);
        text_at(q->f, x + LEGEND_LEFT, y + 4, "start", "", q->p->series[s].label);
    }
}

/* ------------------------------------------------------------------ points and their labels */

static int is_free(const panel *q, const box *b)
{
    if (b->x0 < PLOT_LEFT + 2 || b->x1 > PLOT_LEFT + q->width - 2 || b->y0 < q->top + 2 ||
        b->y1 > q->top + PLOT_HEIGHT - 2)
        return 0;
    for (size_t i = 0; i < q->n_boxes; i++)
        if (b->x0 < q->boxes[i].x1 && q->boxes[i].x0 < b->x1 && b->y0 < q->boxes[i].y1 &&
            q->boxes[i].y0 < b->y1)
            return 0;
    return 1;
}

static void take(panel *q, const box *b)
{
    if (q->n_boxes < MAX_BOXES)
        q->boxes[q->n_boxes++] = *b;
}

/* Beside its marker if there is room; else a few lines higher or lower, further out and at the end
 * of a thin line. */
static void label_point(panel *q, size_t s, double x, double y)
{
    const double w = text_width(q->p->series[s].label);
    box          b = {0};

    for (int step = 0; step < 4 * MAX_STEPS; step++) {
        const int    rank = step / 4 + step / 2 % 2; /* 0, 1, 1, 2, 2, ... lines away */
        const double dy = (step / 2 % 2 ? -1 : 1) * rank * (LINE_HEIGHT - 2);
        const int    left = step % 2;
        const double gap = rank ? 22 : 8;

        b.x0 = left ? x - gap - w : x + gap;
        b.x1 = b.x0 + w;
        b.y0 = y + dy - LINE_HEIGHT / 2 + 1;
        b.y1 = b.y0 + LINE_HEIGHT - 2;
        if (!is_free(q, &b))
            continue;
        if (rank)
            line_at(q->f, left ? x - 4 : x + 4, y, left ? b.x1 + 2 : b.x0 - 2, y + dy, "#888888");
        text_at(q->f, b.x0, y + dy + 4, "start", "", q->p->series[s].label);
        take(q, &b);
        return;
    }
}

/* Markers first: no label may cover one. */
static void draw_points(panel *q)
{
    for (size_t s = 0; s < q->p->n_series; s++) {
        const cli_series *l = &q->p->series[s];

        for (size_t i = 0; i < l->n; i++) {
            const double x = place(&q->x, l->x[i]);
            const double y = place(&q->y, l->y[i]);

            if (isnan(l->x[i]) || isnan(l->y[i]))
                continue;
            draw_marker(q->f, s, x, y, 4.2);
            take(q, &(box){x - 5, y - 5, x + 5, y + 5});
        }
    }
    for (size_t s = 0; s < q->p->n_series; s++) {
        const cli_series *l = &q->p->series[s];

        if (l->n && !isnan(l->x[l->n - 1]) && !isnan(l->y[l->n - 1]))
            label_point(q, s, place(&q->x, l->x[l->n - 1]), place(&q->y, l->y[l->n - 1]));
    }
}

/* ------------------------------------------------------------------ the file */

/* What the legend leaves. */
static double plot_width(const cli_panel *p)
{
    const double all = WIDTH - PLOT_LEFT - MARGIN;
    double       words = 0;

    if (p->points)
        return all;
    for (size_t s = 0; s < p->n_series; s++)
        words = fmax(words, text_width(p->series[s].label));
    return fmax(all - 14 - LEGEND_LEFT - words, MIN_WIDTH);
}

static void draw_panel(FILE *f, const cli_panel *p, double top)
{
    panel q = {.f = f, .p = p, .top = top + PLOT_TOP};

    q.width = plot_width(p);
    make_range(p, 0, p->log_x, PLOT_LEFT, PLOT_LEFT + q.width, &q.x);
    make_range(p, 1, p->log_y, q.top + PLOT_HEIGHT, q.top, &q.y);
    if (q.y.zero) /* 0 stands in the middle of its band, clear of the frame */
        q.y.floor -= FLOOR_HEIGHT / 2;
    if (q.x.zero)
        q.x.floor += FLOOR_HEIGHT / 2;
    draw_axes(&q);
    if (p->points) {
        draw_points(&q);
        return;
    }
    for (size_t s = 0; s < p->n_series; s++)
        draw_line(&q, s);
    draw_legend(&q);
}

int cli_plot(const char *path, const char *title, const cli_panel *panels, size_t n_panels)
{
    const double height = TITLE_HEIGHT + (double)n_panels * PANEL_HEIGHT;
    FILE        *f = fopen(path, "w");
    int          bad = !f;

    if (f) {
        fprintf(f,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "viewBox=\"0 0 %.0f %.0f\" font-family=\"DejaVu Sans, Verdana, sans-serif\" "
                "font-size=\"%.0f\" fill=\"" INK "\">\n<title>",
                WIDTH, height, WIDTH, height, FONT);
        put_text(f, title);
        fprintf(f,
                "</title>\n<rect width=\"%.0f\" height=\"%.0f\" rx=\"6\" fill=\"" GROUND
                "\" stroke=\"#bbbbbb\"/>\n",
                WIDTH, height);
        text_at(f, WIDTH / 2, 26, "middle", " font-size=\"14\"", title);
        for (size_t i = 0; i < n_panels; i++)
            draw_panel(f, &panels[i], TITLE_HEIGHT + (double)i * PANEL_HEIGHT);
        fputs("</svg>\n", f);
        bad = ferror(f);
        bad |= fclose(f);
    }
    if (bad) {
        fprintf(stderr, "kvcsa: write %s: %s\n", path, strerror(errno));
        return CLI_FAILED;
    }
    return CLI_OK;
}
