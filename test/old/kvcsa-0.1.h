/* kvcsa: run transformer language models around a very small KV cache.
 *
 * This file is the whole public interface; what is not here is not API.
 *
 *   model    immutable and shared: configuration, cache plan, weights, tokenizer
 *   pool     one byte budget for the caches of any number of sessions and models
 *   session  one timeline of tokens on one model in one pool
 *
 * Rules that hold for every function
 *   - A call that fails leaves its objects as they were, unless its comment says otherwise; outputs
 *     are NULL or 0.
 *   - The library never aborts, exits, prints, reads the environment or changes process-wide state.
 *   - Children keep their parents alive: release a model or pool before its sessions if you like.
 *   - kvcsa_x_release(kvcsa_x **) accepts NULL and a pointer to NULL, and sets the handle to NULL.
 *   - `err` may be NULL. It is the caller's storage; text is one UTF-8 line, always terminated.
 *   - Parameter structs: call kvcsa_x_params_default(&p, sizeof p) first, then set fields. NULL
 *     means all defaults.
 *   - Callbacks may be called from any thread, must not call back into the same handle, must not
 *     throw or longjmp.
 *   - "Thread:" is one of  any (no restriction), shared (we lock), one (the caller serialises per
 *     handle; a second caller gets KVCSA_ERR_BUSY where the comment says so), setup (no other call
 *     on the handle in flight).
 *   - Shapes are written dtype [outer, inner], row-major.
 */
#ifndef KVCSA_H
#define KVCSA_H

#include <stddef.h>
#include <stdint.h>

#define KVCSA_VERSION_MAJOR 0
#define KVCSA_VERSION_MINOR 1
#define KVCSA_VERSION_PATCH 0
#define KVCSA_VERSION_NUMBER 100 /* major * 10000 + minor * 100 + patch */
#define KVCSA_ABI 0              /* the number in the soname; changes only on a break */

#if defined(KVCSA_BUILDING) && (defined(__GNUC__) || defined(__clang__))
#define KVCSA_API __attribute__((visibility("default")))
#else
#define KVCSA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ status and errors */

typedef int32_t kvcsa_status;
enum { /* values are never renumbered or reused */
    KVCSA_OK = 0,
    KVCSA_ERR_INTERNAL = -1,    /* our bug; please report */
    KVCSA_ERR_ARG = -2,         /* the call is wrong: fix the caller */
    KVCSA_ERR_NOMEM = -3,       /* an allocator returned NULL */
    KVCSA_ERR_FULL = -4,        /* the pool's budget has no room */
    KVCSA_ERR_UNSUPPORTED = -5, /* valid, but not by this version or backend */
    KVCSA_ERR_BACKEND = -6,     /* device failure; detail holds the native code */
    KVCSA_ERR_FORMAT = -7,      /* a file is not what it claims to be */
    KVCSA_ERR_IO = -8,          /* detail holds errno */
    KVCSA_ERR_BUSY = -9,        /* another thread is in this session */
    KVCSA_ERR_CANCELLED = -10,
    KVCSA_ERR_MISMATCH = -11,   /* fingerprint, plan or numerics of another model */
    KVCSA_ERR_CORRUPT = -12,    /* checksum */
    KVCSA_ERR_LIMIT = -13       /* context or position limit of the model */
};

typedef struct kvcsa_error { /* frozen: 256 bytes */
    int32_t status;
    int32_t detail;
    char text[248];
} kvcsa_error;

/**
 * Name of a status, for example "KVCSA_ERR_FULL"; "KVCSA_ERR_?" for an unknown value.
 *
 * Thread: any.  Owner: static string.  Since: 0.1
 */
KVCSA_API const char *kvcsa_status_name(kvcsa_status status);

/**
 * Version of the library that is running: major * 10000 + minor * 100 + patch. Compare with
 * KVCSA_VERSION_NUMBER.
 *
 * Thread: any.  Since: 0.1
 */
KVCSA_API uint32_t kvcsa_version_number(void);

/**
 * Version of the library that is running, for example "0.1.0".
 *
 * Thread: any.  Owner: static string.  Since: 0.1
 */
KVCSA_API const char *kvcsa_version_string(void);

