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
#define KVCSA_VERSION_MINOR 4
#define KVCSA_VERSION_PATCH 0
#define KVCSA_VERSION_NUMBER 400 /* major * 10000 + minor * 100 + patch */
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

enum { /* kvcsa_trace_event.kind */
    KVCSA_TRACE_HIT = 1,     /* n_tokens of a known prefix are used instead of computed */
    KVCSA_TRACE_MISS = 2,    /* n_tokens are to be computed; reason says why */
    KVCSA_TRACE_PUBLISH = 3, /* a sealed block can be found by other sessions from now on */
    KVCSA_TRACE_EVICT = 4,   /* a published block went; reason says why */
    KVCSA_TRACE_REPLAY = 5,  /* n_tokens are run again to rebuild windows */
    KVCSA_TRACE_SAVE = 6,    /* n_bytes were written */
    KVCSA_TRACE_LOAD = 7,    /* n_bytes were read */
    KVCSA_TRACE_MOVE_OUT = 8, /* a published block went from a device to the host's memory */
    KVCSA_TRACE_MOVE_IN = 9   /* and came back */
};
enum { /* reasons: why a token has to be computed, why a block went */
    KVCSA_REASON_NONE = 0,
    KVCSA_REASON_OFF = 1,        /* reuse was switched off */
    KVCSA_REASON_UNKNOWN = 2,    /* no known prefix begins like this */
    KVCSA_REASON_DIVERGED = 3,   /* the known prefix goes on with other tokens */
    KVCSA_REASON_ENDED = 4,      /* the known prefix ends here */
    KVCSA_REASON_LOGITS = 5,     /* logits of these rows were asked for */
    KVCSA_REASON_SHORT = 6,      /* rebuilding the windows would cost more than it saves */
    KVCSA_REASON_PRIVATE = 7,    /* the session's blocks are approximate, or not published */
    KVCSA_REASON_BUDGET = 16,    /* room was wanted for something else; of a MISS: there is none to
                                  * bring the rest of the known prefix back from host_bytes */
    KVCSA_REASON_TRIM = 17,      /* kvcsa_pool_trim */
    KVCSA_REASON_RESIZE = 18,    /* kvcsa_pool_resize */
    KVCSA_REASON_FORGOTTEN = 19, /* kvcsa_prefix_forget */
    KVCSA_REASON_ERASED = 20     /* kvcsa_session_erase */
};

typedef struct kvcsa_trace_event {
    size_t struct_size;
    uint64_t position; /* first token concerned */
    uint64_t n_tokens;
    uint64_t n_bytes;
    uint32_t kind;     /* KVCSA_TRACE_* */
    uint32_t reason;   /* KVCSA_REASON_* */
} kvcsa_trace_event;

typedef struct kvcsa_trace { /* copied. May be called while the pool is locked */
    void (*event)(void *user, const kvcsa_trace_event *event);
    void *user;
} kvcsa_trace;

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
    const char *plan;                 /* JSON object that changes the cache plan, for example
                                       * {"entry_format": "bf16"}; NULL = none. Keys and what of
                                       * it can be computed: docs/formats.md "Plan overrides".
                                       * Since 0.3 */
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
    uint64_t expert_bytes;      /* one routed expert of one layer. Likewise below since 0.3; 0 =
                                 * none, or not known */
    uint32_t n_experts;         /* routed, of a layer */
    uint32_t n_experts_per_token;
    uint32_t n_moe_layers;
    uint32_t cost_only;         /* 1 = this version has the plan of this family and computes its
                                 * cost, and has no network for it; of kvcsa_model_from_plan: no
                                 * operators for a layer */
    uint32_t span_tokens;       /* what kvcsa_session_hide and _get_mass count in: 8 x the largest
                                 * ratio that has an index; 0 = none has */
    uint32_t reserved;
} kvcsa_model_info;

enum { /* kvcsa_plan_row.select */
    KVCSA_SELECT_NONE = 0,      /* window only */
    KVCSA_SELECT_OWN = 1,       /* makes entries, index keys and its own selection (Full) */
    KVCSA_SELECT_REINDEX = 2,   /* the owner's keys, its own selection */
    KVCSA_SELECT_INHERITED = 3, /* the selection of select_owner (Reuse) */
    KVCSA_SELECT_ALL = 4        /* every entry of kv_owner */
};
enum { KVCSA_CANDIDATES_NONE = 0, KVCSA_CANDIDATES_SOURCE = 1, KVCSA_CANDIDATES_CONSUMER = 2 };
enum { /* formats of cached rows */
    KVCSA_FORMAT_NONE = 0,
    KVCSA_FORMAT_FP4_E4M3_G16 = 1, /* E2M1, one E4M3 scale per 16 channels, no second scale */
    KVCSA_FORMAT_FP4_E8M0_G32 = 2, /* E2M1, one E8M0 scale per 32 channels */
    KVCSA_FORMAT_FP8_E8M0_G32 = 3, /* E4M3, one E8M0 scale per 32 channels */
    KVCSA_FORMAT_F32 = 4,
    KVCSA_FORMAT_F16 = 5,
    KVCSA_FORMAT_BF16 = 6,
    KVCSA_FORMAT_FP4_AS_F32 = 7,   /* the values of FP4_E4M3_G16, each stored in four bytes: to
                                    * compare storage with */
    KVCSA_FORMAT_Q8_0 = 8,         /* int8, one fp16 scale per 32 channels */
    KVCSA_FORMAT_Q4_0 = 9,         /* 4 bits, one fp16 scale per 32 channels */
    KVCSA_FORMAT_INT3_F16_G32 = 10, /* 3 bits, one fp16 scale per 32 channels */
    /* plan and cost only */
    KVCSA_FORMAT_FP8_E4M3 = 11,    /* no scale */
    KVCSA_FORMAT_FP8_F32_G128 = 12, /* E4M3, one fp32 scale per 128 channels */
    KVCSA_FORMAT_INT6 = 13,        /* 6 bits a channel, scales not counted */
    KVCSA_FORMAT_MLA_FP8_656 = 14, /* 576 channels: 512 E4M3, four fp32 scales, 64 bf16 */
    KVCSA_FORMAT_MLA_FP4_432 = 15, /* 576 channels: 512 E2M1 with a scale per 16, 64 bf16, 16 pad */
    KVCSA_FORMAT_CSA_FP8_584 = 16  /* 512 channels: 448 E4M3, 64 bf16, 7 E8M0 scales, 1 pad */
};
enum { /* kvcsa_plan_row.value_kind */
    KVCSA_VALUE_ALIAS = 0,  /* the key is the value */
    KVCSA_VALUE_OWN = 1,    /* stored beside the key */
    KVCSA_VALUE_PREFIX = 2  /* the first value_width channels of the key */
};
enum { /* kvcsa_plan_row.pool_kind: how `ratio` tokens become one entry */
    KVCSA_POOLING_NONE = 0,    /* one token, one entry */
    KVCSA_POOLING_GATED = 1,   /* softmax gate per channel over the entry's tokens */
    KVCSA_POOLING_OVERLAP = 2, /* likewise, over the tokens of the entry before it too */
    KVCSA_POOLING_WIDE = 3     /* likewise gated, with a bias per position */
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
    uint32_t kv_heads;          /* an entry holds so many keys of entry_width channels, and values.
                                 * Likewise below since 0.3 */
    uint32_t value_width;       /* channels of one value */
    uint32_t value_kind;        /* KVCSA_VALUE_* */
    uint32_t value_format;      /* KVCSA_FORMAT_*; NONE where the value is not stored */
    uint32_t pool_kind;         /* KVCSA_POOLING_* */
    uint32_t state_heads;       /* linear attention: heads of the state */
    uint64_t state_bytes;       /* linear attention: of the whole state; does not grow */
    int32_t index_owner;        /* layer whose index keys are read; -1 = none */
    uint32_t cost_only;         /* 1 = no kernels for such a layer in this version, or, of a model
                                 * that was opened, no network */
} kvcsa_plan_row;

typedef struct kvcsa_cost {     /* the five figures, see docs/architecture.md */
    size_t struct_size;         /* set by the caller */
    uint64_t n_tokens;          /* the length that the last three are for */
    uint64_t const_bytes;       /* per sequence, does not grow: full windows, and states of linear
                                 * attention */
    uint64_t resident_bytes;    /* window rows of n_tokens, states, and whole blocks */
    uint64_t read_bytes;        /* fetched from the cache by one decode step at n_tokens, at most:
                                 * see kvcsa_work for what a step did */
    uint64_t persist_bytes;     /* kept off-device to resume at n_tokens without recomputing
                                 * entries (the window is replayed) */
    uint64_t pending_bytes;     /* at most, at lengths that end inside an entry */
    uint32_t block_tokens;
    uint32_t block_bytes;       /* index part + main part, no padding */
    uint32_t index_part_bytes;
    uint32_t main_part_bytes;
    float rate_bytes_per_token; /* block_bytes / block_tokens */
    uint32_t n_kv_layers;       /* layers that own entries. Likewise below since 0.3 */
    double rate;                /* rate_bytes_per_token, exactly */
    double entry_bytes;         /* rate = entry_bytes x sequence_factor x n_kv_layers: bytes of an
                                 * entry and its index key, on average */
    double sequence_factor;     /* entries per token and owner, on average */
    double written_bytes;       /* by one decode step, on average: entries, index keys, windows */
    uint64_t state_bytes;       /* of const_bytes: linear attention. A prefix cache keeps it at
                                 * every point that it resumes at */
    uint64_t index_read_bytes;  /* of read_bytes: index keys */
    uint64_t window_read_bytes; /* of read_bytes: window rows */
} kvcsa_cost;

/**
 * Name of a KVCSA_FORMAT_* as plan overrides spell it, for example "fp4"; "?" for an unknown one.
 *
 * Thread: any.  Owner: static string.  Since: 0.3
 */
