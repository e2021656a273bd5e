/* Any test program on another backend: all of them are linked with --wrap=kvcsa_pool_create. Where the environment variable
 * KVCSA_TEST_BACKEND_DIR names a folder, a pool whose parameters leave the backend open is made with the plug-in of that folder;
 * one that asks for a backend gets it, and so does one whose parameters are an older program's or not right. */
#ifndef TEST_BACKEND_H
#define TEST_BACKEND_H

#include "kvcsa.h"

/* The folder, NULL = the library chooses: for tests that look at what only the CPU has. */
const char *test_backend_dir(void);

/* The folder `name` beside the running program, where the Makefile puts the plug-ins of tests: absolute, until the next call. */
const char *test_backend_beside(const char *name);

kvcsa_status __wrap_kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err);
kvcsa_status __real_kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out, kvcsa_error *err);

#endif
