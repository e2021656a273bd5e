/* Arrays between two pages that fault: whoever reads or writes behind one dies, and writing in front of one is found. */
#ifndef FENCED_H
#define FENCED_H

#include <stddef.h>

/* n floats that end at the end of a page, all bytes GUARD of op_check.h. They stand on a stack. */
float *fenced(size_t n);
/* The same with random numbers in -size .. size. */
float *fenced_random(size_t n, float size);

/* How many arrays there are now; free_fenced(that) frees those that came later, and fails if something in front of one was written. */
size_t fence_mark(void);
void   free_fenced(size_t mark);

#endif
