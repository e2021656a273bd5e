/* The staircases of the three cache quantisers, for asking how far a value is from the next step.
 *
 * Written from the format's definition and on purpose not with src/format: a tool that judges the library's bytes must not
 * share their mistakes. Each stair takes the fp32 value in front of the quantiser, so it includes the rounding to bf16. */
#ifndef BOUNDARY_H
#define BOUNDARY_H

#include <stdint.h>

enum { /* codes: value / scale on the element grid; scales: of the largest magnitude in a group */
    STAIR_E2M1,        /* element of a main entry or an index key */
    STAIR_E4M3,        /* element of a window row */
    STAIR_MAIN_SCALE,  /* E4M3 of amax / 6 */
    STAIR_INDEX_SCALE, /* 2^ceil(log2(amax / 6)) */
    STAIR_WINDOW_SCALE /* 2^ceil(log2(amax / 448)) */
};

typedef struct stair {
    int   kind;
    float scale; /* of the group; codes only */
} stair;

float  stair_value(const stair *s, float x);                    /* never decreases with x */
double stair_distance(const stair *s, float x, float target);   /* least change of x that brings it to `target` or beyond */
int    stair_near(const stair *s, float x, double eps);         /* a step lies within eps of x */

float e4m3_value(uint8_t code);
float e2m1_value(uint8_t code);
float e8m0_value(uint8_t code);

#endif