/* ------------------------------------------------------------------ hooks */

typedef struct kvcsa_allocator { /* both functions or neither; copied when the handle is created */
    void *(*alloc)(void *user, size_t size, size_t align); /* align is a power of two <= 4096;
                                                            * NULL = out of memory */
    void (*free)(void *user, void *ptr, size_t size, size_t align); /* size and align as given to
                                                                     * alloc */
    void *user;
} kvcsa_allocator;

enum { KVCSA_LOG_ERROR = 0, KVCSA_LOG_WARN = 1, KVCSA_LOG_INFO = 2, KVCSA_LOG_DEBUG = 3 };

typedef struct kvcsa_log { /* copied; without it the library is silent */
    void (*write)(void *user, int32_t level, const char *text);
    void *user;
} kvcsa_log;

typedef struct kvcsa_executor { /* the host's threads; copied */
    /* Call task(arg, i) once for every i in 0..n-1, from any threads, in any order or at the same
     * time; return when all have returned. Results do not depend on how. */
    void (*run)(void *user, void (*task)(void *arg, uint32_t i), void *arg, uint32_t n);
    void *user;
    uint32_t width; /* how many tasks it can run at once; 0 = 1 */
    uint32_t reserved; /* 0 */
} kvcsa_executor;

/* ------------------------------------------------------------------ model */

typedef struct kvcsa_model kvcsa_model;

enum { /* kvcsa_model_params.flags */
    KVCSA_MODEL_PLAN_ONLY = 1u, /* read the configuration only: plan and cost work, weights and
                                 * tokenizer are absent */
    KVCSA_MODEL_READ = 2u       /* read the weights into memory instead of mapping the files */
};

typedef struct kvcsa_model_params {
    size_t struct_size;
    const kvcsa_allocator *allocator; /* NULL = libc */
    const kvcsa_log *log;             /* NULL = silent */
    uint32_t flags;                   /* KVCSA_MODEL_*; unknown bits are refused */
    uint32_t block_tokens;            /* tokens per cache block, 0 = 128; a multiple of every
                                       * ratio and of 8 x the largest ratio with an index */
} kvcsa_model_params;

typedef struct kvcsa_model_info {
    size_t struct_size;         /* set by the caller */
    const char *architecture;   /* for example "DeepseekV41ForCausalLM" */
    const char *skipped_names;  /* names of the tensors that this version does not use, one per
                                 * line; "" if none */
    uint64_t max_context_tokens;
    uint64_t weight_bytes;      /* payload of the tensors in use */
    uint64_t skipped_bytes;     /* payload of the tensors not in use (vision tower, draft stages) */
    uint64_t fingerprint;       /* of the configuration, the tensor table and a sample of each
                                 * tensor */
    uint32_t n_tensors;         /* in use */
    uint32_t n_skipped_tensors;
    uint32_t vocab_tokens;
    uint32_t n_layers;
    uint32_t hidden_size;
    uint32_t block_tokens;
    int32_t bos_token;          /* -1 = none; likewise below */
    int32_t eos_token;
    int32_t pad_token;
    int32_t image_token;        /* refused as input: this version reads text */
} kvcsa_model_info;

enum { /* kvcsa_plan_row.select */
    KVCSA_SELECT_NONE = 0,      /* window only */
    KVCSA_SELECT_OWN = 1,       /* makes entries, index keys and its own selection (Full) */
    KVCSA_SELECT_REINDEX = 2,   /* the owner's keys, its own selection */
    KVCSA_SELECT_INHERITED = 3  /* the selection of select_owner (Reuse) */
};
enum { KVCSA_CANDIDATES_NONE = 0, KVCSA_CANDIDATES_SOURCE = 1, KVCSA_CANDIDATES_CONSUMER = 2 };
enum { /* formats of cached rows */
    KVCSA_FORMAT_NONE = 0,
    KVCSA_FORMAT_FP4_E4M3_G16 = 1, /* E2M1, one E4M3 scale per 16 channels, no second scale */
    KVCSA_FORMAT_FP4_E8M0_G32 = 2, /* E2M1, one E8M0 scale per 32 channels */
    KVCSA_FORMAT_FP8_E8M0_G32 = 3  /* E4M3, one E8M0 scale per 32 channels */
};

