#include "format/container.h"

#include "base/bytes.h"
#include "base/checked.h"
#include "base/status.h"

#include <string.h>

/* Offsets of the header page. */
enum {
    H_MAGIC = 0,
    H_VERSION = 8,
    H_KIND = 12,
    H_BYTES = 16,
    H_SECTIONS = 20,
    H_DOMAIN = 24, /* six u64 */
    H_SHAPES = 72, /* nine u32 */
    H_FLAGS = 108,
    H_COUNTS = 112, /* six u64 */
    H_TABLE_SUM = 160,
    H_END = 176, /* zeros from here to the checksum */
    H_SUM = KVI_SNAP_UNIT - 16
};
/* Offsets of a record's head. */
enum {
    R_MAGIC = 0,
    R_VERSION = 4,
    R_KIND = 8,
    R_FLAGS = 12,
    R_POSITION = 16,
    R_TOKENS = 24,
    R_IDS = 28,
    R_PARTS = 32, /* three u32 */
    R_SPARE = 44, /* u32, 0 */
    R_KEY = 48,
    R_PARENT = 64,
    R_IDS_SUM = 80,
    R_SUMS = 96, /* three of 16 */
    R_END = 144, /* zeros from here to the checksum */
    R_SUM = KVI_SNAP_HEAD_BYTES - 16
};

static const char magic[8] = {'K', 'V', 'C', 'S', 'A', 'S', 'N', 'P'};
static const char record_magic[4] = {'K', 'V', 'R', 'C'};

/* Bounds of what a header may say, far above any model; they keep sizes of one record inside 32
 * bits and its arithmetic inside 64. */
#define MAX_BLOCK_TOKENS (1u << 20)
#define MAX_PART_BYTES (1u << 31)
#define MAX_VOCAB (1u << 28)
#define MAX_LAYERS (1u << 16)
#define MAX_PAGE_ROWS 64u
#define MAX_RAW_SLOTS (1u << 13)
#define MAX_TOKENS ((uint64_t)1 << 48)
#define MAX_WINDOW_TOKENS (1u << 17)

