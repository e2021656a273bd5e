/* Files and JSON text of a checkpoint. */
#include "model/model_int.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_STEP ((size_t)1 << 30) /* Linux reads at most 2^31 - 4096 bytes a call */

/* strerror depends on the host's locale; these are the ones that a user can mend. */
static const char *describe(int code)
{
    switch (code) {
    case ENOENT:
        return "no such file";
    case ENOTDIR:
        return "a part of the path is not a directory";
    case EACCES:
        return "permission denied";
    case EMFILE:
        return "too many open files";
    case ENFILE:
        return "too many open files";
    case ELOOP:
        return "too many symbolic links";
    case ENAMETOOLONG:
        return "name too long";
    case EIO:
        return "input/output error";
    case EISDIR:
        return "is a directory";
    default:
        return "system error";
    }
}

kvcsa_status kvi_file_fail(kvcsa_error *err, const char *name, const char *what)
{
    const int code = errno;

    return kvi_fail_code(err, code == ENOMEM ? KVCSA_ERR_NOMEM : KVCSA_ERR_IO, code,
                         "%s: cannot %s, errno %d (%s)", name, what, code, describe(code));
}

static kvcsa_status read_all(int fd, const char *name, uint8_t *data, uint64_t n_bytes,
                             kvcsa_error *err)
{
    uint64_t done = 0;

    while (done < n_bytes) {
        const uint64_t left = n_bytes - done;
        const ssize_t  got = read(fd, data + done, left < READ_STEP ? (size_t)left : READ_STEP);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return kvi_file_fail(err, name, "read");
        if (got == 0)
            return kvi_fail(err, KVCSA_ERR_IO,
                            "%s: ends at byte %llu while being read, had %llu bytes when opened",
                            name, (unsigned long long)done, (unsigned long long)n_bytes);
        done += (uint64_t)got;
    }
    return KVCSA_OK;
}

kvcsa_status kvi_file_open(const kvcsa_allocator *a, const char *path, const char *name,
                           uint64_t max_bytes, int map, kvi_file *out, kvcsa_error *err)
{
    kvcsa_status st = KVCSA_OK;
    struct stat  info;
    kvi_file     file = {0};
    /* O_NONBLOCK: a FIFO that somebody put in place of a file must not hang us; it has no effect on
     * regular files */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    memset(out, 0, sizeof *out);
    if (fd < 0)
        return kvi_file_fail(err, name, "open");
    if (fstat(fd, &info) != 0) {
        st = kvi_file_fail(err, name, "stat");
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        st = kvi_fail(err, KVCSA_ERR_IO, "%s: is %s, must be a regular file", name,
                      S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
        goto done;
    }
    file.n_bytes = (uint64_t)info.st_size;
    if (file.n_bytes == 0 || file.n_bytes > max_bytes || file.n_bytes > SIZE_MAX / 2) {
        st = kvi_fail(err, KVCSA_ERR_FORMAT, "%s: file size is %llu, must be 1..%llu bytes", name,
                      (unsigned long long)file.n_bytes, (unsigned long long)max_bytes);
        goto done;
    }
    if (map) {
        void *p = mmap(NULL, (size_t)file.n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);

        if (p == MAP_FAILED) {
            st = kvi_file_fail(err, name, "map");
            goto done;
        }
        file.data = p;
        file.mapped = 1;
    } else {
        if (!(file.data = kvi_alloc(a, (size_t)file.n_bytes))) {
            st = kvi_fail(err, KVCSA_ERR_NOMEM, "%s: %llu bytes to read the file into", name,
                          (unsigned long long)file.n_bytes);
            goto done;
        }
        st = read_all(fd, name, file.data, file.n_bytes, err);
    }
    if (st == KVCSA_OK)
        *out = file;
    else
        kvi_file_close(a, &file);
done:
    (void)close(fd);
    return st;
}

void kvi_file_close(const kvcsa_allocator *a, kvi_file *file)
{
    if (file->mapped)
        (void)munmap(file->data, (size_t)file->n_bytes);
    else
        kvi_free(a, file->data, (size_t)file->n_bytes);
    memset(file, 0, sizeof *file);
}

int kvi_path_exists(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

char *kvi_path_join(const kvcsa_allocator *a, const char *dir, const char *name)
{
    const size_t n_dir = strlen(dir);
    const size_t n_name = strlen(name);
    char        *path = kvi_alloc(a, n_dir + n_name + 2);

    if (!path)
        return NULL;
    memcpy(path, dir, n_dir);
    path[n_dir] = '/';
    memcpy(path + n_dir + 1, name, n_name + 1);
    return path;
}

kvcsa_status kvi_json_parse(const void *text, size_t n_bytes, const char *name, json_t **out,
                            kvcsa_error *err)
{
    json_error_t what;
    json_t      *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &what);

    *out = NULL;
    if (!root) {
        if (json_error_code(&what) == json_error_out_of_memory)
            return kvi_fail(err, KVCSA_ERR_NOMEM, "%s: parsing %zu bytes of JSON", name, n_bytes);
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: not JSON at line %d column %d: %s", name,
                        what.line, what.column, what.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return kvi_fail(err, KVCSA_ERR_FORMAT, "%s: the JSON root must be an object", name);
    }
    *out = root;
    return KVCSA_OK;
}
