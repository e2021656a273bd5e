/* Is every pointer of an operator one to the device's memory? */
#ifndef APART_CHECK_H
#define APART_CHECK_H

#include "apart/apart_memory.h"

/* One a job: a value of kvi_name_params. */
#define APART_MEMBER(op) kvi_##op##_params op;
typedef union apart_params {
    KVI_EACH_OPERATOR(APART_MEMBER)
} apart_params;

#define APART_KIND(op) APART_##op,
enum { KVI_EACH_OPERATOR(APART_KIND) APART_N_OPERATORS };

/* At the call; what is the host's (matrices, experts, owners) is followed. Dies. */
void apart_check_call(const apart_memory *m, uint32_t op, const apart_params *p);
/* When it runs: the tables of pointers in the device's memory. Dies. */
void apart_check_run(const apart_memory *m, uint32_t op, const apart_params *p);

#endif
