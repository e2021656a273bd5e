/* Snapshots as bytes: header page, records, entries of a manifest. docs/formats.md "Snapshot" is
 * the description; nothing here knows sessions, files or memory.
 *
 * Everything is a sequence of units that are padded to KVI_SNAP_UNIT bytes. A header page says what
 * is saved, so that number, order, kind, place and size of all records follow from it alone.
 * Decoders take any bytes: after KVCSA_OK no size that follows from the result overflows. */
#ifndef KVI_CONTAINER_H
#define KVI_CONTAINER_H

#include "base/hash.h"
#include "kvcsa.h"

#define KVI_SNAP_VERSION 1u
#define KVI_SNAP_UNIT 4096u       /* a header page; records and tables are multiples of it */
#define KVI_SNAP_HEAD_BYTES 256u  /* of a record, in front of its token ids and parts */
#define KVI_SNAP_ENTRY_BYTES 64u  /* of a manifest */
#define KVI_SNAP_MAGIC_BYTES 16u  /* magic, version and kind */
#define KVI_SNAP_EXACT UINT64_MAX /* exact_tokens: no entry is approximate */

enum { /* kvi_snap_header.kind */
    KVI_SNAP_FILE = 1,    /* the records follow, in order */
    KVI_SNAP_SEGMENT = 2, /* of a directory: records follow, of any number of snapshots */
    KVI_SNAP_MANIFEST = 3 /* of a directory: a table of entries follows */
};
enum { /* kvi_snap_header.sections */
    KVI_SNAP_WINDOW = 1u, /* as KVCSA_SNAPSHOT_WINDOW */
    KVI_SNAP_LOGITS = 2u, /* as KVCSA_SNAPSHOT_LOGITS */
    KVI_SNAP_RAW = 4u     /* raw rows of half-finished entries */
};
enum { /* kvi_snap_header.flags */
    KVI_SNAP_APPROX = 1u /* window rows are those of a bounded or decoder replay */
};
enum { /* kvi_snap_record.kind, in the order of a snapshot */
    KVI_RECORD_BLOCK = 1,  /* entries of block_tokens tokens; the last may be partial */
    KVI_RECORD_FLOORS = 2, /* part 0: u64 [n_layers], no right window row of a layer lies below */
    KVI_RECORD_PAGE = 3,   /* part 2: window rows of page_rows positions, layer by layer */
    KVI_RECORD_RAW = 4,    /* part 2: raw rows, owner by owner */
    KVI_RECORD_LOGITS = 5  /* part 2: f32 [vocab] of the last token */
};
enum { /* kvi_snap_record.flags */
    KVI_RECORD_TAINTED = 1u, /* approximate entries */
    KVI_RECORD_PARTIAL = 2u  /* rows behind the last token are zeros */
};
enum { KVI_SNAP_PARTS = 3 }; /* index part, main part, anything else */

typedef struct kvi_snap_header {
    uint32_t    kind;
    uint32_t    sections;
    uint32_t    flags;
    /* what it was computed with: kvi_domain */
    uint64_t    weights, adapter, plan, numerics, salt, domain_version;
    /* shapes */
    uint32_t    block_tokens;
    uint32_t    index_bytes, main_bytes; /* of a block */
    uint32_t    vocab;
    uint32_t    n_layers;
    uint32_t    window_row_bytes; /* one position, all layers; 0 = no windows */
    uint32_t    page_rows;
    uint32_t    raw_slots;        /* at most so many raw rows per owner */
    uint32_t    raw_bytes;        /* of the raw record */
    /* what is there */
    uint64_t    n_tokens;
    uint64_t    exact_tokens;     /* entries from this position on are approximate */
    uint64_t    window_lo;        /* window rows are right in [window_lo, n_tokens) */
    uint64_t    raw_lo;           /* raw rows are those of tokens in [raw_lo, n_tokens) */
    uint64_t    n_records;        /* of the file, segment or manifest */
    uint64_t    total_bytes;      /* of the file or segment; of manifest and its records */
    kvi_hash128 table_sum;        /* of a manifest's table, padding included */
} kvi_snap_header;