KVCSA_API const char *kvcsa_format_name(uint32_t format);

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
 * KVCSA_MODEL_PLAN_ONLY `path` may also be a config.json, and of many other families too:
 * docs/formats.md "Families" lists them.
 *
 * Weights are mapped read-only (default): the file must not be truncated while the model is open,
 * or the process receives SIGBUS at the next touch; use KVCSA_MODEL_READ where that can happen.
 * Files are treated as hostile and fully checked.
 *
 * Status:  ERR_IO a file cannot be read; ERR_FORMAT it is not what it claims (text names file,
 *          field, value, limit); ERR_UNSUPPORTED another architecture, or one of which this version
 *          has the plan only; ERR_NOMEM; ERR_ARG.
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
    const kvcsa_trace *trace;         /* NULL = none; likewise below since 0.2 */
    uint32_t evict;                   /* KVCSA_EVICT_*: which prefix goes first */
    uint32_t cpu_avoid;               /* KVCSA_CPU_* that must not be used though the machine has
                                       * them. Bits of results are the same with all that fuse
                                       * multiply and add (any of them), and others with none:
                                       * within a pool they never change. Without effect where a
                                       * device computes. Since 0.4 (0 before) */
    uint32_t backend;                 /* KVCSA_BACKEND_*: what computes. Likewise below since 0.4 */
    uint32_t ordinal;                 /* of the device among those that the backend sees; the CPU
                                       * does not look at it */
    const char *backend_dir;          /* absolute path of the folder with the plug-ins; NULL = the
                                       * folder of this library, or of the program that it is linked
                                       * into. Neither environment nor current folder are looked
                                       * at */
    uint64_t host_bytes;              /* memory of the host for prefixes that a device has no room
                                       * for: evicted blocks go there, pinned, and come back when a
                                       * session's tokens begin like them. Beside budget_bytes;
                                       * counted in blocks, what is free in slabs comes on top.
                                       * 0 = none, such prefixes are lost. Ignored where blocks lie
                                       * in the host's memory anyway */
} kvcsa_pool_params;
enum { /* what computes, and in whose memory blocks, windows and weights lie */
    KVCSA_BACKEND_AUTO = 0, /* a device, if a plug-in is there and finds one that answers, else the
                             * CPU */
    KVCSA_BACKEND_CPU = 1,
    KVCSA_BACKEND_CUDA = 2  /* libkvcsa_cuda.so, or ERR_BACKEND with the reason */
};
enum { /* instruction sets that kernels are written for; each includes what its name includes on
        * the first processors that have it all */
    KVCSA_CPU_AVX2 = 1u,   /* with FMA, F16C, BMI2 */
    KVCSA_CPU_AVX512 = 2u, /* with VBMI, VBMI2, VNNI (Ice Lake, Zen 4); implies AVX2 */
    KVCSA_CPU_NEON = 4u,   /* Armv8-A */
    KVCSA_CPU_DOTPROD = 8u /* Armv8.2-A; implies NEON */
};

typedef struct kvcsa_cpu_info {
    size_t struct_size; /* set by the caller */
    uint32_t detected;  /* KVCSA_CPU_* that processor and operating system have */
    uint32_t used;      /* KVCSA_CPU_* that the kernels of the pool use; 0 = portable C */
    uint64_t numerics;  /* id of order and rounding of sums, as in kvcsa_snapshot_info: equal ids,
                         * equal bits. All sets that fuse multiply and add have one id */
    char processor[64]; /* as it names itself, "" if it does not */
    char kernels[32];   /* the widest set that is used, "AVX-512" for example */
    char why[160];      /* why these and no others */
} kvcsa_cpu_info;

typedef struct kvcsa_backend_info {
    size_t struct_size;      /* set by the caller */
    uint32_t backend;        /* KVCSA_BACKEND_*, never AUTO */
    uint32_t reference;      /* 1 = it is the CPU: the oracle of the others */
    uint64_t numerics;       /* id of order and rounding of sums, as in kvcsa_snapshot_info */
    uint64_t memory_bytes;   /* the device's own memory, 0 = it uses the host's */
    uint64_t memory_free_bytes; /* of it, now */
    uint64_t entry_formats;  /* bit KVCSA_FORMAT_*: entries that its sparse attention reads */
    uint64_t paged_formats;  /* likewise, keys and values of ordinary attention */
    char name[16];           /* "cpu", "cuda" */
    char device[64];         /* as it names itself */
    char kernels[32];        /* "AVX-512", "sm_90" for example */
    char features[768];      /* families, formats and sizes that it has kernels for, to be shown */
    char why[320];           /* why this one: what other plug-ins said */
} kvcsa_backend_info;
enum {
    KVCSA_POOL_FILL_FREED = 1u, /* overwrite a freed block with 0xA5 (for tests of your own) */
    KVCSA_POOL_ZERO_FREED = 2u, /* overwrite a freed block with zeros */
    KVCSA_POOL_FAST_DENSE = 4u  /* products of many rows with BF16 and F32 weights by the vendor's
                                 * library (cuBLASLt), where a device has one; the log says whether.
                                 * kvcsa_backend_info.numerics then is another, and bits of results
                                 * depend on how many rows are computed together: on the length of
                                 * appends, on other sessions, on what was reused. Without effect on
                                 * the CPU. Since 0.4 */
};
enum { /* who goes when room is wanted; only prefixes that no session uses and nobody pinned */
    KVCSA_EVICT_COST = 0, /* the one that was reused least, aged by what went before: a shared
                           * prefix outlives prompts that were used once */
    KVCSA_EVICT_LRU = 1   /* the one that was used longest ago */
};

typedef struct kvcsa_pool_stats {
    size_t struct_size;          /* set by the caller */
    uint64_t budget_bytes;
    uint64_t used_bytes;         /* blocks in use + windows; never above budget_bytes. A block
                                  * that several sessions share counts once */
    uint64_t reserved_bytes;     /* promised to queued tokens */
    uint64_t window_bytes;       /* window and pending rows; part of used_bytes */
    uint64_t slab_bytes;         /* memory taken from the allocator for blocks and window pages,
                                  * free ones included */
    uint64_t n_open_blocks;      /* of the cache; window pages are not counted */
    uint64_t n_sealed_blocks;
    uint64_t n_free_blocks;
    uint64_t n_sessions;
    uint64_t n_acquired;         /* blocks and pages since creation */
    uint64_t n_released;
    uint64_t evictable_bytes;    /* published blocks that nothing but the prefix tree holds; part
                                  * of used_bytes. Likewise below since 0.2 */
    uint64_t record_bytes;       /* memory for what describes blocks: token ids, keys, counts */
    uint64_t n_published_blocks; /* can be found by prefix */
    uint64_t n_pinned_blocks;    /* named by kvcsa_prefix_pin */
    uint64_t n_window_pages;     /* in use */
    uint64_t n_copied_blocks;    /* copied because somebody else reads them; since creation, as
                                  * all below */
    uint64_t n_copied_pages;     /* window pages, likewise */
    uint64_t n_evicted_blocks;
    uint64_t n_lookups;          /* searches for a prefix */
    uint64_t n_probes;           /* look-ups of a block by its key, of all searches */
    uint64_t n_hit_tokens;       /* tokens adopted by sessions */
    uint64_t n_saved_bytes;      /* written by snapshots */
    uint64_t n_saved_records;
    uint64_t n_loaded_bytes;
    uint64_t n_loaded_records;
    uint64_t host_budget_bytes;  /* kvcsa_pool_params.host_bytes; 0 where it is ignored. All else in
                                  * this record but record_bytes, n_published_blocks and
                                  * n_evicted_blocks leaves out what lies there. Likewise below
                                  * since 0.4 */
    uint64_t host_used_bytes;    /* blocks and window pages there; never above the budget */
    uint64_t host_slab_bytes;    /* pinned memory for them, free ones included */
    uint64_t n_host_blocks;
    uint64_t n_host_pages;       /* of windows stored beside these blocks */
    uint64_t n_moved_out_blocks; /* copied there, one transfer each; since creation */
    uint64_t n_moved_in_blocks;  /* copied back, likewise */
} kvcsa_pool_stats;

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_pool_params_default(kvcsa_pool_params *params, size_t struct_size);

/**
 * Create a pool: a budget of bytes shared by the caches of any number of sessions of any number of
 * models, and the threads that compute them.
 *
 * Status:  ERR_ARG (backend_dir is no absolute path); ERR_UNSUPPORTED unknown flags or values;
 *          ERR_NOMEM (also when a thread cannot be started, or the device is full); ERR_BACKEND the
 *          backend or device that was asked for is not there.
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
 * What the processor has, what the pool uses of it, and why.
 *
 * @param pool  NULL = as a pool made with default parameters would.
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_pool_get_cpu(const kvcsa_pool *pool, kvcsa_cpu_info *info,
                                          kvcsa_error *err);

/**
 * What computes in the pool, what it has kernels for, and why it was chosen. A model whose sizes or
 * formats are not among them is refused when a session is made (ERR_UNSUPPORTED with the list).
 *
 * @param pool  NULL = as a pool made with default parameters would; one is made for the call.
 * Status:  ERR_ARG; with NULL as kvcsa_pool_create().   Thread: shared.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_pool_get_backend(const kvcsa_pool *pool, kvcsa_backend_info *info,
                                              kvcsa_error *err);

/**
 * Walk every block and every count and compare (see the numbered invariants in src/pool). For tests
 * and bug reports.
 *
 * Status:  ERR_INTERNAL with the first invariant that does not hold.   Thread: shared.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_pool_check(kvcsa_pool *pool, kvcsa_error *err);

/**
 * Change the budget. A smaller one evicts prefixes until what is left fits.
 *
 * @param budget_bytes  0 = no limit of its own.
 * Status:  ERR_FULL what sessions hold and what is pinned is more: nothing was evicted, the budget
 *          is as before.   Thread: shared.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_pool_resize(kvcsa_pool *pool, uint64_t budget_bytes,
                                         kvcsa_error *err);

/**
 * Evict prefixes that no session uses and nobody pinned until used_bytes is at most
 * `max_used_bytes` or there are none left, and give free memory back to the allocator. With
 * host_bytes they go there as far as there is room; what is there stays until it is forgotten.
 *
 * @param freed_bytes  what the allocator got back. May be NULL.
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_pool_trim(kvcsa_pool *pool, uint64_t max_used_bytes,
                                       uint64_t *freed_bytes, kvcsa_error *err);

/* ------------------------------------------------------------------ session */

typedef struct kvcsa_session kvcsa_session;

enum { /* kvcsa_session_params.mode: what the two parameters below it are where they are 0 */
    KVCSA_MODE_EXACT = 0, /* reuse exact, decoder replay off: the bits of an undisturbed run */
    KVCSA_MODE_FAST = 1   /* reuse bounded, decoder replay on: the model's own approximations */
};
enum { /* use of prefixes that other sessions have computed, and how windows are rebuilt then */
    KVCSA_REUSE_DEFAULT = 0, /* of an append: the session's; of a session: the mode's */
    KVCSA_REUSE_NONE = 1,    /* compute every token. Windows after a rewind: exact */
    KVCSA_REUSE_EXACT = 2,   /* W + (L-1)(W-1) tokens are run again, or a stored window is used:
                              * the same bits as computing everything */
    KVCSA_REUSE_BOUNDED = 3  /* the last W tokens are run again through all layers: approximate.
                              * Blocks made after it stay private to the session */
};
enum {
    KVCSA_DECODER_REPLAY_DEFAULT = 0, /* the mode's */
    KVCSA_DECODER_REPLAY_OFF = 1,
    KVCSA_DECODER_REPLAY_ON = 2
};
enum { /* kvcsa_session_params.flags */
    KVCSA_SESSION_PRIVATE = 1u,     /* blocks are not published for other sessions */
    KVCSA_SESSION_WINDOW_ONLY = 2u, /* no entry is selected: every layer reads its window alone;
                                     * approximate, so known prefixes are not used. Likewise below
                                     * since 0.3 */
    KVCSA_SESSION_TRACK_MASS = 4u,  /* count what each span of tokens contributes to attention, for
                                     * kvcsa_session_get_mass; does not change results */
    KVCSA_SESSION_CACHE_ONLY = 8u   /* the host computes (kvcsa_chunk_begin), kvcsa_pool_step does
                                     * not; for models without weights, and for nothing else. Hosts
                                     * with other weights for one config.json need another salt.
                                     * Since 0.4 */
};