static void store_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static void store_u64(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

static void store_hash(uint8_t *p, kvi_hash128 v)
{
    store_u64(p, v.lo);
    store_u64(p + 8, v.hi);
}

static kvi_hash128 load_hash(const uint8_t *p)
{
    return (kvi_hash128){.lo = kvi_load_u64(p), .hi = kvi_load_u64(p + 8)};
}

static int all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

/* ------------------------------------------------------------------ what a header promises */

uint64_t kvi_snap_n_blocks(const kvi_snap_header *h)
{
    return h->n_tokens / h->block_tokens + (h->n_tokens % h->block_tokens != 0);
}

/* Pages stand at multiples of their rows, whatever the ring was. */
static uint64_t count_pages(const kvi_snap_header *h)
{
    return (h->n_tokens - 1) / h->page_rows - h->window_lo / h->page_rows + 1;
}

uint64_t kvi_snap_first(const kvi_snap_header *h, uint32_t kind)
{
    uint64_t i = kvi_snap_n_blocks(h);

    if (kind == KVI_RECORD_BLOCK)
        return 0;
    if (kind == KVI_RECORD_FLOORS)
        return h->sections & KVI_SNAP_WINDOW ? i : h->n_records;
    if (kind == KVI_RECORD_PAGE)
        return h->sections & KVI_SNAP_WINDOW ? i + 1 : h->n_records;
    i += h->sections & KVI_SNAP_WINDOW ? 1 + count_pages(h) : 0;
    if (kind == KVI_RECORD_RAW)
        return h->sections & KVI_SNAP_RAW ? i : h->n_records;
    return h->sections & KVI_SNAP_LOGITS ? h->n_records - 1 : h->n_records;
}

static uint32_t kind_of(const kvi_snap_header *h, uint64_t i)
{
    if (i < kvi_snap_n_blocks(h))
        return KVI_RECORD_BLOCK;
    for (uint32_t kind = KVI_RECORD_LOGITS; kind > KVI_RECORD_FLOORS; kind--)
        if (i >= kvi_snap_first(h, kind))
            return kind;
    return KVI_RECORD_FLOORS;
}

uint64_t kvi_snap_record_bytes(const kvi_snap_record *r)
{
    uint64_t n = (uint64_t)KVI_SNAP_HEAD_BYTES + r->ids_bytes;

    for (int p = 0; p < KVI_SNAP_PARTS; p++)
        n += r->part_bytes[p];
    return kvi_snap_pad(n);
}

/* Shape of a record of a kind; a page's position is that of the n-th. */
static void shape_of(const kvi_snap_header *h, uint32_t kind, uint64_t n, kvi_snap_record *r)
{
    *r = (kvi_snap_record){.kind = kind};
    switch (kind) {
    case KVI_RECORD_BLOCK:
        r->position = n * h->block_tokens;
        r->n_tokens = (uint32_t)kvi_min_size(h->block_tokens, h->n_tokens - r->position);
        r->flags = r->n_tokens < h->block_tokens ? KVI_RECORD_PARTIAL : 0;
        r->ids_bytes = h->block_tokens * (uint32_t)sizeof(int32_t);
        r->part_bytes[0] = h->index_bytes;
        r->part_bytes[1] = h->main_bytes;
        break;
    case KVI_RECORD_FLOORS:
        r->position = h->window_lo;
        r->n_tokens = (uint32_t)(h->n_tokens - h->window_lo);
        r->part_bytes[0] = h->n_layers * (uint32_t)sizeof(uint64_t);
        break;
    case KVI_RECORD_PAGE:
        r->position = (h->window_lo / h->page_rows + n) * h->page_rows;
        r->n_tokens = h->page_rows;
        r->part_bytes[2] = h->page_rows * h->window_row_bytes;
        break;
    case KVI_RECORD_RAW:
        r->position = h->raw_lo;
        r->n_tokens = (uint32_t)(h->n_tokens - h->raw_lo);
        r->part_bytes[2] = h->raw_bytes;
        break;
    default:
        r->position = h->n_tokens - 1;
        r->n_tokens = 1;
        r->part_bytes[2] = h->vocab * (uint32_t)sizeof(float);
    }
}

void kvi_snap_expect(const kvi_snap_header *h, uint64_t i, kvi_snap_record *out, uint64_t *offset)
{
    const uint32_t kind = kind_of(h, i);
    uint64_t       at = KVI_SNAP_UNIT;

    if (offset) { /* records of one kind have one size */
        for (uint32_t k = KVI_RECORD_BLOCK; k <= kind; k++) {
            const uint64_t first = kvi_snap_first(h, k);
            uint64_t       end = first + 1;

            if (first == h->n_records)
                continue; /* there are none, and page_rows may be 0 */
            if (k == kind)
                end = i;
            else if (k == KVI_RECORD_BLOCK)
                end = kvi_snap_n_blocks(h);
            else if (k == KVI_RECORD_PAGE)
                end = first + count_pages(h);
            shape_of(h, k, 0, out);
            at += (end - first) * kvi_snap_record_bytes(out);
        }
        *offset = at;
    }
    shape_of(h, kind, i - kvi_snap_first(h, kind), out);
}

static kvcsa_status bad_field(kvcsa_error *err, const char *name, uint64_t value, uint64_t limit)
{
    return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot header: %s is %llu, must be at most %llu",
                    name, (unsigned long long)value, (unsigned long long)limit);
}