typedef struct kvcsa_plan_row { /* what one layer keeps and reads; all sizes of one row of cache
                                 * in bytes */
    size_t struct_size;         /* set by the caller */
    int32_t layer;
    int32_t kv_owner;           /* layer whose entries and index keys are read; -1 = none */
    int32_t select_owner;       /* layer whose selection is used; -1 = none */
    int32_t select;             /* KVCSA_SELECT_* */
    int32_t candidates;         /* KVCSA_CANDIDATES_* */
    uint32_t ratio;             /* tokens per entry; 0 = window only */
    uint32_t entry_width;       /* channels */
    uint32_t entry_format;      /* KVCSA_FORMAT_* */
    uint32_t entry_bytes;       /* 0 where the layer owns none */
    uint32_t index_heads;
    uint32_t index_width;
    uint32_t index_format;
    uint32_t index_bytes;       /* 0 where the layer owns none */
    uint32_t select_entries;    /* at most so many entries are attended */
    uint32_t candidate_blocks;
    uint32_t candidate_block_entries;
    uint32_t window_tokens;
    uint32_t window_format;
    uint32_t window_bytes;      /* one row */
    uint32_t pending_bytes;     /* raw row kept between the halves of an entry */
} kvcsa_plan_row;

typedef struct kvcsa_cost {     /* the five figures, see docs/architecture.md */
    size_t struct_size;         /* set by the caller */
    uint64_t n_tokens;          /* the length that the last three are for */
    uint64_t const_bytes;       /* per sequence, does not grow: window rows */
    uint64_t resident_bytes;    /* const + whole blocks of n_tokens */
    uint64_t read_bytes;        /* fetched from the cache by one decode step at n_tokens */
    uint64_t persist_bytes;     /* kept off-device to resume at n_tokens without recomputing
                                 * entries (the window is replayed) */
    uint64_t pending_bytes;     /* at most, at lengths that end inside an entry */
    uint32_t block_tokens;
    uint32_t block_bytes;       /* index part + main part, no padding */
    uint32_t index_part_bytes;
    uint32_t main_part_bytes;
    float rate_bytes_per_token; /* block_bytes / block_tokens */
    uint32_t reserved;
} kvcsa_cost;

/**
 * Fill params with defaults.
 *
 * @param struct_size  sizeof the caller's struct.
 * Thread: any.  Since: 0.1
 */
KVCSA_API void kvcsa_model_params_default(kvcsa_model_params *params, size_t struct_size);

/**
 * Open a checkpoint directory in the released DeepSeek-V4.1 format: config.json, tokenizer.json,
 * safetensors shards with model.safetensors.index.json (or one model.safetensors). With
 * KVCSA_MODEL_PLAN_ONLY `path` may also be a config.json.
 *
 * Weights are mapped read-only (default): the file must not be truncated while the model is open,
 * or the process receives SIGBUS at the next touch; use KVCSA_MODEL_READ where that can happen.
 * Files are treated as hostile and fully checked.
 *
 * Status:  ERR_IO a file cannot be read; ERR_FORMAT it is not what it claims (text names file,
 *          field, value, limit); ERR_UNSUPPORTED another architecture; ERR_NOMEM; ERR_ARG.
 * Thread:  any.   Owner: the caller owns *out.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_open(const char *path, const kvcsa_model_params *params,
                                        kvcsa_model **out, kvcsa_error *err);

/**
 * Drop the caller's reference. The model lives until its last session, pool or stream is gone.
 *
 * Thread: any.  Since: 0.1
 */
KVCSA_API void kvcsa_model_release(kvcsa_model **model);