typedef struct kvcsa_session_params {
    size_t struct_size;
    uint32_t chunk_tokens;        /* most rows computed at once, 0 = 128; does not change
                                   * results */
    uint32_t flags;               /* KVCSA_SESSION_* */
    uint64_t salt;                /* sessions of different salts never share; 0 is one of them.
                                   * Likewise below since 0.2 */
    uint32_t mode;                /* KVCSA_MODE_* */
    uint32_t reuse;               /* KVCSA_REUSE_* */
    uint32_t decoder_replay;      /* KVCSA_DECODER_REPLAY_*: layers from the cut on run the last
                                   * window of an append only; approximate */
    uint32_t decoder_cut_layer;   /* 0 = the first layer above the last that owns entries, which
                                   * is the least allowed */
    uint32_t window_slack_tokens; /* a rewind by so many tokens is free; at most 4096. Costs their
                                   * window rows */
    uint32_t window_store_tokens; /* keep a copy of the windows beside the block that ends at
                                   * every multiple of this (a multiple of block_tokens), so that
                                   * a hit there needs no replay; 0 = none. Costs one window a
                                   * copy */
    uint32_t select_entries;      /* fewer entries are selected than the plan says; 0 = the plan's.
                                   * Approximate, so known prefixes are not used; likewise below.
                                   * Since 0.3 */
    uint32_t candidate_blocks;    /* fewer candidate blocks; 0 = the plan's */
} kvcsa_session_params;

typedef struct kvcsa_reuse {    /* what became of the tokens of an append or a sync */
    size_t struct_size;         /* set by the caller */
    uint64_t n_kept;            /* held before and still held */
    uint64_t n_adopted;         /* taken from a known prefix */
    uint64_t n_replay;          /* of those held: to be run again for windows or logits (rows of
                                 * layer 0) */
    uint64_t n_compute;         /* to be computed; n_kept + n_adopted + n_compute is the length */
    uint32_t how;               /* KVCSA_REUSE_*, in force */
    uint32_t reason;            /* KVCSA_REASON_*: why n_compute is not less */
} kvcsa_reuse;

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
    uint32_t reuse;            /* KVCSA_REUSE_*. With LOGITS_ALL or ROWS all rows are computed */
    uint32_t reserved;         /* 0 */
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

enum { /* groups of layers, by what they do about entries */
    KVCSA_LAYERS_WINDOW = 0,   /* nothing: they read their window only */
    KVCSA_LAYERS_FULL = 1,     /* make entries, and select from all of them */
    KVCSA_LAYERS_REINDEX = 2,  /* select from the entries of another layer */
    KVCSA_LAYERS_REUSE = 3     /* use another layer's selection */
};
#define KVCSA_N_LAYER_GROUPS 4

typedef struct kvcsa_work {    /* frozen: 128 bytes. What layers did, counted exactly; rows of a
                                * cancelled or failed chunk count too */
    uint64_t n_rows;           /* rows that ran through attention and feed-forward */
    uint64_t n_replayed_rows;  /* rows that came in only to rebuild windows; of these, some run
                                * no further than their window row */
    uint64_t n_selections;     /* rows for which keys were scored and the best selected; a row that
                                * sees no more entries than it may select needs none */
    uint64_t n_keys_scored;
    uint64_t n_candidate_blocks; /* published by the source, or searched by a consumer; of rows
                                  * that are scored */
    uint64_t n_entries_read;   /* selected entries that attention read */
    uint64_t n_window_rows_read;
    uint64_t n_entries_written;
    uint64_t n_window_rows_written;
    uint64_t n_blocks_touched; /* cache blocks whose keys or entries a row read: each counts once a
                                * row and part (index, main) */
    uint64_t n_experts;        /* routed: rows x experts a token */
    uint64_t read_bytes;       /* keys, entries, window rows */
    uint64_t index_read_bytes; /* of these: keys */
    uint64_t written_bytes;    /* entries, keys, window rows, raw rows */
    uint64_t reserved[2];
} kvcsa_work;

typedef struct kvcsa_session_stats {
    size_t struct_size;        /* set by the caller */
    uint64_t n_tokens;         /* committed */
    uint64_t n_queued;
    uint64_t n_entries;        /* compressed entries of all owners */
    uint64_t entry_bytes;      /* entries and index keys in use */
    uint64_t n_blocks;
    uint64_t block_bytes;      /* blocks in use, shared ones included */
    uint64_t window_bytes;     /* window rows, shared ones included */
    uint64_t workspace_bytes;  /* scratch of a step; outside the pool's budget */
    uint64_t n_computed_rows;  /* token rows computed since creation, cancelled ones included */
    uint64_t shared_bytes;     /* of block_bytes: held by somebody else too (another session or
                                * the prefix tree). Likewise below since 0.2 */
    uint64_t n_replayed_rows;  /* rows of layer 0 run again since creation */
    uint64_t n_adopted_tokens; /* since creation */
    uint64_t n_replay;         /* rows of layer 0 that the next step will run again */
    uint64_t n_exact_tokens;   /* entries below this position are those of an undisturbed run */
    kvcsa_work step[KVCSA_N_LAYER_GROUPS];  /* of the last kvcsa_pool_step that the session took
                                             * part in, by KVCSA_LAYERS_*. Since 0.3 */
    kvcsa_work total[KVCSA_N_LAYER_GROUPS]; /* since creation */
} kvcsa_session_stats;

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_session_params_default(kvcsa_session_params *params, size_t struct_size);

/**
 * Create an empty session. It takes memory from the pool as tokens are appended: blocks, and window
 * rows until the window is full.
 *
 * Status:  ERR_ARG; ERR_UNSUPPORTED plan-only model, unknown flag, mode or reuse; ERR_NOMEM.
 * Thread:  any.   Owner: the caller owns *out; it keeps pool and model.   Since: 0.1
 */
KVCSA_API kvcsa_status kvcsa_session_create(kvcsa_pool *pool, kvcsa_model *model,
                                            const kvcsa_session_params *params, kvcsa_session **out,
                                            kvcsa_error *err);

/**
 * Release a session. Blocks that nobody else holds go back to the pool; published ones stay in the
 * prefix tree until room is wanted.
 *
 * Thread: setup.  Since: 0.1
 */
KVCSA_API void kvcsa_session_release(kvcsa_session **session);

/** Fill params with defaults.  Thread: any.  Since: 0.1 */
KVCSA_API void kvcsa_append_params_default(kvcsa_append_params *params, size_t struct_size);

/**
 * Queue tokens; nothing is computed before kvcsa_pool_step. Room for them is reserved in the pool's
 * budget here, so that a step does not run out of it half way; prefixes that nobody uses are
 * evicted for it first. If the session's tokens and these begin like a known prefix, its blocks are
 * held here and used by the step instead of computing (kvcsa_session_get_reuse).
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
 * Compute queued tokens of several sessions of one pool; rows of all of them go through the matrix
 * kernels together. Works in chunks; a chunk is committed whole or not at all. Bits do not depend
 * on chunk sizes, thread counts or on which sessions are stepped together. A session without a
 * queue whose windows or logits are to be rebuilt (after a rewind, fork, sync or load) gets them
 * here.
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
 * Status:  ERR_ARG no token yet, last append asked for none, to be rebuilt by a step (after a
 *          rewind, fork to an earlier position, or load), or n_vocab not the model's; ERR_BUSY.
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

/**
 * What one layer did: of the last step, and since creation.
 *
 * @param layer        0..n_layers-1.
 * @param step, total  either may be NULL.
 * Status:  ERR_ARG; ERR_BUSY.   Thread: one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_session_layer_work(kvcsa_session *session, uint32_t layer,
                                                kvcsa_work *step, kvcsa_work *total,
                                                kvcsa_error *err);

/**
 * Hide the entries of tokens [begin, end) from selection, or show them again: rows computed from
 * now on read them no more, as if they had been dropped from the cache. Windows stay, and so do
 * logits that are there. Entries made while something is hidden are approximate, and private to the
 * session, and known prefixes are not used. A fork hides what the session hides; a snapshot does
 * not record it.
 *
 * @param begin, end  multiples of kvcsa_model_info.span_tokens; they may lie beyond the length. end
 *                    = UINT64_MAX: all from begin on (a multiple of span_tokens too).
 * @param hidden      1 = hide, 0 = show.
 * Status:  ERR_ARG, also while tokens are queued; ERR_NOMEM; ERR_BUSY.   Thread: one.
 * Since:   0.3
 */
KVCSA_API kvcsa_status kvcsa_session_hide(kvcsa_session *session, uint64_t begin, uint64_t end,
                                          int32_t hidden, kvcsa_error *err);

/**
 * Attention that entries of each span of span_tokens tokens received: probabilities, summed over
 * heads, layers and rows computed since creation, a load or the last reset (a fork begins at zero).
 * Rows that were replayed count again; spans that a rewind drops begin at zero. What a row's window
 * and sink received is not in it.
 *
 * @param mass     f64 [cap], may be NULL when cap is 0.
 * @param n_spans  spans of the session's length, also when it is more than cap.
 * @param reset    1 = begin again at zero.
 * Status:  ERR_ARG the session does not track it (KVCSA_SESSION_TRACK_MASS); ERR_BUSY.
 * Thread:  one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_session_get_mass(kvcsa_session *session, double *mass, size_t cap,
                                              size_t *n_spans, int32_t reset, kvcsa_error *err);

/**
 * Report on the last append or sync: what is kept, adopted, run again and computed, and why not
 * less. Numbers are those of the whole call, whether its steps have run or not.
 *
 * Status:  ERR_ARG; ERR_BUSY.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_session_get_reuse(kvcsa_session *session, kvcsa_reuse *reuse,
                                               kvcsa_error *err);

/**
 * How many of `tokens` the session holds already, from the first on (committed tokens only).
 *
 * @param tokens  i32 [n_tokens].
 * Status:  ERR_ARG; ERR_BUSY.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_session_common_prefix(kvcsa_session *session, const int32_t *tokens,
                                                   size_t n_tokens, size_t *n_common,
                                                   kvcsa_error *err);

/**
 * A second session that holds the first `position` tokens of this one. Blocks are shared, no byte
 * of the cache is copied; what differs later is copied when it is written. At the end of the
 * session (`position` = its length) the fork has windows and logits and costs a few hundred bytes;
 * at an earlier position, or where an exact fork leaves a session with approximate windows, they
 * are rebuilt by the next step as after a rewind.
 *
 * @param position  0..length.
 * @param params    of the new session; NULL = those of this one. window_slack_tokens and salt
 *                  must be this session's.
 * Status:  ERR_ARG position above the length, tokens are queued, other slack or salt;
 *          ERR_UNSUPPORTED; ERR_NOMEM; ERR_BUSY. The session is unchanged.
 * Thread:  one.   Owner: the caller owns *out.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_session_fork(kvcsa_session *session, uint64_t position,
                                          const kvcsa_session_params *params, kvcsa_session **out,
                                          kvcsa_error *err);

/**
 * Go back to an earlier position. Nothing is computed or copied here. A rewind by at most
 * window_slack_tokens keeps right windows, if all those tokens were computed by this session behind
 * its last replay; after a longer one the next step rebuilds them first (exact, or bounded where
 * the session's reuse is bounded), from the nearest stored window if there is one. Logits are
 * rebuilt by the next step too.
 *
 * @param position  0..length.
 * Status:  ERR_ARG position above the length, or tokens are queued; ERR_BUSY.   Thread: one.
 * Since:   0.2
 */