/* Shapes and counts inside their bounds, and what is there inside the tokens. */
static kvcsa_status check_fields(const kvi_snap_header *h, kvcsa_error *err)
{
    const struct {
        const char *name;
        uint64_t    value, limit;
    } bounds[] = {
        {"sections", h->sections, KVI_SNAP_WINDOW | KVI_SNAP_LOGITS | KVI_SNAP_RAW},
        {"flags", h->flags, KVI_SNAP_APPROX},
        {"block_tokens", h->block_tokens, MAX_BLOCK_TOKENS},
        {"index_bytes", h->index_bytes, MAX_PART_BYTES},
        {"main_bytes", h->main_bytes, MAX_PART_BYTES},
        {"vocab", h->vocab, MAX_VOCAB},
        {"n_layers", h->n_layers, MAX_LAYERS},
        {"page_rows", h->page_rows, MAX_PAGE_ROWS},
        {"page bytes", (uint64_t)h->page_rows * h->window_row_bytes, MAX_PART_BYTES},
        {"raw_slots", h->raw_slots, MAX_RAW_SLOTS},
        {"raw_bytes", h->raw_bytes, MAX_PART_BYTES},
        {"n_tokens", h->n_tokens, MAX_TOKENS},
        {"window_lo", h->window_lo, h->n_tokens},
        {"raw_lo", h->raw_lo, h->n_tokens},
    };

    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value > bounds[i].limit)
            return bad_field(err, bounds[i].name, bounds[i].value, bounds[i].limit);
    if (h->block_tokens == 0)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot header: block_tokens is 0");
    if (h->sections && h->n_tokens == 0)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot header: sections are 0x%x, there are no tokens", h->sections);
    if ((h->sections & KVI_SNAP_WINDOW) && (h->page_rows == 0 || h->n_tokens == h->window_lo ||
                                            h->n_tokens - h->window_lo > MAX_WINDOW_TOKENS))
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot header: window rows from %llu on in pages of %u, tokens are %llu",
                        (unsigned long long)h->window_lo, h->page_rows,
                        (unsigned long long)h->n_tokens);
    if ((h->sections & KVI_SNAP_RAW) && (h->raw_bytes == 0 || h->n_tokens == h->raw_lo ||
                                         h->n_tokens - h->raw_lo > MAX_WINDOW_TOKENS))
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot header: %u bytes of raw rows from %llu on, tokens are %llu",
                        h->raw_bytes, (unsigned long long)h->raw_lo,
                        (unsigned long long)h->n_tokens);
    return KVCSA_OK;
}

kvcsa_status kvi_snap_header_count(kvi_snap_header *h, kvcsa_error *err)
{
    kvi_snap_record r;
    kvcsa_status    st = check_fields(h, err);
    size_t          bytes = 0;
    uint64_t        rest = 0;
    uint64_t        pages = 0;

    if (st != KVCSA_OK)
        return st;
    shape_of(h, KVI_RECORD_BLOCK, 0, &r);
    if (!kvi_mul_size(kvi_snap_n_blocks(h), kvi_snap_record_bytes(&r), &bytes))
        goto overflow;
    h->n_records = kvi_snap_n_blocks(h);
    if (h->sections & KVI_SNAP_WINDOW) {
        pages = count_pages(h); /* few, by the bound of the window */
        shape_of(h, KVI_RECORD_FLOORS, 0, &r);
        rest += kvi_snap_record_bytes(&r);
        shape_of(h, KVI_RECORD_PAGE, 0, &r);
        rest += pages * kvi_snap_record_bytes(&r); /* below 2^18 x 2^32 */
        h->n_records += 1 + pages;
    }
    if (h->sections & KVI_SNAP_RAW) {
        shape_of(h, KVI_RECORD_RAW, 0, &r);
        rest += kvi_snap_record_bytes(&r);
        h->n_records++;
    }
    if (h->sections & KVI_SNAP_LOGITS) {
        shape_of(h, KVI_RECORD_LOGITS, 0, &r);
        rest += kvi_snap_record_bytes(&r);
        h->n_records++;
    }
    rest += KVI_SNAP_UNIT;
    if (h->kind == KVI_SNAP_MANIFEST) /* below 2^49 records */
        rest += kvi_snap_pad(h->n_records * KVI_SNAP_ENTRY_BYTES);
    if (!kvi_add_size(bytes, rest, &bytes) || bytes > (uint64_t)INT64_MAX)
        goto overflow;
    h->total_bytes = bytes;
    return KVCSA_OK;
overflow:
    return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot header: %llu tokens are more than 2^63 bytes",
                    (unsigned long long)h->n_tokens);
}

/* ------------------------------------------------------------------ header page */