/**
 * Describe an open model. Strings belong to the model.
 *
 * Status:  ERR_ARG model or info NULL, struct_size smaller than the first release's.
 * Thread:  any.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_get_info(const kvcsa_model *model, kvcsa_model_info *info,
                                            kvcsa_error *err);

/**
 * One row of the cache plan.
 *
 * @param layer  0..n_layers-1.
 * Status:  ERR_ARG.   Thread: any.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_plan_row(const kvcsa_model *model, uint32_t layer,
                                            kvcsa_plan_row *row, kvcsa_error *err);

/**
 * The five cache figures of one sequence of n_tokens, from the plan alone (nothing is allocated).
 *
 * Status:  ERR_ARG; ERR_LIMIT n_tokens above max_context_tokens.   Thread: any.
 * Source:  docs/architecture.md "Five figures".   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_cost(const kvcsa_model *model, uint64_t n_tokens,
                                        kvcsa_cost *cost, kvcsa_error *err);

enum { /* flags of kvcsa_model_tokenize */
    KVCSA_TOKENIZE_SPECIAL = 1u /* cut out special tokens; without it their text is encoded as
                                 * plain text */
};

/**
 * Encode UTF-8 text. Bytes that are not UTF-8 are encoded byte by byte. No token is added.
 *
 * @param text     u8 [n_bytes]; may hold NUL.
 * @param ids      i32 [cap], may be NULL when cap is 0.
 * @param n_ids    number of ids of the whole text, also when it is more than cap (then ids holds
 *                 the first cap).
 * Status:  ERR_ARG; ERR_UNSUPPORTED plan-only model; ERR_NOMEM.   Thread: any.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_tokenize(const kvcsa_model *model, const char *text,
                                            size_t n_bytes, uint32_t flags, int32_t *ids,
                                            size_t cap, size_t *n_ids, kvcsa_error *err);

/**
 * The bytes of one token; they need not be whole characters (use kvcsa_text_stream to print).
 *
 * @param text   set to the bytes, owned by the model, not terminated.
 * Status:  ERR_ARG id out of range; ERR_UNSUPPORTED plan-only model.   Thread: any.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_token_text(const kvcsa_model *model, int32_t id,
                                              const char **text, size_t *n_bytes, kvcsa_error *err);

/**
 * Bytes of a list of tokens, concatenated.
 *
 * @param text     u8 [cap], may be NULL when cap is 0. Not terminated.
 * @param n_bytes  bytes of the whole list, also when it is more than cap.
 * Status:  ERR_ARG id out of range; ERR_UNSUPPORTED.   Thread: any.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_detokenize(const kvcsa_model *model, const int32_t *ids,
                                              size_t n_ids, char *text, size_t cap, size_t *n_bytes,
                                              kvcsa_error *err);

typedef struct kvcsa_message {
    const char *role; /* "system", "user" or "assistant" */
    const char *text; /* UTF-8, terminated; special tokens in it are encoded as plain text */
} kvcsa_message;

/**
 * Token ids of a conversation in the model's chat format, ending where the assistant is to write
 * (chat mode, no reasoning).
 *
 * @param ids, cap, n_ids  as for kvcsa_model_tokenize.
 * Status:  ERR_ARG unknown role or NULL; ERR_UNSUPPORTED the tokenizer lacks a token of the format.
 * Thread:  any.   Source: docs/formats.md "Tokenizer and prompt".   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_model_chat_prompt(const kvcsa_model *model,
                                               const kvcsa_message *messages, size_t n_messages,
                                               int32_t *ids, size_t cap, size_t *n_ids,
                                               kvcsa_error *err);

/* ------------------------------------------------------------------ text stream */

typedef struct kvcsa_text_stream kvcsa_text_stream;

/**
 * Turns generated tokens into text that can be shown at once: never half a UTF-8 character, never
 * the beginning of a stop string that may still be completed, nothing at or after a stop string.
 * Invalid bytes become U+FFFD.
 *
 * @param stops  n_stops terminated UTF-8 strings, copied; may be NULL when n_stops is 0.
 * Status:  ERR_ARG NULL or empty stop string; ERR_UNSUPPORTED plan-only model; ERR_NOMEM.
 * Thread:  any.   Owner: the caller owns *out; it keeps the model.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_text_stream_create(kvcsa_model *model, const char *const *stops,
                                                size_t n_stops, kvcsa_text_stream **out,
                                                kvcsa_error *err);

/**
 * Add a token; special tokens add no text.
 *
 * @param text     set to text that is ready, owned by the stream until the next call; terminated;
 *                 may be "".
 * @param stopped  index of the stop string that was met, -1 if none; later pushes give "".
 * Status:  ERR_ARG; ERR_NOMEM.   Thread: one.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_text_stream_push(kvcsa_text_stream *stream, int32_t token,
                                              const char **text, size_t *n_bytes, int32_t *stopped,
                                              kvcsa_error *err);

/**
 * End of generation: gives what was held back.
 *
 * Status:  ERR_ARG; ERR_NOMEM.   Thread: one.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_text_stream_finish(kvcsa_text_stream *stream, const char **text,
                                                size_t *n_bytes, kvcsa_error *err);

/** Release a text stream.  Thread: setup.  Since: 0.1 */
KVCSA_API void kvcsa_text_stream_release(kvcsa_text_stream **stream);