KVCSA_API kvcsa_status kvcsa_session_rewind(kvcsa_session *session, uint64_t position,
                                            kvcsa_error *err);

/**
 * Make the session hold exactly `tokens`: what is common stays, the rest is dropped, adopted from
 * known prefixes or queued for the next step, whichever is least work.
 *
 * @param tokens  i32 [n_tokens], the whole list; as for kvcsa_session_append.
 * @param params  of the queued rest; NULL = defaults.
 * @param reuse   as kvcsa_session_get_reuse. May be NULL.
 * Status:  as kvcsa_session_append; ERR_ARG also if tokens are queued. The session is unchanged in
 *          every case of failure.
 * Thread:  one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_session_sync(kvcsa_session *session, const int32_t *tokens,
                                          size_t n_tokens, const kvcsa_append_params *params,
                                          kvcsa_reuse *reuse, kvcsa_error *err);

enum { /* flags of kvcsa_session_erase */
    KVCSA_ERASE_SECURE = 1u /* overwrite tokens, windows, logits, scratch and every block that
                             * nobody else holds with zeros, and take its blocks out of the prefix
                             * tree; blocks that others hold are overwritten when they let go, the
                             * scratch of steps that it took together with others by theirs */
};

/**
 * Drop all tokens and the queue; the session is as new.
 *
 * Status:  ERR_ARG; ERR_UNSUPPORTED unknown flag; ERR_BUSY.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_session_erase(kvcsa_session *session, uint32_t flags,
                                           kvcsa_error *err);

typedef struct kvcsa_estimate { /* bytes of n_sessions sessions of n_tokens each */
    size_t struct_size;         /* set by the caller */
    uint64_t block_bytes;       /* blocks; what is shared counts once */
    uint64_t window_bytes;      /* window pages and pending rows */
    uint64_t used_bytes;        /* sum: what the pool's budget must hold */
    uint64_t slab_bytes;        /* memory that the pool takes from the allocator for them */
    uint64_t record_bytes;      /* and for what describes them */
    uint64_t n_blocks;
} kvcsa_estimate;

/**
 * Bytes that sessions will need, before anything is allocated.
 *
 * @param params           of the sessions; NULL = defaults.
 * @param n_shared_tokens  the first so many tokens are the same in all sessions, and published.
 * Status:  ERR_ARG; ERR_LIMIT n_tokens above max_context_tokens or the sum is above 2^63.
 * Thread:  any.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_model_estimate(const kvcsa_model *model,
                                            const kvcsa_session_params *params, uint64_t n_tokens,
                                            uint64_t n_sessions, uint64_t n_shared_tokens,
                                            kvcsa_estimate *estimate, kvcsa_error *err);

/* ------------------------------------------------------------------ prefixes */

/* Sealed blocks of exact sessions are published: found by the tokens in front of and inside them,
 * in a domain of weights, plan and formats, numerics and salt. Tokens are compared, never hashes
 * alone. */

/**
 * Length of the longest known prefix of `tokens`. It may end inside a block.
 *
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_prefix_match(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                          const int32_t *tokens, size_t n_tokens,
                                          size_t *n_matched, kvcsa_error *err);

/**
 * Publish the full blocks of a session that are not published (it was private, or they were
 * forgotten). Approximate blocks never are.
 *
 * @param n_published  tokens of the session that can be found by prefix afterwards. May be NULL.
 * Status:  ERR_ARG; ERR_BUSY.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_prefix_publish(kvcsa_session *session, uint64_t *n_published,
                                            kvcsa_error *err);

/**
 * Keep the full blocks that `tokens` begin with from being evicted, until they are unpinned as
 * often as pinned. Pinned bytes still count in the budget: what host_bytes holds of them comes back
 * first, as far as there is room.
 *
 * @param n_pinned  tokens whose blocks are pinned: the known prefix in whole blocks; 0 = none is
 *                  known. Unpin with the first n_pinned tokens. May be NULL.
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_prefix_pin(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                        const int32_t *tokens, size_t n_tokens, size_t *n_pinned,
                                        kvcsa_error *err);

/**
 * Undo one kvcsa_prefix_pin.
 *
 * Status:  ERR_ARG the known prefix of these tokens is not pinned at n_tokens.   Thread: shared.
 * Since:   0.2
 */
KVCSA_API kvcsa_status kvcsa_prefix_unpin(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                          const int32_t *tokens, size_t n_tokens, kvcsa_error *err);

/**
 * Take out of the prefix tree everything that begins with `tokens`, and the blocks that lead to it
 * as far as no other known prefix uses them. Pins on them are dropped. Sessions keep what they
 * hold.
 *
 * @param model          NULL = every prefix of the pool (tokens must be NULL too).
 * @param tokens         NULL with n_tokens 0 = every prefix of model and salt.
 * @param n_freed_bytes  of the budget, host_bytes not among them. May be NULL.
 * Status:  ERR_ARG.   Thread: shared.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_prefix_forget(kvcsa_pool *pool, const kvcsa_model *model,
                                           uint64_t salt, const int32_t *tokens, size_t n_tokens,
                                           uint64_t *n_freed_bytes, kvcsa_error *err);

/* ------------------------------------------------------------------ snapshots */

/* A session as bytes: docs/formats.md "Snapshot" describes every one of them. */

enum { /* kvcsa_snapshot_params.flags */
    KVCSA_SNAPSHOT_WINDOW = 1u,       /* save: window rows too, so that a load needs no replay. An
                                       * exact session takes no approximate ones if its entries are
                                       * exact: it rebuilds them */
    KVCSA_SNAPSHOT_LOGITS = 2u,       /* save: last logits too, if the session has them; approximate
                                       * ones beside exact entries are not */
    KVCSA_SNAPSHOT_ANY_MODEL = 4u,    /* load: another model of the same geometry; the blocks stay
                                       * private to the session */
    KVCSA_SNAPSHOT_ANY_NUMERICS = 8u, /* load: computed with another numerics id; likewise */
    KVCSA_SNAPSHOT_SALVAGE = 16u      /* load: at the first damaged record keep what is in front
                                       * of it (info->n_tokens says how much) */
};

typedef struct kvcsa_snapshot_params {
    size_t struct_size;
    const char *name; /* in a directory: which snapshot, 1..64 of A-Z a-z 0-9 . _ - not beginning
                       * with a dot; NULL = "default". Unused for a file */
    uint32_t flags;   /* KVCSA_SNAPSHOT_* */
    uint32_t reserved; /* 0 */
} kvcsa_snapshot_params;

typedef struct kvcsa_snapshot_info {
    size_t struct_size;         /* set by the caller */
    uint64_t n_tokens;
    uint64_t fingerprint;       /* of the model that it was computed with */
    uint64_t numerics;
    uint64_t salt;
    uint64_t total_bytes;       /* of the snapshot: all records and the header or manifest */
    uint64_t n_records;
    uint64_t written_bytes;     /* save: by this call */
    uint64_t n_written_records;
    uint64_t n_shared_records;  /* save: the directory had them; load: the pool had them */
    uint32_t version;           /* of the format */
    uint32_t sections;          /* KVCSA_SNAPSHOT_WINDOW | LOGITS as far as saved */
    uint32_t block_tokens;
    uint32_t exact;             /* 1 = entries are those of an undisturbed run */
} kvcsa_snapshot_info;

typedef struct kvcsa_writer { /* all n bytes, in order; 0 = OK, anything else becomes ERR_IO's
                               * detail */
    int32_t (*write)(void *user, const void *data, size_t n_bytes);
    void *user;
} kvcsa_writer;

typedef struct kvcsa_reader { /* as many of n bytes as there are, in order: fewer means the end;
                               * negative = error */
    int64_t (*read)(void *user, void *data, size_t n_bytes);
    void *user;
} kvcsa_reader;

/** Fill params with defaults: tokens, blocks and pending rows.  Thread: any.  Since: 0.2 */
KVCSA_API void kvcsa_snapshot_params_default(kvcsa_snapshot_params *params, size_t struct_size);

/**
 * Bytes that kvcsa_snapshot_write, or _save to a file, will write now.
 *
 * Status:  ERR_ARG; ERR_UNSUPPORTED unknown flag; ERR_BUSY.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_size(kvcsa_session *session,
                                           const kvcsa_snapshot_params *params, uint64_t *n_bytes,
                                           kvcsa_error *err);

/**
 * Save the committed tokens of a session and their cache. If `path` is a directory, only records
 * that it lacks are written, then the manifest of this name is replaced; else a file is written in
 * full beside `path` and renamed over it. In both cases a crash at any moment leaves the old or the
 * new snapshot.
 *
 * @param info  may be NULL.
 * Status:  ERR_IO (detail errno): the old snapshot is in place, or the new one where nothing but
 *          the last synchronisation of the directory failed, which the text says; ERR_FORMAT the
 *          directory holds a damaged manifest of this name's; ERR_ARG; ERR_UNSUPPORTED; ERR_NOMEM;
 *          ERR_BUSY.
 * Thread:  one; different processes and threads may save to one directory.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_save(kvcsa_session *session, const char *path,
                                           const kvcsa_snapshot_params *params,
                                           kvcsa_snapshot_info *info, kvcsa_error *err);

/**
 * Replace what the session holds by a snapshot (file, or directory and name). Everything is read
 * and checked before the session changes. Blocks that the pool knows already are shared, not read.
 * Without a stored window the next step rebuilds the windows, to the same bits.
 *
 * @param info  may be NULL.
 * Status:  ERR_IO; ERR_FORMAT not a snapshot, or truncated; ERR_CORRUPT a checksum; ERR_MISMATCH
 *          another model, geometry or numerics; ERR_UNSUPPORTED newer version; ERR_FULL; ERR_NOMEM;
 *          ERR_LIMIT; ERR_ARG also if tokens are queued; ERR_BUSY. The session is unchanged in
 *          every case of failure.
 * Thread:  one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_load(kvcsa_session *session, const char *path,
                                           const kvcsa_snapshot_params *params,
                                           kvcsa_snapshot_info *info, kvcsa_error *err);

/**
 * kvcsa_snapshot_save through a callback: the bytes of the file form.
 *
 * Status:  ERR_IO the writer said so; else as kvcsa_snapshot_save.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_write(kvcsa_session *session, const kvcsa_writer *writer,
                                            const kvcsa_snapshot_params *params,
                                            kvcsa_snapshot_info *info, kvcsa_error *err);

/**
 * kvcsa_snapshot_load through a callback: the bytes of the file form.
 *
 * Status:  ERR_IO the reader said so; else as kvcsa_snapshot_load.   Thread: one.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_read(kvcsa_session *session, const kvcsa_reader *reader,
                                           const kvcsa_snapshot_params *params,
                                           kvcsa_snapshot_info *info, kvcsa_error *err);

/**
 * Describe a snapshot without loading it; the header or manifest is read and checked, records are
 * not.
 *
 * Status:  as kvcsa_snapshot_load.   Thread: any.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_inspect(const char *path, const kvcsa_snapshot_params *params,
                                              kvcsa_snapshot_info *info, kvcsa_error *err);

/**
 * Remove a snapshot: the file, or the manifest of this name and the records that no other manifest
 * of the directory uses.
 *
 * Status:  ERR_IO (ENOENT: there is none); ERR_FORMAT a file that is not a snapshot is left alone;
 *          ERR_ARG.   Thread: any.   Since: 0.2
 */