static void seal_header(uint8_t *page)
{
    memcpy(page + H_MAGIC, magic, sizeof magic);
    store_u32(page + H_VERSION, KVI_SNAP_VERSION);
    store_hash(page + H_SUM, kvi_hash128_of(page, H_SUM, 0));
}

void kvi_snap_header_encode(const kvi_snap_header *h, uint8_t *page)
{
    const uint64_t domain[] = {h->weights,  h->adapter, h->plan,
                               h->numerics, h->salt,    h->domain_version};
    const uint32_t shapes[] = {h->block_tokens, h->index_bytes, h->main_bytes,
                               h->vocab,        h->n_layers,    h->window_row_bytes,
                               h->page_rows,    h->raw_slots,   h->raw_bytes};
    const uint64_t counts[] = {h->n_tokens, h->exact_tokens, h->window_lo,
                               h->raw_lo,   h->n_records,    h->total_bytes};

    memset(page, 0, KVI_SNAP_UNIT);
    store_u32(page + H_KIND, h->kind);
    store_u32(page + H_BYTES, KVI_SNAP_UNIT);
    store_u32(page + H_SECTIONS, h->sections);
    store_u32(page + H_FLAGS, h->flags);
    memcpy(page + H_DOMAIN, domain, sizeof domain);
    memcpy(page + H_SHAPES, shapes, sizeof shapes);
    memcpy(page + H_COUNTS, counts, sizeof counts);
    store_hash(page + H_TABLE_SUM, h->table_sum);
    seal_header(page);
}

int kvi_snap_is_ours(const uint8_t *page, size_t n_bytes, uint32_t kind)
{
    return n_bytes >= KVI_SNAP_MAGIC_BYTES && memcmp(page, magic, sizeof magic) == 0 &&
           kvi_load_u32(page + H_KIND) == kind;
}

static void load_header(const uint8_t *page, kvi_snap_header *h)
{
    uint64_t domain[6];
    uint32_t shapes[9];
    uint64_t counts[6];

    memcpy(domain, page + H_DOMAIN, sizeof domain);
    memcpy(shapes, page + H_SHAPES, sizeof shapes);
    memcpy(counts, page + H_COUNTS, sizeof counts);
    *h = (kvi_snap_header){.kind = kvi_load_u32(page + H_KIND),
                           .sections = kvi_load_u32(page + H_SECTIONS),
                           .flags = kvi_load_u32(page + H_FLAGS),
                           .weights = domain[0],
                           .adapter = domain[1],
                           .plan = domain[2],
                           .numerics = domain[3],
                           .salt = domain[4],
                           .domain_version = domain[5],
                           .block_tokens = shapes[0],
                           .index_bytes = shapes[1],
                           .main_bytes = shapes[2],
                           .vocab = shapes[3],
                           .n_layers = shapes[4],
                           .window_row_bytes = shapes[5],
                           .page_rows = shapes[6],
                           .raw_slots = shapes[7],
                           .raw_bytes = shapes[8],
                           .n_tokens = counts[0],
                           .exact_tokens = counts[1],
                           .window_lo = counts[2],
                           .raw_lo = counts[3],
                           .n_records = counts[4],
                           .total_bytes = counts[5],
                           .table_sum = load_hash(page + H_TABLE_SUM)};
}

void kvi_snap_mend_header(uint8_t *page)
{
    kvi_snap_header h;

    load_header(page, &h);
    if (h.kind != KVI_SNAP_SEGMENT && kvi_snap_header_count(&h, NULL) == KVCSA_OK) {
        store_u64(page + H_COUNTS + 32, h.n_records);
        store_u64(page + H_COUNTS + 40, h.total_bytes);
    }
    seal_header(page);
}