/* ------------------------------------------------------------------ pool */

typedef struct kvcsa_pool kvcsa_pool;

typedef struct kvcsa_pool_params {
    size_t struct_size;
    const kvcsa_allocator *allocator; /* NULL = libc; blocks and sessions come from here */
    const kvcsa_log *log;             /* NULL = silent */
    const kvcsa_executor *executor;   /* NULL = threads of our own */
    uint64_t budget_bytes;            /* blocks and windows of all sessions; 0 = no limit of its
                                       * own */
    uint32_t n_threads;               /* threads of our own, the caller included; 0 = one per
                                       * core; ignored with an executor */
    uint32_t flags;                   /* KVCSA_POOL_* */
} kvcsa_pool_params;
enum {
    KVCSA_POOL_FILL_FREED = 1u /* overwrite a freed block with 0xA5 (for tests of your own) */
};

typedef struct kvcsa_pool_stats {
    size_t struct_size;          /* set by the caller */
    uint64_t budget_bytes;
    uint64_t used_bytes;         /* blocks in use + windows; never above budget_bytes */
    uint64_t reserved_bytes;     /* promised to queued tokens */
    uint64_t window_bytes;       /* window and pending rows of sessions; part of used_bytes */
    uint64_t slab_bytes;         /* memory taken from the allocator for blocks, free ones
                                  * included */
    uint64_t n_open_blocks;
    uint64_t n_sealed_blocks;
    uint64_t n_free_blocks;
    uint64_t n_sessions;
    uint64_t n_acquired;         /* since creation; likewise below */
    uint64_t n_released;
} kvcsa_pool_stats;

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_pool_params_default(kvcsa_pool_params *params, size_t struct_size);

/**
 * Create a pool: a budget of bytes shared by the caches of any number of sessions of any number of
 * models, and the threads that compute them.
 *
 * Status:  ERR_ARG; ERR_NOMEM (also when a thread cannot be started).
 * Thread:  any.   Owner: the caller owns *out.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_pool_create(const kvcsa_pool_params *params, kvcsa_pool **out,
                                         kvcsa_error *err);

/**
 * Drop the caller's reference; the pool lives until its last session is gone.
 *
 * Thread: any.  Since: 0.1
 */
KVCSA_API void kvcsa_pool_release(kvcsa_pool **pool);

/**
 * Figures of the pool, consistent with each other.
 *
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_pool_get_stats(kvcsa_pool *pool, kvcsa_pool_stats *stats,
                                            kvcsa_error *err);

/**
 * Walk every block and every count and compare (see the numbered invariants in src/pool). For tests
 * and bug reports.
 *
 * Status:  ERR_INTERNAL with the first invariant that does not hold.   Thread: shared.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_pool_check(kvcsa_pool *pool, kvcsa_error *err);

/* ------------------------------------------------------------------ session */

typedef struct kvcsa_session kvcsa_session;

typedef struct kvcsa_session_params {
    size_t struct_size;
    uint32_t chunk_tokens; /* most rows computed at once, 0 = 128; does not change results */
    uint32_t flags;        /* 0 */
} kvcsa_session_params;

/* One row of logits: f32 [n_vocab], valid during the call. `position` is that of the token whose
 * successor they predict. */
typedef void (*kvcsa_logits_fn)(void *user, uint64_t position, const float *logits,
                                uint32_t n_vocab);