KVCSA_API kvcsa_status kvcsa_snapshot_remove(const char *path, const kvcsa_snapshot_params *params,
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

/* ------------------------------------------------------------------ comparing */

/* "The answer that changes": what a setting that saves bytes does to what the model says. Rows of
 * logits of two runs over the same tokens, side by side. docs/measuring.md says what the figures
 * mean. */

typedef struct kvcsa_compare kvcsa_compare;

typedef struct kvcsa_compare_row { /* frozen: 48 bytes. One token */
    uint64_t position;     /* of the token whose successor is predicted */
    double kl;             /* sum of p_ref (log p_ref - log p_test), nat; infinity where the test
                            * excludes what the reference does not */
    float margin;          /* log p of the reference's best token less that of its second */
    float max_difference;  /* largest |logit_ref - logit_test| */
    float ref_log_prob;    /* of the token that follows, nat; NaN where there is none */
    float test_log_prob;
    int32_t ref_top;       /* ties to the lower id */
    int32_t test_top;
    uint32_t run;          /* of kvcsa_compare_begin; 0 = the first */
    uint32_t equal;        /* 1 = bit for bit the same logits */
} kvcsa_compare_row;

typedef struct kvcsa_compare_result {
    size_t struct_size;    /* set by the caller */
    uint64_t n_rows;
    uint64_t n_equal_rows; /* bit for bit the same logits */
    double kl_mean;        /* nat; all of this section 0 without rows */
    double kl_median;      /* percentiles by nearest rank */
    double kl_p99;
    double kl_p999;
    double kl_max;
    uint64_t kl_max_position;
    uint32_t kl_max_run;
    float max_difference;
    uint64_t n_flips;      /* rows whose best token is another one */
    uint64_t n_margin_01;  /* rows whose margin is above 0.1 nat */
    uint64_t n_flips_01;   /* flips among them */
    uint64_t n_margin_10;  /* above 1 nat */
    uint64_t n_flips_10;
    uint64_t n_text_rows;  /* rows with a token that follows */
    double ref_nll;        /* mean of -log p of the token that follows, nat */
    double test_nll;
    uint64_t n_greedy;     /* greedy runs */
    uint64_t n_diverged;   /* of them: with a different token */
    uint64_t n_greedy_same; /* tokens in front of the first different one, all runs */
    uint64_t n_greedy_tokens; /* longest possible sum of these */
    uint64_t first_divergence; /* least of them; UINT64_MAX = none diverged */
} kvcsa_compare_result;

/**
 * Create an empty comparison.
 *
 * @param allocator  NULL = libc.
 * Status:  ERR_ARG; ERR_NOMEM.   Thread: any.   Owner: the caller owns *out.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_create(const kvcsa_allocator *allocator, kvcsa_compare **out,
                                            kvcsa_error *err);

/** Release a comparison.  Thread: setup.  Since: 0.3 */
KVCSA_API void kvcsa_compare_release(kvcsa_compare **compare);

/**
 * Rows added from now on belong to another run (text, prompt); runs are numbered from 0. Without
 * rows since the last call nothing changes.
 *
 * Status:  ERR_ARG.   Thread: one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_begin(kvcsa_compare *compare, kvcsa_error *err);

/**
 * Add one row. Sums are made in double; the same logits give exactly 0. The rows may come from
 * anywhere, also from another engine.
 *
 * @param next_token  that follows in the text; -1 = none.
 * @param ref, test   f32 [n_vocab]; -infinity is a probability of 0.
 * Status:  ERR_ARG NaN or +infinity in the logits, n_vocab 0, next_token out of range; ERR_NOMEM.
 * Thread:  one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_add(kvcsa_compare *compare, uint64_t position,
                                         int32_t next_token, const float *ref, const float *test,
                                         uint32_t n_vocab, kvcsa_error *err);

/**
 * Add a greedy run: two free continuations of one prompt.
 *
 * @param ref, test  i32 [n_tokens].
 * Status:  ERR_ARG; ERR_NOMEM.   Thread: one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_add_greedy(kvcsa_compare *compare, const int32_t *ref,
                                                const int32_t *test, size_t n_tokens,
                                                kvcsa_error *err);

/** Figures of all rows so far.  Status: ERR_ARG; ERR_NOMEM.  Thread: one.  Since: 0.3 */
KVCSA_API kvcsa_status kvcsa_compare_get_result(const kvcsa_compare *compare,
                                                kvcsa_compare_result *result, kvcsa_error *err);

/**
 * Rows from number `from` on, in the order they were added.
 *
 * @param rows    [cap], may be NULL when cap is 0.
 * @param n_rows  all rows - from, also when it is more than cap.
 * Status:  ERR_ARG from above the number of rows.   Thread: one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_get_rows(const kvcsa_compare *compare, uint64_t from,
                                              kvcsa_compare_row *rows, size_t cap, size_t *n_rows,
                                              kvcsa_error *err);

/**
 * First divergence of each greedy run: tokens in front of the first different one, or the run's
 * length.
 *
 * @param n_same    u64 [cap], may be NULL when cap is 0.
 * @param n_greedy  number of runs, also when it is more than cap.
 * Status:  ERR_ARG.   Thread: one.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_get_greedy(const kvcsa_compare *compare, uint64_t *n_same,
                                                size_t cap, size_t *n_greedy, kvcsa_error *err);

enum { /* kvcsa_setting.flags */
    KVCSA_SETTING_CHAIN_HITS = 1u /* a hit finds what this setting has made itself (a timeline that
                                   * is resumed again and again); without it, what an exact run
                                   * has made (each hit is the first) */
};

typedef struct kvcsa_setting {   /* one way to run a text */
    size_t struct_size;
    kvcsa_model *model;          /* borrowed */
    kvcsa_pool *pool;            /* borrowed */
    const kvcsa_session_params *session; /* NULL = defaults. reuse says how windows are rebuilt at
                                  * hits; known prefixes of the pool are not used */
    uint64_t append_tokens;      /* the text comes in appends of so many tokens; 0 = 128. With
                                  * decoder replay only their last window has logits */
    uint64_t hit_tokens;         /* 0 = never; else at every multiple the windows are lost, as after
                                  * a prefix hit, and rebuilt; a multiple of append_tokens */
    uint64_t keep_first_tokens;  /* with keep_last_tokens: in front of every append, entries of all
                                  * tokens but these are hidden. Rounded up to spans */
    uint64_t keep_last_tokens;   /* 0 = all are kept */
    float keep_fraction;         /* in front of every append all but this part of the spans are
                                  * hidden: kept are those that received most attention so far, and
                                  * one that is not full; 0 or 1 = all are kept */
    uint32_t flags;              /* KVCSA_SETTING_* */
    const uint64_t *hidden;      /* u64 [n_hidden, 2]: tokens begin, end, as kvcsa_session_hide:
                                  * hidden from the beginning */
    size_t n_hidden;
} kvcsa_setting;

/** Fill setting with defaults: exact.  Thread: any.  Since: 0.3 */
KVCSA_API void kvcsa_setting_default(kvcsa_setting *setting, size_t struct_size);

typedef struct kvcsa_compare_progress { /* copied */
    int32_t (*progress)(void *user, uint64_t n_done_rows, uint64_t n_rows); /* not 0 = cancel */
    void *user;
} kvcsa_compare_progress;

/**
 * Run one text under a reference and under other settings, side by side, every run fed the text's
 * tokens, and add each row of logits that a test run has to its comparison. Every run is a session
 * of its own that is released at the end. The vocabularies must be the same.
 *
 * @param tests     [n_tests].
 * @param compares  [n_tests]; kvcsa_compare_begin is called on each.
 * @param tokens    i32 [n_tokens].
 * @param first     rows in front of this position are not compared.
 * @param progress  may be NULL.
 * Status:  as kvcsa_session_append and kvcsa_pool_step; ERR_CANCELLED; ERR_ARG also if the
 *          vocabularies differ, or append_tokens of one setting does not divide the largest of all.
 *          Rows added before a failure stay.
 * Thread:  shared for model and pool; one for each compare.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_text(const kvcsa_setting *reference,
                                          const kvcsa_setting *tests,
                                          kvcsa_compare *const *compares, size_t n_tests,
                                          const int32_t *tokens, size_t n_tokens, uint64_t first,
                                          const kvcsa_compare_progress *progress,
                                          kvcsa_error *err);

/**
 * Let the reference and other settings go on with a prompt freely, each taking its likeliest token,
 * and add the continuations to the comparisons (kvcsa_compare_add_greedy). The image token is never
 * taken. The prompt is run as kvcsa_compare_text runs it.
 *
 * @param n_generate  tokens of each continuation.
 * @param generated   i32 [n_tests + 1, n_generate]: the reference's, then the tests'. May be NULL.
 * Status:  as kvcsa_compare_text.   Thread: likewise.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_compare_greedy(const kvcsa_setting *reference,
                                            const kvcsa_setting *tests,
                                            kvcsa_compare *const *compares, size_t n_tests,
                                            const int32_t *tokens, size_t n_tokens,
                                            size_t n_generate, int32_t *generated,
                                            const kvcsa_compare_progress *progress,
                                            kvcsa_error *err);

/* ------------------------------------------------------------------ what a cache costs */

enum { KVCSA_ATTENTION_TP = 0, KVCSA_ATTENTION_DP = 1 }; /* heads of every sequence, or whole
                                                          * sequences, are spread over devices */

typedef struct kvcsa_serving_params { /* a number of equal sequences on a number of devices */
    size_t struct_size;
    uint64_t n_tokens;          /* context of each */
    uint64_t n_users;           /* sequences; default 1 */
    uint64_t n_shared_tokens;   /* the first so many tokens are the same in all */
    uint32_t n_devices;         /* default 1 */
    uint32_t attention;         /* KVCSA_ATTENTION_* */
    uint64_t device_bytes;      /* free for caches on one device; 0 = not asked */
    double tokens_per_second;   /* of each user; 0 = not asked */
    uint64_t dense_bytes;       /* weights that every step reads */
    uint64_t expert_bytes;      /* of one expert; 0 = the model's, likewise below */
    uint32_t n_experts;
    uint32_t n_experts_per_token;
    uint32_t n_moe_layers;
    uint32_t reserved;
} kvcsa_serving_params;

