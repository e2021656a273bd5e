/* A configuration read from a file, for tests of the model room. */
#ifndef TEST_CONFIG_FILE_H
#define TEST_CONFIG_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/config.h"
#include "support/checkpoint.h"

#define T1_CONFIG T1_DIR "/config.json"

static inline void load_config(const char *path, kvi_config *c)
{
    kvcsa_error err;
    size_t      n = 0;
    char       *text = read_file(path, &n);

    if (kvi_config_parse(text, n, "config.json", c, &err) != KVCSA_OK)
        fail_msg("%s", err.text);
    free(text);
}

static inline kvcsa_allocator libc_allocator(void)
{
    kvcsa_allocator a;

    assert_int_equal(kvi_allocator_import(NULL, &a, NULL), KVCSA_OK);
    return a;
}

#endif