enum { /* kvcsa_append_params.logits */
    KVCSA_LOGITS_LAST = 0, /* of the last token only; kvcsa_session_get_logits */
    KVCSA_LOGITS_ALL = 1,  /* of every token, to on_logits in order */
    KVCSA_LOGITS_ROWS = 2, /* of the tokens at the offsets in `rows`, and the last */
    KVCSA_LOGITS_NONE = 3  /* none at all, not even the last */
};

typedef struct kvcsa_append_params {
    size_t struct_size;
    kvcsa_logits_fn on_logits; /* called by step, from the stepping thread; required for ALL and
                                * ROWS */
    void *user;
    const uint32_t *rows;      /* u32 [n_rows], offsets into this append, ascending; copied */
    uint32_t n_rows;
    uint32_t logits;           /* KVCSA_LOGITS_* */
} kvcsa_append_params;

/* Called between the layers of a chunk. Return 0 to go on, anything else to cancel what is being
 * computed. */
typedef int32_t (*kvcsa_progress_fn)(void *user, kvcsa_session *session, uint64_t n_done_tokens,
                                     uint64_t n_queued_tokens);

typedef struct kvcsa_step_params {
    size_t struct_size;
    kvcsa_progress_fn progress; /* may be NULL */
    void *user;
    uint64_t max_rows;          /* stop before computing more rows than this over all sessions; 0
                                 * = until all queues are empty */
    uint64_t deadline_ns;       /* start no further chunk after so many nanoseconds from the
                                 * call; 0 = none */
} kvcsa_step_params;

typedef struct kvcsa_step_result {
    uint64_t n_computed; /* tokens committed by this call */
    uint64_t n_queued;   /* tokens still waiting */
    kvcsa_error error;   /* of this session; status KVCSA_OK if none */
} kvcsa_step_result;

typedef struct kvcsa_session_stats {
    size_t struct_size;        /* set by the caller */
    uint64_t n_tokens;         /* committed */
    uint64_t n_queued;
    uint64_t n_entries;        /* compressed entries of all owners */
    uint64_t entry_bytes;      /* entries and index keys in use */
    uint64_t n_blocks;
    uint64_t block_bytes;      /* resident blocks */
    uint64_t window_bytes;
    uint64_t workspace_bytes;  /* scratch of a step; outside the pool's budget */
    uint64_t n_computed_rows;  /* token rows computed since creation, cancelled ones included */
} kvcsa_session_stats;

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_session_params_default(kvcsa_session_params *params, size_t struct_size);

/**
 * Create an empty session. Its window rows are charged to the pool at once, blocks as tokens are
 * appended.
 *
 * Status:  ERR_ARG; ERR_UNSUPPORTED plan-only model; ERR_FULL no room for the window; ERR_NOMEM.
 * Thread:  any.   Owner: the caller owns *out; it keeps pool and model.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                            const kvcsa_session_params *params, kvcsa_session **out,
                                            kvcsa_error *err);

/** Release a session; its blocks go back to the pool.  Thread: setup.  Since: 0.1 */
KVCSA_API void kvcsa_session_release(kvcsa_session **session);

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_append_params_default(kvcsa_append_params *params, size_t struct_size);

/**
 * Queue tokens; nothing is computed before kvcsa_pool_step. Blocks for them are reserved in the
 * pool's budget here, so that a step does not run out of it half way.
 *
 * @param tokens   i32 [n_tokens], ids in 0..vocab-1, not the image token. Copied.
 * @param out_pos  length after all queued tokens, in tokens. May be NULL.
 * Status:  ERR_ARG id out of range, rows not ascending; ERR_LIMIT beyond max_context_tokens;
 *          ERR_FULL budget; ERR_BUSY; ERR_NOMEM. In every case the session and its queue are
 *          unchanged.
 * Thread:  one (a second caller gets ERR_BUSY).   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_append(kvcsa_session *session, const int32_t *tokens,
                                            size_t n_tokens, const kvcsa_append_params *params,
                                            uint64_t *out_pos, kvcsa_error *err);

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_step_params_default(kvcsa_step_params *params, size_t struct_size);

/**
 * Compute queued tokens of several sessions of one pool. Works in chunks; a chunk is committed
 * whole or not at all. Bits do not depend on chunk sizes, thread counts or on which sessions are
 * stepped together.
 *
 * A session that is cancelled (progress callback or kvcsa_session_cancel) drops its queue and goes
 * back to where its oldest unfinished append began: tokens, cache and logits are as if it had not
 * been made. A session that fails otherwise (ERR_NOMEM) keeps the chunks that were committed and
 * its queue, so that the call can be repeated. The others go on.
 *
 * @param sessions  [n_sessions], all of this pool, each at most once.
 * @param results   [n_sessions], may be NULL.
 * Status:  the first status of a session that is not OK, else OK; ERR_ARG.
 * Thread:  shared for the pool, one for each session (another caller gets ERR_BUSY for that
 *          session).
 * Since:   0.1
 */