typedef struct kvcsa_serving_cost {
    size_t struct_size;         /* set by the caller */
    uint64_t resident_bytes;    /* all devices; what is shared counts once a device that holds it */
    uint64_t device_resident_bytes; /* of the fullest device */
    uint64_t read_bytes;        /* from caches by one step of all users, all devices */
    uint64_t device_read_bytes; /* of the busiest device */
    uint64_t parked_bytes;      /* kept off-device to resume all of them (persist_bytes; what is
                                 * shared counts once) */
    uint64_t max_users;         /* that fit into device_bytes on every device; 0 = not asked; 2^63
                                 * - 1 = no limit */
    double written_bytes;       /* by one step of all users, all devices */
    double distinct_experts;    /* expected in one layer for one token of each user, if routing were
                                 * uniform */
    double weight_bytes;        /* dense_bytes + expected experts of all layers */
    double read_bytes_per_second; /* caches; 0 = not asked */
    double device_rate;         /* bytes that one more token of one sequence takes on one device
                                 * that holds it */
} kvcsa_serving_cost;

/** Fill params with defaults.  Thread: any.  Since: 0.3 */
KVCSA_API void kvcsa_serving_params_default(kvcsa_serving_params *params, size_t struct_size);

/**
 * What devices hold, read and write for a number of sequences, from the plan alone.
 *
 * Status:  ERR_ARG n_shared_tokens above n_tokens, n_users or n_devices 0, n_experts_per_token
 *          above n_experts, tokens_per_second negative or not finite; ERR_UNSUPPORTED attention
 *          unknown, reserved not 0; ERR_LIMIT n_tokens above max_context_tokens, or a sum above
 *          2^63; ERR_NOMEM.
 * Thread:  any.   Source: docs/measuring.md "Cost".   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_model_serving_cost(const kvcsa_model *model,
                                                const kvcsa_serving_params *params,
                                                kvcsa_serving_cost *cost, kvcsa_error *err);

typedef struct kvcsa_resume_params { /* a sequence that comes back */
    size_t struct_size;
    uint64_t n_tokens;
    double tier_bytes_per_second; /* of the place where it rests */
    double tier_bytes;          /* its capacity; 0 = not asked */
    double flops_per_token;     /* of a prefill; 2 x active parameters */
    double flops_per_second;    /* that a prefill reaches */
    uint32_t n_replay_tokens;   /* run again after a load to rebuild windows */
    uint32_t reserved;
} kvcsa_resume_params;

typedef struct kvcsa_resume_cost {
    size_t struct_size;         /* set by the caller */
    uint64_t n_bytes;           /* to load: persist_bytes */
    double load_seconds;
    double replay_seconds;
    double recompute_seconds;
    double ratio;               /* recompute / (load + replay); 0 for no tokens, infinity if
                                 * nothing takes time */
    double break_even_bytes_per_second; /* tier speed at which loading only just pays, replay
                                 * included; infinity if it never does */
    double n_parked;            /* sequences that the tier holds; 0 = not asked */
} kvcsa_resume_cost;

/** Fill params with defaults.  Thread: any.  Since: 0.3 */
KVCSA_API void kvcsa_resume_params_default(kvcsa_resume_params *params, size_t struct_size);

/**
 * Load or compute again: which is faster for a sequence of n_tokens.
 *
 * Status:  ERR_ARG a speed or flops_per_token that is not above 0 and finite; ERR_UNSUPPORTED
 *          reserved not 0; ERR_LIMIT.   Thread: any.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_model_resume_cost(const kvcsa_model *model,
                                               const kvcsa_resume_params *params,
                                               kvcsa_resume_cost *cost, kvcsa_error *err);

typedef struct kvcsa_agent_params { /* an agent's session: call after call on one growing context */
    size_t struct_size;
    uint64_t n_calls;
    uint64_t context_tokens;    /* in front of the first call */
    uint64_t tool_tokens;       /* appended by each result */
    uint64_t generated_tokens;  /* by each call */
    uint32_t reread_generated;  /* 1 = later calls have what was generated in their context (the
                                 * default) */
    uint32_t reserved;
    double hit_price;           /* per million tokens, in any currency */
    double miss_price;
    double output_price;
} kvcsa_agent_params;

typedef struct kvcsa_agent_cost {
    size_t struct_size;         /* set by the caller */
    uint64_t n_hit_tokens;
    uint64_t n_miss_tokens;
    uint64_t n_output_tokens;
    double hit_cost;
    double miss_cost;
    double output_cost;
    double cost;
    double uncached_cost;       /* if every token of every call's context were a miss */
} kvcsa_agent_cost;

/** Fill params with defaults.  Thread: any.  Since: 0.3 */
KVCSA_API void kvcsa_agent_params_default(kvcsa_agent_params *params, size_t struct_size);

/**
 * What an agent's session costs where hits, misses and output have prices. Needs no model.
 *
 * Status:  ERR_ARG n_calls 0, reread_generated above 1, negative or non-finite price;
 *          ERR_UNSUPPORTED reserved not 0; ERR_LIMIT tokens above 2^63.
 * Thread:  any.   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_agent_get_cost(const kvcsa_agent_params *params,
                                            kvcsa_agent_cost *cost, kvcsa_error *err);

/* ------------------------------------------------------------------ synthetic checkpoints */

typedef struct kvcsa_synth_params {
    size_t struct_size;
    const kvcsa_allocator *allocator; /* NULL = libc */
    uint64_t seed;
    uint64_t shard_bytes;       /* largest payload of a file; 0 = 4 GiB. A tensor is never cut */
    int32_t (*progress)(void *user, uint64_t n_done_bytes, uint64_t n_bytes); /* not 0 = cancel;
                                 * may be NULL */
    void *user;
} kvcsa_synth_params;

typedef struct kvcsa_synth_info {
    size_t struct_size;         /* set by the caller */
    uint64_t total_bytes;       /* payload of all tensors */
    uint32_t n_tensors;
    uint32_t n_shards;
} kvcsa_synth_info;

/** Fill params with defaults.  Thread: any.  Since: 0.3 */
KVCSA_API void kvcsa_synth_params_default(kvcsa_synth_params *params, size_t struct_size);

/**
 * Write a checkpoint of random weights in the released format, for tests and measurements of any
 * size: config.json (a copy), tokenizer.json (bytes and made-up words), shards and their index. The
 * bytes depend on configuration and seed alone. Memory does not grow with the model.
 *
 * @param config     a config.json.
 * @param directory  made if it is not there; must not hold a config.json, nor any file that is to
 *                   be written. NULL = write nothing, only fill info.
 * @param info       may be NULL.
 * Status:  as kvcsa_model_open for the configuration; ERR_UNSUPPORTED also if no vocabulary of its
 *          size can be made up; ERR_ARG the directory holds a checkpoint; ERR_IO; ERR_CANCELLED;
 *          ERR_NOMEM. What was written before a failure is removed.
 * Thread:  any.   Source: docs/formats.md "Synthetic checkpoints".   Since: 0.3
 */
KVCSA_API kvcsa_status kvcsa_synth_checkpoint(const char *config, const char *directory,
                                              const kvcsa_synth_params *params,
                                              kvcsa_synth_info *info, kvcsa_error *err);

/* ------------------------------------------------------------------ a network of the host's own */

/* A host that computes by itself uses sessions for their cache alone (KVCSA_SESSION_CACHE_ONLY).
 * Tokens are appended as ever, so that known prefixes, forks, rewinds, snapshots and tiers work as
 * they do for everybody; where kvcsa_pool_step would compute rows, the host does:
 *
 *   kvcsa_chunk_begin    which rows come next; what is known of them has been adopted
 *   of every layer, in ascending order:
 *     kvcsa_chunk_write   its entries, index keys and window rows
 *     kvcsa_chunk_select  where it makes a selection
 *     kvcsa_chunk_attend  softmax over its window and the selected entries, or over all positions
 *   kvcsa_chunk_commit   the session holds these tokens now; or kvcsa_chunk_abandon
 *
 * While a chunk is open, every other call on its session gives KVCSA_ERR_BUSY, but for release,
 * cancel, kvcsa_session_length and kvcsa_session_read_rows. Rows are the host's floats: it rotates
 * keys and queries, and rotates back what it attends to if values carry a rotation.
 * See docs/guide-own-network.md. */

typedef struct kvcsa_plan_params {
    size_t struct_size;
    const kvcsa_allocator *allocator; /* NULL = libc */
    const kvcsa_log *log;             /* NULL = silent */
    const char *name;                 /* kvcsa_model_info.architecture; NULL = "plan" */
    uint64_t identity;                /* of the weights that make the rows. Sessions share where
                                       * rows, name and identity are the same */
    uint64_t max_tokens;              /* context limit, at most 2^32 - 1, which 0 means too */
    uint32_t block_tokens;            /* as in kvcsa_model_params */
    uint32_t vocab_tokens;            /* token ids are below; 0 = any of 0 .. 2^31 - 1 */
} kvcsa_plan_params;

/** Fill params with defaults.  Thread: any.  Since: 0.4 */
KVCSA_API void kvcsa_plan_params_default(kvcsa_plan_params *params, size_t struct_size);

/**
 * A model from a cache plan alone: cost, estimates and KVCSA_SESSION_CACHE_ONLY sessions work with
 * it. (kvcsa_model_open with KVCSA_MODEL_PLAN_ONLY makes one from a config.json.)
 *
 * What follows from other fields may be 0: entry_bytes, index_bytes, window_bytes, pending_bytes,
 * a single kv_heads, the value_width of KVCSA_VALUE_ALIAS; where they are not, they must be right.
 * cost_only is not read. A field without a meaning in its row must be 0. Fields of a row say nothing
 * of the layer in front of it: give each in full, owners as layer numbers, -1 for none.
 *
 * @param rows    [n_rows], layer 0 first; all with the struct_size of the first one, which is their
 *                distance too. Copied.
 * @param n_rows  1..1024.
 * Status:  ERR_ARG; ERR_FORMAT a row breaks a rule of plans (text names layer, field, value and
 *          limit); ERR_UNSUPPORTED a struct is larger than known and not zero there; ERR_NOMEM.
 * Thread:  any.   Owner: the caller owns *out.   Source: docs/formats.md "Plan rows".   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_model_from_plan(const kvcsa_plan_row *rows, size_t n_rows,
                                             const kvcsa_plan_params *params, kvcsa_model **out,
                                             kvcsa_error *err);

typedef struct kvcsa_chunk_info { /* the rows that are to be computed */
    size_t struct_size;         /* set by the caller */
    uint64_t position;          /* of the first row */
    uint64_t n_queued;          /* tokens of the session that are left to come after these */
    const int32_t *tokens;      /* i32 [n_rows]; likewise below the session's, until the chunk is
                                 * closed */
    const uint64_t *first_rows; /* u64 [n_layers + 1]: of a layer, window rows are wanted from
                                 * position first_rows[layer] on, queries from first_rows[layer + 1]
                                 * on; those below are not looked at */
    uint32_t n_rows;            /* 0 = nothing is to be computed, and no chunk is open */
    uint32_t replay;            /* 1 = the session holds these tokens; entries and index keys are
                                 * there, windows are made anew. Or it is the last token alone, for
                                 * its output, where all of an append was known or after a
                                 * rewind */
} kvcsa_chunk_info;