kvcsa_status kvi_snap_header_decode(const uint8_t *page, size_t n_bytes, uint32_t kind,
                                    kvi_snap_header *out, kvcsa_error *err)
{
    kvi_snap_header again;
    kvcsa_status    st;
    uint32_t        version;

    if (memcmp(page, magic, kvi_min_size(n_bytes, sizeof magic)) != 0)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "not a snapshot: it does not begin with KVCSASNP");
    if (n_bytes < KVI_SNAP_UNIT)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "truncated snapshot: header is %zu bytes of %u",
                        n_bytes, KVI_SNAP_UNIT);
    version = kvi_load_u32(page + H_VERSION);
    if (version > KVI_SNAP_VERSION)
        return kvi_fail(err, KVCSA_ERR_UNSUPPORTED,
                        "snapshot version is %u, this library reads up to version %u", version,
                        KVI_SNAP_VERSION);
    if (version == 0)
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot version is 0");
    if (!kvi_hash128_equal(load_hash(page + H_SUM), kvi_hash128_of(page, H_SUM, 0)))
        return kvi_fail(err, KVCSA_ERR_CORRUPT, "snapshot header: checksum differs");
    load_header(page, out);
    if (out->kind < KVI_SNAP_FILE || out->kind > KVI_SNAP_MANIFEST || (kind && out->kind != kind))
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot header: kind is %u, %u wanted", out->kind,
                        kind);
    if (kvi_load_u32(page + H_BYTES) != KVI_SNAP_UNIT || !all_zero(page + H_END, H_SUM - H_END))
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot header: spare bytes are in use");
    again = *out;
    if ((st = kvi_snap_header_count(&again, err)) != KVCSA_OK || out->kind == KVI_SNAP_SEGMENT)
        return st;
    if (again.n_records != out->n_records || again.total_bytes != out->total_bytes)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot header: %llu records in %llu bytes, %llu in %llu follow from it",
                        (unsigned long long)out->n_records, (unsigned long long)out->total_bytes,
                        (unsigned long long)again.n_records, (unsigned long long)again.total_bytes);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ records */

void kvi_snap_record_encode(const kvi_snap_record *r, uint8_t *head)
{
    memset(head, 0, KVI_SNAP_HEAD_BYTES);
    store_u32(head + R_KIND, r->kind);
    store_u32(head + R_FLAGS, r->flags);
    store_u64(head + R_POSITION, r->position);
    store_u32(head + R_TOKENS, r->n_tokens);
    store_u32(head + R_IDS, r->ids_bytes);
    memcpy(head + R_PARTS, r->part_bytes, sizeof r->part_bytes);
    store_hash(head + R_KEY, r->key);
    store_hash(head + R_PARENT, r->parent);
    store_hash(head + R_IDS_SUM, r->ids_sum);
    for (int p = 0; p < KVI_SNAP_PARTS; p++)
        store_hash(head + R_SUMS + 16 * p, r->sums[p]);
    kvi_snap_mend_record(head);
}

void kvi_snap_mend_record(uint8_t *head)
{
    memcpy(head + R_MAGIC, record_magic, sizeof record_magic);
    store_u32(head + R_VERSION, KVI_SNAP_VERSION);
    store_hash(head + R_SUM, kvi_hash128_of(head, R_SUM, 0));
}

void kvi_snap_record_set_key(kvi_snap_record *r)
{
    uint8_t head[KVI_SNAP_HEAD_BYTES];

    r->key = (kvi_hash128){0};
    kvi_snap_record_encode(r, head);
    r->key = kvi_hash128_of(head, R_SUM, 0);
}

static kvcsa_status bad_record(kvcsa_error *err, kvcsa_status st, uint64_t i, const char *what)
{
    return kvi_fail(err, st, "snapshot record %llu: %s", (unsigned long long)i, what);
}