KVCSA_API kvcsa_status kvcsa_pool_step(kvcsa_pool *pool, kvcsa_session *const *sessions,
                                       size_t n_sessions, const kvcsa_step_params *params,
                                       kvcsa_step_result *results, kvcsa_error *err);

/**
 * Ask a running step to stop computing this session; without one, the next step drops the session's
 * queue. Without a queue the request is forgotten when the next append is made, so that one which
 * comes too late does not hit what follows.
 *
 * Thread: any.  Since: 0.1
 */
KVCSA_API void kvcsa_session_cancel(kvcsa_session *session);

/**
 * Logits of the last committed token: f32 [vocab].
 *
 * Status:  ERR_ARG no token yet, last append asked for none, or n_vocab not the model's; ERR_BUSY.
 * Thread:  one.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_get_logits(kvcsa_session *session, float *logits,
                                                uint32_t n_vocab, kvcsa_error *err);

/** Committed tokens; 0 for NULL.  Thread: one.  Since: 0.1 */
KVCSA_API uint64_t kvcsa_session_length(const kvcsa_session *session);

/**
 * Committed tokens from position `from` on.
 *
 * @param tokens    i32 [cap], may be NULL when cap is 0.
 * @param n_tokens  length - from, also when it is more than cap.
 * Status:  ERR_ARG from above the length; ERR_BUSY.   Thread: one.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_get_tokens(kvcsa_session *session, uint64_t from,
                                                int32_t *tokens, size_t cap, size_t *n_tokens,
                                                kvcsa_error *err);

/** Figures of a session.  Status: ERR_ARG; ERR_BUSY.  Thread: one.  Since: 0.1 */
KVCSA_API kvcsa_status kvcsa_session_get_stats(kvcsa_session *session, kvcsa_session_stats *stats,
                                               kvcsa_error *err);

/* ------------------------------------------------------------------ sampling */

typedef struct kvcsa_sampler_params {
    size_t struct_size;
    uint64_t seed;
    float temperature; /* 0 = greedy (the default) */
    float top_p;       /* 0 or 1 = off */
    float min_p;       /* 0 = off: drop tokens less likely than min_p x the likeliest */
    uint32_t top_k;    /* 0 = off */
} kvcsa_sampler_params;

/** Fill params with defaults: greedy.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_sampler_params_default(kvcsa_sampler_params *params, size_t struct_size);

/**
 * Choose a token from one row of logits. Order: top-k, temperature, min-p, top-p. Ties go to the
 * lower id. The random number is a function of (seed, position) alone, so a repeated, forked or
 * resumed run draws the same.
 *
 * @param logits  f32 [n_vocab].
 * Status:  ERR_ARG NaN in logits, negative or non-finite parameter; ERR_NOMEM.   Thread: any.
 *          Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_sample_logits(const float *logits, uint32_t n_vocab, uint64_t position,
                                           const kvcsa_sampler_params *params, int32_t *token,
                                           kvcsa_error *err);

/**
 * kvcsa_sample_logits on the session's last logits; position is the session's length.
 *
 * Status:  as kvcsa_sample_logits and kvcsa_session_get_logits.   Thread: one.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_sample(kvcsa_session *session,
                                            const kvcsa_sampler_params *params, int32_t *token,
                                            kvcsa_error *err);

#ifdef __cplusplus
}
#endif
#endif