/**
 * Open a chunk: the next rows of what was appended, or of windows that have to be rebuilt first.
 * Known prefixes are adopted here (kvcsa_session_get_reuse tells).
 *
 * @param session   made with KVCSA_SESSION_CACHE_ONLY.
 * @param max_rows  0 = chunk_tokens of the session, which bounds it in any case.
 * Status:  ERR_ARG the session is not cache-only; ERR_BUSY a chunk is open; ERR_FULL, ERR_NOMEM,
 *          ERR_BACKEND: the queue is as it was; ERR_CANCELLED kvcsa_session_cancel was called: the
 *          queue is empty, the session as before the append.
 * Thread:  one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_chunk_begin(kvcsa_session *session, uint32_t max_rows,
                                         kvcsa_chunk_info *info, kvcsa_error *err);

typedef struct kvcsa_rows { /* f32 [n, heads, width]; the channels of a head lie side by side.
                             * Frozen */
    const float *data;  /* NULL = there are none */
    size_t row_stride;  /* floats from a row to the next; 0 = heads x width */
    size_t head_stride; /* floats from a head to the next; 0 = width */
} kvcsa_rows;
enum { /* flags of kvcsa_chunk_rows, _queries and _attention */
    KVCSA_ROWS_ON_DEVICE = 1u /* data and out are pointers of the pool's device. Whatever fills them
                               * has finished; results are there when the call returns */
};

typedef struct kvcsa_chunk_rows { /* zero it and set struct_size; likewise below */
    size_t struct_size;
    kvcsa_rows key;       /* [n_entries, kv_heads, entry_width] of the entries that the rows
                           * complete: numbers position / ratio .. (position + n_rows) / ratio - 1;
                           * of layers that own entries, but not in a replay */
    kvcsa_rows value;     /* [n_entries, kv_heads, value_width] likewise, with KVCSA_VALUE_OWN */
    kvcsa_rows index_key; /* [n_entries, 1, index_width] likewise, where index_bytes is not 0 */
    kvcsa_rows window;    /* [n_rows, 1, width], where the layer has a window: entry_width, or,
                           * without entries (ratio 0), as many channels as window_bytes hold */
    kvcsa_rows pending;   /* [n_rows, 1, pending_bytes / 4 / (ratio - 1)] what the host wants of the
                           * rows of an entry when a later chunk completes it
                           * (KVCSA_READ_PENDING), where pending_bytes is not 0 */
    uint32_t flags;       /* KVCSA_ROWS_* */
    uint32_t reserved;    /* 0 */
} kvcsa_chunk_rows;

/**
 * Quantise and store what a layer makes of the open chunk. Needed once of every layer that owns
 * entries or has a window, before anything attends to it; a second time replaces the first.
 *
 * Status:  ERR_ARG no chunk is open, no such layer, rows missing, or given where there are none;
 *          ERR_UNSUPPORTED flags, or a device where the pool has none; ERR_NOMEM; ERR_BACKEND. The
 *          chunk stays open.
 * Thread:  one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_chunk_write(kvcsa_session *session, uint32_t layer,
                                         const kvcsa_chunk_rows *rows, kvcsa_error *err);

typedef struct kvcsa_chunk_queries {
    size_t struct_size;
    kvcsa_rows query;   /* [n_rows, index_heads, index_width], rotated */
    kvcsa_rows weights; /* [n_rows, 1, index_heads] of the heads' scores; times index_width^-0.5 x
                         * index_heads^-0.5 here */
    int32_t *ids;       /* i32 [n_rows, select_entries] out, the host's memory: the entries,
                         * ascending, -1 behind them; NULL = not wanted */
    uint32_t flags;     /* KVCSA_ROWS_* */
    uint32_t reserved;  /* 0 */
} kvcsa_chunk_queries;

/**
 * Score the index keys and select, with two levels where the plan has candidates. The selection
 * serves the layer and those that inherit it, until the next one. Limits of the session and hidden
 * spans hold.
 *
 * Status:  ERR_ARG no chunk is open, the layer makes no selection, the layers whose keys or
 *          candidates it reads were not written or selected; otherwise as kvcsa_chunk_write().
 * Thread:  one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_chunk_select(kvcsa_session *session, uint32_t layer,
                                          const kvcsa_chunk_queries *queries, kvcsa_error *err);

typedef struct kvcsa_chunk_attention {
    size_t struct_size;
    kvcsa_rows query;       /* [n_rows, n_heads, entry_width], rotated; with ratio 0 as wide as
                             * window rows, as is out */
    float *out;             /* f32 [n_rows, n_heads, value_width] */
    size_t out_row_stride;  /* as in kvcsa_rows */
    size_t out_head_stride;
    const float *sink;      /* f32 [n_heads] logits in the denominator, the host's memory; NULL =
                             * none */
    uint32_t n_heads;       /* a multiple of kv_heads */
    float scale;            /* of query x key; 0 = entry_width^-0.5 */
    uint32_t flags;         /* KVCSA_ROWS_* */
    uint32_t reserved;      /* 0 */
} kvcsa_chunk_attention;

/**
 * Attention of the chunk's rows, each up to its own position. A window and selected entries share
 * one softmax; with KVCSA_SELECT_ALL it goes over all entries, and n_heads / kv_heads query heads
 * share a KV head. Rows of out below first_rows[layer + 1] stay as they are; out does not overlap
 * query.
 *
 * Status:  ERR_ARG also where the layer was not written, or select was not called for the selection
 *          that it uses; otherwise as kvcsa_chunk_write().
 * Thread:  one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_chunk_attend(kvcsa_session *session, uint32_t layer,
                                          const kvcsa_chunk_attention *attention, kvcsa_error *err);

/**
 * Close the chunk: its tokens are the session's, full blocks are sealed and published.
 *
 * Status:  ERR_ARG no chunk is open, or a layer was not written: the chunk stays open.
 *          ERR_CANCELLED: it is closed, the session is as before the append. ERR_NOMEM,
 *          ERR_BACKEND: it is closed, the session as before the chunk, but for windows, which a
 *          replay has to make anew.
 * Thread:  one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_chunk_commit(kvcsa_session *session, kvcsa_error *err);

/**
 * Close the chunk without a trace; its tokens are queued again. Without one nothing happens.
 *
 * Thread: one.   Since: 0.4
 */
KVCSA_API void kvcsa_chunk_abandon(kvcsa_session *session);

enum { /* what kvcsa_session_read_rows reads of a layer, and what it counts rows in */
    KVCSA_READ_KEYS = 1,       /* keys of entries: f32 [n, kv_heads, entry_width] */
    KVCSA_READ_VALUES = 2,     /* values of entries: f32 [n, kv_heads, value_width]; with
                                * KVCSA_VALUE_ALIAS and _PREFIX channels of the keys */
    KVCSA_READ_INDEX_KEYS = 3, /* index keys of entries: f32 [n, index_width] */
    KVCSA_READ_WINDOW = 4,     /* window rows of positions: f32 [n, entry_width]; as many as the
                                * window has stand in front of the chunk, or at the end */
    KVCSA_READ_PENDING = 5     /* pending rows of positions: f32 [n, pending_bytes / 4 / (ratio -
                                * 1)], of the entry that is not complete */
};

/**
 * Read rows of the cache back as floats, as attention sees them. Of a layer that reads another's
 * entries or index keys, they are the owner's.
 *
 * @param first, n  entries or positions. Entries and index keys of an open chunk can be read once
 *                  they are written.
 * @param out       f32, see KVCSA_READ_*; the host's memory.
 * @param cap       floats that there is room for at out.
 * Status:  ERR_ARG no such layer or rows, the layer has none, or cap is too small; ERR_NOMEM;
 *          ERR_BACKEND.   Thread: one.   Since: 0.4
 */
KVCSA_API kvcsa_status kvcsa_session_read_rows(kvcsa_session *session, uint32_t layer,
                                               uint32_t what, uint64_t first, uint64_t n,
                                               float *out, size_t cap, kvcsa_error *err);

/* ------------------------------------------------------------------ all of it as one table */

/* Every function above, for hosts that load the library by hand: dlopen, then one dlsym. New
 * functions are added at the end; nothing is moved or taken out (lib/kvcsa_api.txt is the list). */