kvcsa_status kvi_snap_record_decode(const uint8_t *head, const kvi_snap_header *h, uint64_t i,
                                    kvi_snap_record *out, kvcsa_error *err)
{
    kvi_snap_record want;

    if (memcmp(head + R_MAGIC, record_magic, sizeof record_magic) != 0)
        return bad_record(err, KVCSA_ERR_CORRUPT, i, "it does not begin with KVRC");
    if (!kvi_hash128_equal(load_hash(head + R_SUM), kvi_hash128_of(head, R_SUM, 0)))
        return bad_record(err, KVCSA_ERR_CORRUPT, i, "checksum of its head differs");
    if (kvi_load_u32(head + R_VERSION) != KVI_SNAP_VERSION || kvi_load_u32(head + R_SPARE) ||
        !all_zero(head + R_END, R_SUM - R_END))
        return bad_record(err, KVCSA_ERR_FORMAT, i, "version or spare bytes are unknown");
    *out = (kvi_snap_record){.kind = kvi_load_u32(head + R_KIND),
                             .flags = kvi_load_u32(head + R_FLAGS),
                             .position = kvi_load_u64(head + R_POSITION),
                             .n_tokens = kvi_load_u32(head + R_TOKENS),
                             .ids_bytes = kvi_load_u32(head + R_IDS),
                             .key = load_hash(head + R_KEY),
                             .parent = load_hash(head + R_PARENT),
                             .ids_sum = load_hash(head + R_IDS_SUM)};
    memcpy(out->part_bytes, head + R_PARTS, sizeof out->part_bytes);
    for (int p = 0; p < KVI_SNAP_PARTS; p++)
        out->sums[p] = load_hash(head + R_SUMS + 16 * p);
    kvi_snap_expect(h, i, &want, NULL);
    if (out->kind != want.kind || out->position != want.position ||
        out->n_tokens != want.n_tokens || out->ids_bytes != want.ids_bytes ||
        memcmp(out->part_bytes, want.part_bytes, sizeof want.part_bytes) != 0 ||
        (out->flags | KVI_RECORD_TAINTED) != (want.flags | KVI_RECORD_TAINTED))
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot record %llu: kind %u at position %llu, kind %u at %llu expected",
                        (unsigned long long)i, out->kind, (unsigned long long)out->position,
                        want.kind, (unsigned long long)want.position);
    return KVCSA_OK;
}

/* ------------------------------------------------------------------ manifest entries */

void kvi_snap_entry_encode(const kvi_snap_entry *e, uint8_t *bytes)
{
    memset(bytes, 0, KVI_SNAP_ENTRY_BYTES);
    store_hash(bytes, e->key);
    store_u64(bytes + 16, e->segment);
    store_u64(bytes + 24, e->offset);
    store_u64(bytes + 32, e->n_bytes);
    store_u64(bytes + 40, e->position);
    store_u32(bytes + 48, e->kind);
    store_u32(bytes + 52, e->n_tokens);
    store_u32(bytes + 56, e->flags);
}

kvcsa_status kvi_snap_entry_decode(const uint8_t *bytes, const kvi_snap_header *h, uint64_t i,
                                   kvi_snap_entry *out, kvcsa_error *err)
{
    kvi_snap_record want;

    *out = (kvi_snap_entry){.key = load_hash(bytes),
                            .segment = kvi_load_u64(bytes + 16),
                            .offset = kvi_load_u64(bytes + 24),
                            .n_bytes = kvi_load_u64(bytes + 32),
                            .position = kvi_load_u64(bytes + 40),
                            .kind = kvi_load_u32(bytes + 48),
                            .n_tokens = kvi_load_u32(bytes + 52),
                            .flags = kvi_load_u32(bytes + 56)};
    kvi_snap_expect(h, i, &want, NULL);
    if (out->kind != want.kind || out->position != want.position ||
        out->n_tokens != want.n_tokens || out->n_bytes != kvi_snap_record_bytes(&want) ||
        (out->flags | KVI_RECORD_TAINTED) != (want.flags | KVI_RECORD_TAINTED) ||
        kvi_load_u32(bytes + 60))
        return kvi_fail(err, KVCSA_ERR_FORMAT, "snapshot manifest: entry %llu is not record %llu",
                        (unsigned long long)i, (unsigned long long)i);
    if (out->offset < KVI_SNAP_UNIT || out->offset % KVI_SNAP_UNIT ||
        out->offset > (uint64_t)INT64_MAX - out->n_bytes || out->segment > (uint64_t)INT64_MAX)
        return kvi_fail(err, KVCSA_ERR_FORMAT,
                        "snapshot manifest: entry %llu at %llu of segment %llu is no place",
                        (unsigned long long)i, (unsigned long long)out->offset,
                        (unsigned long long)out->segment);
    return KVCSA_OK;
}