typedef struct kvi_snap_record {
    uint32_t    kind;
    uint32_t    flags;
    uint64_t    position;  /* of the first token concerned */
    uint32_t    n_tokens;
    uint32_t    ids_bytes; /* token ids, i32; 0 unless a block */
    uint32_t    part_bytes[KVI_SNAP_PARTS];
    kvi_hash128 key;
    kvi_hash128 parent;    /* key of the block in front; 0 for the first and for other kinds */
    kvi_hash128 ids_sum;
    kvi_hash128 sums[KVI_SNAP_PARTS];
} kvi_snap_record;

typedef struct kvi_snap_entry { /* where a manifest's record lies */
    kvi_hash128 key;
    uint64_t    segment;
    uint64_t    offset;
    uint64_t    n_bytes;
    uint64_t    position;
    uint32_t    kind;
    uint32_t    n_tokens;
    uint32_t    flags;
} kvi_snap_entry;

static inline uint64_t kvi_snap_pad(uint64_t n_bytes)
{
    return (n_bytes + KVI_SNAP_UNIT - 1) / KVI_SNAP_UNIT * KVI_SNAP_UNIT;
}

/* n_records and total_bytes of a file or manifest from the rest of the header. ERR_FORMAT: a field
 * is out of its range, or a sum overflows. */
kvcsa_status kvi_snap_header_count(kvi_snap_header *h, kvcsa_error *err);

/* page u8 [KVI_SNAP_UNIT] */
void         kvi_snap_header_encode(const kvi_snap_header *h, uint8_t *page);
/* The header page of a file of this kind (0 = any), of which n_bytes are there. ERR_FORMAT no
 * snapshot, or truncated; ERR_UNSUPPORTED a newer version; ERR_CORRUPT. */
kvcsa_status kvi_snap_header_decode(const uint8_t *page, size_t n_bytes, uint32_t kind,
                                    kvi_snap_header *out, kvcsa_error *err);
/* Does it begin like one of ours, damaged or not? KVI_SNAP_MAGIC_BYTES are enough to tell. */
int          kvi_snap_is_ours(const uint8_t *page, size_t n_bytes, uint32_t kind);

uint64_t kvi_snap_n_blocks(const kvi_snap_header *h);
/* Record i < n_records of a snapshot as its header promises it: all but keys, sums and the taint.
 * offset: in the file form; may be NULL. */
void     kvi_snap_expect(const kvi_snap_header *h, uint64_t i, kvi_snap_record *out,
                         uint64_t *offset);
/* First record of a kind; n_records if there is none. */
uint64_t kvi_snap_first(const kvi_snap_header *h, uint32_t kind);
/* Bytes with head and padding. */
uint64_t kvi_snap_record_bytes(const kvi_snap_record *r);

/* Key by content: of all that has no key of its own. Sums and the rest have been set. */
void         kvi_snap_record_set_key(kvi_snap_record *r);
/* head u8 [KVI_SNAP_HEAD_BYTES] */
void         kvi_snap_record_encode(const kvi_snap_record *r, uint8_t *head);
/* The head of record i. ERR_CORRUPT a checksum; ERR_FORMAT it is not that record. */
kvcsa_status kvi_snap_record_decode(const uint8_t *head, const kvi_snap_header *h, uint64_t i,
                                    kvi_snap_record *out, kvcsa_error *err);

void         kvi_snap_entry_encode(const kvi_snap_entry *e, uint8_t *bytes);
/* Entry i of a manifest. ERR_FORMAT. */
kvcsa_status kvi_snap_entry_decode(const uint8_t *bytes, const kvi_snap_header *h, uint64_t i,
                                   kvi_snap_entry *out, kvcsa_error *err);

/* For fuzzers: make magic, version, what follows from the rest, and the checksum of a header page,
 * or of a record's head, right. */
void kvi_snap_mend_header(uint8_t *page);
void kvi_snap_mend_record(uint8_t *head);

#endif