typedef struct kvcsa_api {
    size_t struct_size; /* of the library that filled it: members that lie beyond are not there */
    uint32_t version;   /* as kvcsa_version_number() */
    uint32_t abi;       /* KVCSA_ABI of the library */
    const char *(*status_name)(kvcsa_status status);
    uint32_t (*version_number)(void);
    const char *(*version_string)(void);
    const char *(*format_name)(uint32_t format);
    void (*model_params_default)(kvcsa_model_params *params, size_t struct_size);
    kvcsa_status (*model_open)(const char *path, const kvcsa_model_params *params,
                               kvcsa_model **out, kvcsa_error *err);
    void (*model_release)(kvcsa_model **model);
    kvcsa_status (*model_get_info)(const kvcsa_model *model, kvcsa_model_info *info,
                                   kvcsa_error *err);
    kvcsa_status (*model_plan_row)(const kvcsa_model *model, uint32_t layer, kvcsa_plan_row *row,
                                   kvcsa_error *err);
    kvcsa_status (*model_cost)(const kvcsa_model *model, uint64_t n_tokens, kvcsa_cost *cost,
                               kvcsa_error *err);
    kvcsa_status (*model_tokenize)(const kvcsa_model *model, const char *text, size_t n_bytes,
                                   uint32_t flags, int32_t *ids, size_t cap, size_t *n_ids,
                                   kvcsa_error *err);
    kvcsa_status (*model_token_text)(const kvcsa_model *model, int32_t id, const char **text,
                                     size_t *n_bytes, kvcsa_error *err);
    kvcsa_status (*model_detokenize)(const kvcsa_model *model, const int32_t *ids, size_t n_ids,
                                     char *text, size_t cap, size_t *n_bytes, kvcsa_error *err);
    kvcsa_status (*model_chat_prompt)(const kvcsa_model *model, const kvcsa_message *messages,
                                      size_t n_messages, int32_t *ids, size_t cap, size_t *n_ids,
                                      kvcsa_error *err);
    kvcsa_status (*text_stream_create)(kvcsa_model *model, const char *const *stops, size_t n_stops,
                                       kvcsa_text_stream **out, kvcsa_error *err);
    kvcsa_status (*text_stream_push)(kvcsa_text_stream *stream, int32_t token, const char **text,
                                     size_t *n_bytes, int32_t *stopped, kvcsa_error *err);
    kvcsa_status (*text_stream_finish)(kvcsa_text_stream *stream, const char **text,
                                       size_t *n_bytes, kvcsa_error *err);
    void (*text_stream_release)(kvcsa_text_stream **stream);
    void (*pool_params_default)(kvcsa_pool_params *params, size_t struct_size);
    kvcsa_status (*pool_create)(const kvcsa_pool_params *params, kvcsa_pool **out,
                                kvcsa_error *err);
    void (*pool_release)(kvcsa_pool **pool);
    kvcsa_status (*pool_get_stats)(kvcsa_pool *pool, kvcsa_pool_stats *stats, kvcsa_error *err);
    kvcsa_status (*pool_get_cpu)(const kvcsa_pool *pool, kvcsa_cpu_info *info, kvcsa_error *err);
    kvcsa_status (*pool_get_backend)(const kvcsa_pool *pool, kvcsa_backend_info *info,
                                     kvcsa_error *err);
    kvcsa_status (*pool_check)(kvcsa_pool *pool, kvcsa_error *err);
    kvcsa_status (*pool_resize)(kvcsa_pool *pool, uint64_t budget_bytes, kvcsa_error *err);
    kvcsa_status (*pool_trim)(kvcsa_pool *pool, uint64_t max_used_bytes, uint64_t *freed_bytes,
                              kvcsa_error *err);
    void (*session_params_default)(kvcsa_session_params *params, size_t struct_size);
    kvcsa_status (*session_create)(kvcsa_pool *pool, kvcsa_model *model,
                                   const kvcsa_session_params *params, kvcsa_session **out,
                                   kvcsa_error *err);
    void (*session_release)(kvcsa_session **session);
    void (*append_params_default)(kvcsa_append_params *params, size_t struct_size);
    kvcsa_status (*session_append)(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                   const kvcsa_append_params *params, uint64_t *out_pos,
                                   kvcsa_error *err);
    void (*step_params_default)(kvcsa_step_params *params, size_t struct_size);
    kvcsa_status (*pool_step)(kvcsa_pool *pool, kvcsa_session *const *sessions, size_t n_sessions,
                              const kvcsa_step_params *params, kvcsa_step_result *results,
                              kvcsa_error *err);
    void (*session_cancel)(kvcsa_session *session);
    kvcsa_status (*session_get_logits)(kvcsa_session *session, float *logits, uint32_t n_vocab,
                                       kvcsa_error *err);
    uint64_t (*session_length)(const kvcsa_session *session);
    kvcsa_status (*session_get_tokens)(kvcsa_session *session, uint64_t from, int32_t *tokens,
                                       size_t cap, size_t *n_tokens, kvcsa_error *err);
    kvcsa_status (*session_get_stats)(kvcsa_session *session, kvcsa_session_stats *stats,
                                      kvcsa_error *err);
    kvcsa_status (*session_layer_work)(kvcsa_session *session, uint32_t layer, kvcsa_work *step,
                                       kvcsa_work *total, kvcsa_error *err);
    kvcsa_status (*session_hide)(kvcsa_session *session, uint64_t begin, uint64_t end,
                                 int32_t hidden, kvcsa_error *err);
    kvcsa_status (*session_get_mass)(kvcsa_session *session, double *mass, size_t cap,
                                     size_t *n_spans, int32_t reset, kvcsa_error *err);
    kvcsa_status (*session_get_reuse)(kvcsa_session *session, kvcsa_reuse *reuse, kvcsa_error *err);
    kvcsa_status (*session_common_prefix)(kvcsa_session *session, const int32_t *tokens,
                                          size_t n_tokens, size_t *n_common, kvcsa_error *err);
    kvcsa_status (*session_fork)(kvcsa_session *session, uint64_t position,
                                 const kvcsa_session_params *params, kvcsa_session **out,
                                 kvcsa_error *err);
    kvcsa_status (*session_rewind)(kvcsa_session *session, uint64_t position, kvcsa_error *err);
    kvcsa_status (*session_sync)(kvcsa_session *session, const int32_t *tokens, size_t n_tokens,
                                 const kvcsa_append_params *params, kvcsa_reuse *reuse,
                                 kvcsa_error *err);
    kvcsa_status (*session_erase)(kvcsa_session *session, uint32_t flags, kvcsa_error *err);
    kvcsa_status (*model_estimate)(const kvcsa_model *model, const kvcsa_session_params *params,
                                   uint64_t n_tokens, uint64_t n_sessions, uint64_t n_shared_tokens,
                                   kvcsa_estimate *estimate, kvcsa_error *err);
    kvcsa_status (*prefix_match)(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                 const int32_t *tokens, size_t n_tokens, size_t *n_matched,
                                 kvcsa_error *err);
    kvcsa_status (*prefix_publish)(kvcsa_session *session, uint64_t *n_published, kvcsa_error *err);
    kvcsa_status (*prefix_pin)(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                               const int32_t *tokens, size_t n_tokens, size_t *n_pinned,
                               kvcsa_error *err);
    kvcsa_status (*prefix_unpin)(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                 const int32_t *tokens, size_t n_tokens, kvcsa_error *err);
    kvcsa_status (*prefix_forget)(kvcsa_pool *pool, const kvcsa_model *model, uint64_t salt,
                                  const int32_t *tokens, size_t n_tokens, uint64_t *n_freed_bytes,
                                  kvcsa_error *err);
    void (*snapshot_params_default)(kvcsa_snapshot_params *params, size_t struct_size);
    kvcsa_status (*snapshot_size)(kvcsa_session *session, const kvcsa_snapshot_params *params,
                                  uint64_t *n_bytes, kvcsa_error *err);
    kvcsa_status (*snapshot_save)(kvcsa_session *session, const char *path,
                                  const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                  kvcsa_error *err);
    kvcsa_status (*snapshot_load)(kvcsa_session *session, const char *path,
                                  const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                  kvcsa_error *err);
    kvcsa_status (*snapshot_write)(kvcsa_session *session, const kvcsa_writer *writer,
                                   const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                   kvcsa_error *err);
    kvcsa_status (*snapshot_read)(kvcsa_session *session, const kvcsa_reader *reader,
                                  const kvcsa_snapshot_params *params, kvcsa_snapshot_info *info,
                                  kvcsa_error *err);
    kvcsa_status (*snapshot_inspect)(const char *path, const kvcsa_snapshot_params *params,
                                     kvcsa_snapshot_info *info, kvcsa_error *err);
    kvcsa_status (*snapshot_remove)(const char *path, const kvcsa_snapshot_params *params,
                                    kvcsa_error *err);
    void (*sampler_params_default)(kvcsa_sampler_params *params, size_t struct_size);
    kvcsa_status (*sample_logits)(const float *logits, uint32_t n_vocab, uint64_t position,
                                  const kvcsa_sampler_params *params, int32_t *token,
                                  kvcsa_error *err);
    kvcsa_status (*session_sample)(kvcsa_session *session, const kvcsa_sampler_params *params,
                                   int32_t *token, kvcsa_error *err);
    kvcsa_status (*compare_create)(const kvcsa_allocator *allocator, kvcsa_compare **out,
                                   kvcsa_error *err);
    void (*compare_release)(kvcsa_compare **compare);
    kvcsa_status (*compare_begin)(kvcsa_compare *compare, kvcsa_error *err);
    kvcsa_status (*compare_add)(kvcsa_compare *compare, uint64_t position, int32_t next_token,
                                const float *ref, const float *test, uint32_t n_vocab,
                                kvcsa_error *err);
    kvcsa_status (*compare_add_greedy)(kvcsa_compare *compare, const int32_t *ref,
                                       const int32_t *test, size_t n_tokens, kvcsa_error *err);
    kvcsa_status (*compare_get_result)(const kvcsa_compare *compare, kvcsa_compare_result *result,
                                       kvcsa_error *err);
    kvcsa_status (*compare_get_rows)(const kvcsa_compare *compare, uint64_t from,
                                     kvcsa_compare_row *rows, size_t cap, size_t *n_rows,
                                     kvcsa_error *err);
    kvcsa_status (*compare_get_greedy)(const kvcsa_compare *compare, uint64_t *n_same, size_t cap,
                                       size_t *n_greedy, kvcsa_error *err);
    void (*setting_default)(kvcsa_setting *setting, size_t struct_size);
    kvcsa_status (*compare_text)(const kvcsa_setting *reference, const kvcsa_setting *tests,
                                 kvcsa_compare *const *compares, size_t n_tests,
                                 const int32_t *tokens, size_t n_tokens, uint64_t first,
                                 const kvcsa_compare_progress *progress, kvcsa_error *err);
    kvcsa_status (*compare_greedy)(const kvcsa_setting *reference, const kvcsa_setting *tests,
                                   kvcsa_compare *const *compares, size_t n_tests,
                                   const int32_t *tokens, size_t n_tokens, size_t n_generate,
                                   int32_t *generated, const kvcsa_compare_progress *progress,
                                   kvcsa_error *err);
    void (*serving_params_default)(kvcsa_serving_params *params, size_t struct_size);
    kvcsa_status (*model_serving_cost)(const kvcsa_model *model, const kvcsa_serving_params *params,
                                       kvcsa_serving_cost *cost, kvcsa_error *err);
    void (*resume_params_default)(kvcsa_resume_params *params, size_t struct_size);
    kvcsa_status (*model_resume_cost)(const kvcsa_model *model, const kvcsa_resume_params *params,
                                      kvcsa_resume_cost *cost, kvcsa_error *err);
    void (*agent_params_default)(kvcsa_agent_params *params, size_t struct_size);
    kvcsa_status (*agent_get_cost)(const kvcsa_agent_params *params, kvcsa_agent_cost *cost,
                                   kvcsa_error *err);
    void (*synth_params_default)(kvcsa_synth_params *params, size_t struct_size);
    kvcsa_status (*synth_checkpoint)(const char *config, const char *directory,
                                     const kvcsa_synth_params *params, kvcsa_synth_info *info,
                                     kvcsa_error *err);
    void (*plan_params_default)(kvcsa_plan_params *params, size_t struct_size);
    kvcsa_status (*model_from_plan)(const kvcsa_plan_row *rows, size_t n_rows,
                                    const kvcsa_plan_params *params, kvcsa_model **out,
                                    kvcsa_error *err);
    kvcsa_status (*chunk_begin)(kvcsa_session *session, uint32_t max_rows, kvcsa_chunk_info *info,
                                kvcsa_error *err);
    kvcsa_status (*chunk_write)(kvcsa_session *session, uint32_t layer,
                                const kvcsa_chunk_rows *rows, kvcsa_error *err);
    kvcsa_status (*chunk_select)(kvcsa_session *session, uint32_t layer,
                                 const kvcsa_chunk_queries *queries, kvcsa_error *err);
    kvcsa_status (*chunk_attend)(kvcsa_session *session, uint32_t layer,
                                 const kvcsa_chunk_attention *attention, kvcsa_error *err);
    kvcsa_status (*chunk_commit)(kvcsa_session *session, kvcsa_error *err);
    void (*chunk_abandon)(kvcsa_session *session);
    kvcsa_status (*session_read_rows)(kvcsa_session *session, uint32_t layer, uint32_t what,
                                      uint64_t first, uint64_t n, float *out, size_t cap,
                                      kvcsa_error *err);
} kvcsa_api;

/**
 * The library as one table. It is there as long as the library is loaded.
 *
 * @param version  KVCSA_VERSION_NUMBER of the header that the caller was compiled with: all members
 *                 that this header declares are there then. A caller that can do without the newest
 *                 ones asks again with the least version that it needs, and compares struct_size.
 * @return         NULL if the library is older than `version`, or `version` than 0.4, which has the
 *                 first table.
 * Thread: any.  Owner: static.  Since: 0.4
 */
KVCSA_API const kvcsa_api *kvcsa_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
