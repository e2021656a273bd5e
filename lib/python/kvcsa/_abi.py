"""What include/kvcsa.h declares: constants, structs, prototypes. Written by generate.py; do not edit."""

from __future__ import annotations

import enum
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p,
)
from typing import Any, Dict, List, Tuple

KVCSA_VERSION_MAJOR = 0
KVCSA_VERSION_MINOR = 4
KVCSA_VERSION_PATCH = 0
KVCSA_VERSION_NUMBER = 400
KVCSA_ABI = 0
KVCSA_N_LAYER_GROUPS = 4


class Status(enum.IntEnum):
    OK = 0
    ERR_INTERNAL = -1
    ERR_ARG = -2
    ERR_NOMEM = -3
    ERR_FULL = -4
    ERR_UNSUPPORTED = -5
    ERR_BACKEND = -6
    ERR_FORMAT = -7
    ERR_IO = -8
    ERR_BUSY = -9
    ERR_CANCELLED = -10
    ERR_MISMATCH = -11
    ERR_CORRUPT = -12
    ERR_LIMIT = -13


class Log(enum.IntEnum):
    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3


class Trace(enum.IntEnum):
    HIT = 1
    MISS = 2
    PUBLISH = 3
    EVICT = 4
    REPLAY = 5
    SAVE = 6
    LOAD = 7
    MOVE_OUT = 8
    MOVE_IN = 9


class Reason(enum.IntEnum):
    NONE = 0
    OFF = 1
    UNKNOWN = 2
    DIVERGED = 3
    ENDED = 4
    LOGITS = 5
    SHORT = 6
    PRIVATE = 7
    BUDGET = 16
    TRIM = 17
    RESIZE = 18
    FORGOTTEN = 19
    ERASED = 20


class ModelFlags(enum.IntFlag):
    PLAN_ONLY = 1
    READ = 2


class Select(enum.IntEnum):
    NONE = 0
    OWN = 1
    REINDEX = 2
    INHERITED = 3
    ALL = 4


class Candidates(enum.IntEnum):
    NONE = 0
    SOURCE = 1
    CONSUMER = 2


class Format(enum.IntEnum):
    NONE = 0
    FP4_E4M3_G16 = 1
    FP4_E8M0_G32 = 2
    FP8_E8M0_G32 = 3
    F32 = 4
    F16 = 5
    BF16 = 6
    FP4_AS_F32 = 7
    Q8_0 = 8
    Q4_0 = 9
    INT3_F16_G32 = 10
    FP8_E4M3 = 11
    FP8_F32_G128 = 12
    INT6 = 13
    MLA_FP8_656 = 14
    MLA_FP4_432 = 15
    CSA_FP8_584 = 16


class Value(enum.IntEnum):
    ALIAS = 0
    OWN = 1
    PREFIX = 2


class Pooling(enum.IntEnum):
    NONE = 0
    GATED = 1
    OVERLAP = 2
    WIDE = 3


class TokenizeFlags(enum.IntFlag):
    SPECIAL = 1


class Backend(enum.IntEnum):
    AUTO = 0
    CPU = 1
    CUDA = 2


class CpuFlags(enum.IntFlag):
    AVX2 = 1
    AVX512 = 2
    NEON = 4
    DOTPROD = 8


class PoolFlags(enum.IntFlag):
    FILL_FREED = 1
    ZERO_FREED = 2
    FAST_DENSE = 4


class Evict(enum.IntEnum):
    COST = 0
    LRU = 1


class Mode(enum.IntEnum):
    EXACT = 0
    FAST = 1


class Reuse(enum.IntEnum):
    DEFAULT = 0
    NONE = 1
    EXACT = 2
    BOUNDED = 3


class DecoderReplay(enum.IntEnum):
    DEFAULT = 0
    OFF = 1
    ON = 2


class SessionFlags(enum.IntFlag):
    PRIVATE = 1
    WINDOW_ONLY = 2
    TRACK_MASS = 4
    CACHE_ONLY = 8


class Logits(enum.IntEnum):
    LAST = 0
    ALL = 1
    ROWS = 2
    NONE = 3


class Layers(enum.IntEnum):
    WINDOW = 0
    FULL = 1
    REINDEX = 2
    REUSE = 3


class EraseFlags(enum.IntFlag):
    SECURE = 1


class SnapshotFlags(enum.IntFlag):
    WINDOW = 1
    LOGITS = 2
    ANY_MODEL = 4
    ANY_NUMERICS = 8
    SALVAGE = 16


class SettingFlags(enum.IntFlag):
    CHAIN_HITS = 1


class Attention(enum.IntEnum):
    TP = 0
    DP = 1


class RowsFlags(enum.IntFlag):
    ON_DEVICE = 1


class Read(enum.IntEnum):
    KEYS = 1
    VALUES = 2
    INDEX_KEYS = 3
    WINDOW = 4
    PENDING = 5


# Handles: only pointers to them exist.


class kvcsa_model(Structure):
    pass


class kvcsa_text_stream(Structure):
    pass


class kvcsa_pool(Structure):
    pass


class kvcsa_session(Structure):
    pass


class kvcsa_compare(Structure):
    pass


class kvcsa_error(Structure):
    _fields_ = [
        ("status", c_int32),
        ("detail", c_int32),
        ("text", c_char * 248),
    ]


class kvcsa_allocator(Structure):
    _fields_ = [
        ("alloc", CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)),
        ("free", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t)),
        ("user", c_void_p),
    ]


class kvcsa_log(Structure):
    _fields_ = [
        ("write", CFUNCTYPE(None, c_void_p, c_int32, c_char_p)),
        ("user", c_void_p),
    ]


class kvcsa_executor(Structure):
    _fields_ = [
        ("run", CFUNCTYPE(None, c_void_p, CFUNCTYPE(None, c_void_p, c_uint32), c_void_p, c_uint32)),
        ("user", c_void_p),
        ("width", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_trace_event(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("position", c_uint64),
        ("n_tokens", c_uint64),
        ("n_bytes", c_uint64),
        ("kind", c_uint32),
        ("reason", c_uint32),
    ]


class kvcsa_trace(Structure):
    _fields_ = [
        ("event", CFUNCTYPE(None, c_void_p, POINTER(kvcsa_trace_event))),
        ("user", c_void_p),
    ]


class kvcsa_model_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", POINTER(kvcsa_allocator)),
        ("log", POINTER(kvcsa_log)),
        ("flags", c_uint32),
        ("block_tokens", c_uint32),
        ("plan", c_char_p),
    ]


class kvcsa_model_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("architecture", c_char_p),
        ("skipped_names", c_char_p),
        ("max_context_tokens", c_uint64),
        ("weight_bytes", c_uint64),
        ("skipped_bytes", c_uint64),
        ("fingerprint", c_uint64),
        ("n_tensors", c_uint32),
        ("n_skipped_tensors", c_uint32),
        ("vocab_tokens", c_uint32),
        ("n_layers", c_uint32),
        ("hidden_size", c_uint32),
        ("block_tokens", c_uint32),
        ("bos_token", c_int32),
        ("eos_token", c_int32),
        ("pad_token", c_int32),
        ("image_token", c_int32),
        ("expert_bytes", c_uint64),
        ("n_experts", c_uint32),
        ("n_experts_per_token", c_uint32),
        ("n_moe_layers", c_uint32),
        ("cost_only", c_uint32),
        ("span_tokens", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_plan_row(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layer", c_int32),
        ("kv_owner", c_int32),
        ("select_owner", c_int32),
        ("select", c_int32),
        ("candidates", c_int32),
        ("ratio", c_uint32),
        ("entry_width", c_uint32),
        ("entry_format", c_uint32),
        ("entry_bytes", c_uint32),
        ("index_heads", c_uint32),
        ("index_width", c_uint32),
        ("index_format", c_uint32),
        ("index_bytes", c_uint32),
        ("select_entries", c_uint32),
        ("candidate_blocks", c_uint32),
        ("candidate_block_entries", c_uint32),
        ("window_tokens", c_uint32),
        ("window_format", c_uint32),
        ("window_bytes", c_uint32),
        ("pending_bytes", c_uint32),
        ("kv_heads", c_uint32),
        ("value_width", c_uint32),
        ("value_kind", c_uint32),
        ("value_format", c_uint32),
        ("pool_kind", c_uint32),
        ("state_heads", c_uint32),
        ("state_bytes", c_uint64),
        ("index_owner", c_int32),
        ("cost_only", c_uint32),
    ]


class kvcsa_cost(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_uint64),
        ("const_bytes", c_uint64),
        ("resident_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("persist_bytes", c_uint64),
        ("pending_bytes", c_uint64),
        ("block_tokens", c_uint32),
        ("block_bytes", c_uint32),
        ("index_part_bytes", c_uint32),
        ("main_part_bytes", c_uint32),
        ("rate_bytes_per_token", c_float),
        ("n_kv_layers", c_uint32),
        ("rate", c_double),
        ("entry_bytes", c_double),
        ("sequence_factor", c_double),
        ("written_bytes", c_double),
        ("state_bytes", c_uint64),
        ("index_read_bytes", c_uint64),
        ("window_read_bytes", c_uint64),
    ]


class kvcsa_message(Structure):
    _fields_ = [
        ("role", c_char_p),
        ("text", c_char_p),
    ]


class kvcsa_pool_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", POINTER(kvcsa_allocator)),
        ("log", POINTER(kvcsa_log)),
        ("executor", POINTER(kvcsa_executor)),
        ("budget_bytes", c_uint64),
        ("n_threads", c_uint32),
        ("flags", c_uint32),
        ("trace", POINTER(kvcsa_trace)),
        ("evict", c_uint32),
        ("cpu_avoid", c_uint32),
        ("backend", c_uint32),
        ("ordinal", c_uint32),
        ("backend_dir", c_char_p),
        ("host_bytes", c_uint64),
    ]


class kvcsa_cpu_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("detected", c_uint32),
        ("used", c_uint32),
        ("numerics", c_uint64),
        ("processor", c_char * 64),
        ("kernels", c_char * 32),
        ("why", c_char * 160),
    ]


class kvcsa_backend_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_uint32),
        ("reference", c_uint32),
        ("numerics", c_uint64),
        ("memory_bytes", c_uint64),
        ("memory_free_bytes", c_uint64),
        ("entry_formats", c_uint64),
        ("paged_formats", c_uint64),
        ("name", c_char * 16),
        ("device", c_char * 64),
        ("kernels", c_char * 32),
        ("features", c_char * 768),
        ("why", c_char * 320),
    ]


class kvcsa_pool_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("budget_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("window_bytes", c_uint64),
        ("slab_bytes", c_uint64),
        ("n_open_blocks", c_uint64),
        ("n_sealed_blocks", c_uint64),
        ("n_free_blocks", c_uint64),
        ("n_sessions", c_uint64),
        ("n_acquired", c_uint64),
        ("n_released", c_uint64),
        ("evictable_bytes", c_uint64),
        ("record_bytes", c_uint64),
        ("n_published_blocks", c_uint64),
        ("n_pinned_blocks", c_uint64),
        ("n_window_pages", c_uint64),
        ("n_copied_blocks", c_uint64),
        ("n_copied_pages", c_uint64),
        ("n_evicted_blocks", c_uint64),
        ("n_lookups", c_uint64),
        ("n_probes", c_uint64),
        ("n_hit_tokens", c_uint64),
        ("n_saved_bytes", c_uint64),
        ("n_saved_records", c_uint64),
        ("n_loaded_bytes", c_uint64),
        ("n_loaded_records", c_uint64),
        ("host_budget_bytes", c_uint64),
        ("host_used_bytes", c_uint64),
        ("host_slab_bytes", c_uint64),
        ("n_host_blocks", c_uint64),
        ("n_host_pages", c_uint64),
        ("n_moved_out_blocks", c_uint64),
        ("n_moved_in_blocks", c_uint64),
    ]


class kvcsa_session_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("chunk_tokens", c_uint32),
        ("flags", c_uint32),
        ("salt", c_uint64),
        ("mode", c_uint32),
        ("reuse", c_uint32),
        ("decoder_replay", c_uint32),
        ("decoder_cut_layer", c_uint32),
        ("window_slack_tokens", c_uint32),
        ("window_store_tokens", c_uint32),
        ("select_entries", c_uint32),
        ("candidate_blocks", c_uint32),
    ]


class kvcsa_reuse(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_kept", c_uint64),
        ("n_adopted", c_uint64),
        ("n_replay", c_uint64),
        ("n_compute", c_uint64),
        ("how", c_uint32),
        ("reason", c_uint32),
    ]


kvcsa_logits_fn = CFUNCTYPE(None, c_void_p, c_uint64, POINTER(c_float), c_uint32)


class kvcsa_append_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("on_logits", kvcsa_logits_fn),
        ("user", c_void_p),
        ("rows", POINTER(c_uint32)),
        ("n_rows", c_uint32),
        ("logits", c_uint32),
        ("reuse", c_uint32),
        ("reserved", c_uint32),
    ]


kvcsa_progress_fn = CFUNCTYPE(c_int32, c_void_p, POINTER(kvcsa_session), c_uint64, c_uint64)


class kvcsa_step_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("progress", kvcsa_progress_fn),
        ("user", c_void_p),
        ("max_rows", c_uint64),
        ("deadline_ns", c_uint64),
    ]


class kvcsa_step_result(Structure):
    _fields_ = [
        ("n_computed", c_uint64),
        ("n_queued", c_uint64),
        ("error", kvcsa_error),
    ]


class kvcsa_work(Structure):
    _fields_ = [
        ("n_rows", c_uint64),
        ("n_replayed_rows", c_uint64),
        ("n_selections", c_uint64),
        ("n_keys_scored", c_uint64),
        ("n_candidate_blocks", c_uint64),
        ("n_entries_read", c_uint64),
        ("n_window_rows_read", c_uint64),
        ("n_entries_written", c_uint64),
        ("n_window_rows_written", c_uint64),
        ("n_blocks_touched", c_uint64),
        ("n_experts", c_uint64),
        ("read_bytes", c_uint64),
        ("index_read_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("reserved", c_uint64 * 2),
    ]


class kvcsa_session_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_uint64),
        ("n_queued", c_uint64),
        ("n_entries", c_uint64),
        ("entry_bytes", c_uint64),
        ("n_blocks", c_uint64),
        ("block_bytes", c_uint64),
        ("window_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("n_computed_rows", c_uint64),
        ("shared_bytes", c_uint64),
        ("n_replayed_rows", c_uint64),
        ("n_adopted_tokens", c_uint64),
        ("n_replay", c_uint64),
        ("n_exact_tokens", c_uint64),
        ("step", kvcsa_work * 4),
        ("total", kvcsa_work * 4),
    ]


class kvcsa_estimate(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("block_bytes", c_uint64),
        ("window_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("slab_bytes", c_uint64),
        ("record_bytes", c_uint64),
        ("n_blocks", c_uint64),
    ]


class kvcsa_snapshot_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_snapshot_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_uint64),
        ("fingerprint", c_uint64),
        ("numerics", c_uint64),
        ("salt", c_uint64),
        ("total_bytes", c_uint64),
        ("n_records", c_uint64),
        ("written_bytes", c_uint64),
        ("n_written_records", c_uint64),
        ("n_shared_records", c_uint64),
        ("version", c_uint32),
        ("sections", c_uint32),
        ("block_tokens", c_uint32),
        ("exact", c_uint32),
    ]


class kvcsa_writer(Structure):
    _fields_ = [
        ("write", CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)),
        ("user", c_void_p),
    ]


class kvcsa_reader(Structure):
    _fields_ = [
        ("read", CFUNCTYPE(c_int64, c_void_p, c_void_p, c_size_t)),
        ("user", c_void_p),
    ]


class kvcsa_sampler_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("seed", c_uint64),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_uint32),
    ]


class kvcsa_compare_row(Structure):
    _fields_ = [
        ("position", c_uint64),
        ("kl", c_double),
        ("margin", c_float),
        ("max_difference", c_float),
        ("ref_log_prob", c_float),
        ("test_log_prob", c_float),
        ("ref_top", c_int32),
        ("test_top", c_int32),
        ("run", c_uint32),
        ("equal", c_uint32),
    ]


class kvcsa_compare_result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_rows", c_uint64),
        ("n_equal_rows", c_uint64),
        ("kl_mean", c_double),
        ("kl_median", c_double),
        ("kl_p99", c_double),
        ("kl_p999", c_double),
        ("kl_max", c_double),
        ("kl_max_position", c_uint64),
        ("kl_max_run", c_uint32),
        ("max_difference", c_float),
        ("n_flips", c_uint64),
        ("n_margin_01", c_uint64),
        ("n_flips_01", c_uint64),
        ("n_margin_10", c_uint64),
        ("n_flips_10", c_uint64),
        ("n_text_rows", c_uint64),
        ("ref_nll", c_double),
        ("test_nll", c_double),
        ("n_greedy", c_uint64),
        ("n_diverged", c_uint64),
        ("n_greedy_same", c_uint64),
        ("n_greedy_tokens", c_uint64),
        ("first_divergence", c_uint64),
    ]


class kvcsa_setting(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", POINTER(kvcsa_model)),
        ("pool", POINTER(kvcsa_pool)),
        ("session", POINTER(kvcsa_session_params)),
        ("append_tokens", c_uint64),
        ("hit_tokens", c_uint64),
        ("keep_first_tokens", c_uint64),
        ("keep_last_tokens", c_uint64),
        ("keep_fraction", c_float),
        ("flags", c_uint32),
        ("hidden", POINTER(c_uint64)),
        ("n_hidden", c_size_t),
    ]


class kvcsa_compare_progress(Structure):
    _fields_ = [
        ("progress", CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)),
        ("user", c_void_p),
    ]


class kvcsa_serving_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_uint64),
        ("n_users", c_uint64),
        ("n_shared_tokens", c_uint64),
        ("n_devices", c_uint32),
        ("attention", c_uint32),
        ("device_bytes", c_uint64),
        ("tokens_per_second", c_double),
        ("dense_bytes", c_uint64),
        ("expert_bytes", c_uint64),
        ("n_experts", c_uint32),
        ("n_experts_per_token", c_uint32),
        ("n_moe_layers", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_serving_cost(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("resident_bytes", c_uint64),
        ("device_resident_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("device_read_bytes", c_uint64),
        ("parked_bytes", c_uint64),
        ("max_users", c_uint64),
        ("written_bytes", c_double),
        ("distinct_experts", c_double),
        ("weight_bytes", c_double),
        ("read_bytes_per_second", c_double),
        ("device_rate", c_double),
    ]


class kvcsa_resume_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_tokens", c_uint64),
        ("tier_bytes_per_second", c_double),
        ("tier_bytes", c_double),
        ("flops_per_token", c_double),
        ("flops_per_second", c_double),
        ("n_replay_tokens", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_resume_cost(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_bytes", c_uint64),
        ("load_seconds", c_double),
        ("replay_seconds", c_double),
        ("recompute_seconds", c_double),
        ("ratio", c_double),
        ("break_even_bytes_per_second", c_double),
        ("n_parked", c_double),
    ]


class kvcsa_agent_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_calls", c_uint64),
        ("context_tokens", c_uint64),
        ("tool_tokens", c_uint64),
        ("generated_tokens", c_uint64),
        ("reread_generated", c_uint32),
        ("reserved", c_uint32),
        ("hit_price", c_double),
        ("miss_price", c_double),
        ("output_price", c_double),
    ]


class kvcsa_agent_cost(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_hit_tokens", c_uint64),
        ("n_miss_tokens", c_uint64),
        ("n_output_tokens", c_uint64),
        ("hit_cost", c_double),
        ("miss_cost", c_double),
        ("output_cost", c_double),
        ("cost", c_double),
        ("uncached_cost", c_double),
    ]


class kvcsa_synth_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", POINTER(kvcsa_allocator)),
        ("seed", c_uint64),
        ("shard_bytes", c_uint64),
        ("progress", CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)),
        ("user", c_void_p),
    ]


class kvcsa_synth_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("total_bytes", c_uint64),
        ("n_tensors", c_uint32),
        ("n_shards", c_uint32),
    ]


class kvcsa_plan_params(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", POINTER(kvcsa_allocator)),
        ("log", POINTER(kvcsa_log)),
        ("name", c_char_p),
        ("identity", c_uint64),
        ("max_tokens", c_uint64),
        ("block_tokens", c_uint32),
        ("vocab_tokens", c_uint32),
    ]


class kvcsa_chunk_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("position", c_uint64),
        ("n_queued", c_uint64),
        ("tokens", POINTER(c_int32)),
        ("first_rows", POINTER(c_uint64)),
        ("n_rows", c_uint32),
        ("replay", c_uint32),
    ]


class kvcsa_rows(Structure):
    _fields_ = [
        ("data", POINTER(c_float)),
        ("row_stride", c_size_t),
        ("head_stride", c_size_t),
    ]


class kvcsa_chunk_rows(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("key", kvcsa_rows),
        ("value", kvcsa_rows),
        ("index_key", kvcsa_rows),
        ("window", kvcsa_rows),
        ("pending", kvcsa_rows),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_chunk_queries(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("query", kvcsa_rows),
        ("weights", kvcsa_rows),
        ("ids", POINTER(c_int32)),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_chunk_attention(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("query", kvcsa_rows),
        ("out", POINTER(c_float)),
        ("out_row_stride", c_size_t),
        ("out_head_stride", c_size_t),
        ("sink", POINTER(c_float)),
        ("n_heads", c_uint32),
        ("scale", c_float),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class kvcsa_api(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("version", c_uint32),
        ("abi", c_uint32),
        ("status_name", CFUNCTYPE(c_char_p, c_int32)),
        ("version_number", CFUNCTYPE(c_uint32)),
        ("version_string", CFUNCTYPE(c_char_p)),
        ("format_name", CFUNCTYPE(c_char_p, c_uint32)),
        ("model_params_default", CFUNCTYPE(None, POINTER(kvcsa_model_params), c_size_t)),
        ("model_open", CFUNCTYPE(c_int32, c_char_p, POINTER(kvcsa_model_params), POINTER(POINTER(kvcsa_model)), POINTER(kvcsa_error))),
        ("model_release", CFUNCTYPE(None, POINTER(POINTER(kvcsa_model)))),
        ("model_get_info", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(kvcsa_model_info), POINTER(kvcsa_error))),
        ("model_plan_row", CFUNCTYPE(c_int32, POINTER(kvcsa_model), c_uint32, POINTER(kvcsa_plan_row), POINTER(kvcsa_error))),
        ("model_cost", CFUNCTYPE(c_int32, POINTER(kvcsa_model), c_uint64, POINTER(kvcsa_cost), POINTER(kvcsa_error))),
        ("model_tokenize", CFUNCTYPE(c_int32, POINTER(kvcsa_model), c_char_p, c_size_t, c_uint32, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("model_token_text", CFUNCTYPE(c_int32, POINTER(kvcsa_model), c_int32, POINTER(c_void_p), POINTER(c_size_t), POINTER(kvcsa_error))),
        ("model_detokenize", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(c_int32), c_size_t, c_char_p, c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("model_chat_prompt", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(kvcsa_message), c_size_t, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("text_stream_create", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(c_char_p), c_size_t, POINTER(POINTER(kvcsa_text_stream)), POINTER(kvcsa_error))),
        ("text_stream_push", CFUNCTYPE(c_int32, POINTER(kvcsa_text_stream), c_int32, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_int32), POINTER(kvcsa_error))),
        ("text_stream_finish", CFUNCTYPE(c_int32, POINTER(kvcsa_text_stream), POINTER(c_void_p), POINTER(c_size_t), POINTER(kvcsa_error))),
        ("text_stream_release", CFUNCTYPE(None, POINTER(POINTER(kvcsa_text_stream)))),
        ("pool_params_default", CFUNCTYPE(None, POINTER(kvcsa_pool_params), c_size_t)),
        ("pool_create", CFUNCTYPE(c_int32, POINTER(kvcsa_pool_params), POINTER(POINTER(kvcsa_pool)), POINTER(kvcsa_error))),
        ("pool_release", CFUNCTYPE(None, POINTER(POINTER(kvcsa_pool)))),
        ("pool_get_stats", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_pool_stats), POINTER(kvcsa_error))),
        ("pool_get_cpu", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_cpu_info), POINTER(kvcsa_error))),
        ("pool_get_backend", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_backend_info), POINTER(kvcsa_error))),
        ("pool_check", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_error))),
        ("pool_resize", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), c_uint64, POINTER(kvcsa_error))),
        ("pool_trim", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), c_uint64, POINTER(c_uint64), POINTER(kvcsa_error))),
        ("session_params_default", CFUNCTYPE(None, POINTER(kvcsa_session_params), c_size_t)),
        ("session_create", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_model), POINTER(kvcsa_session_params), POINTER(POINTER(kvcsa_session)), POINTER(kvcsa_error))),
        ("session_release", CFUNCTYPE(None, POINTER(POINTER(kvcsa_session)))),
        ("append_params_default", CFUNCTYPE(None, POINTER(kvcsa_append_params), c_size_t)),
        ("session_append", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(kvcsa_append_params), POINTER(c_uint64), POINTER(kvcsa_error))),
        ("step_params_default", CFUNCTYPE(None, POINTER(kvcsa_step_params), c_size_t)),
        ("pool_step", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(POINTER(kvcsa_session)), c_size_t, POINTER(kvcsa_step_params), POINTER(kvcsa_step_result), POINTER(kvcsa_error))),
        ("session_cancel", CFUNCTYPE(None, POINTER(kvcsa_session))),
        ("session_get_logits", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_float), c_uint32, POINTER(kvcsa_error))),
        ("session_length", CFUNCTYPE(c_uint64, POINTER(kvcsa_session))),
        ("session_get_tokens", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("session_get_stats", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_session_stats), POINTER(kvcsa_error))),
        ("session_layer_work", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_work), POINTER(kvcsa_work), POINTER(kvcsa_error))),
        ("session_hide", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint64, c_uint64, c_int32, POINTER(kvcsa_error))),
        ("session_get_mass", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_double), c_size_t, POINTER(c_size_t), c_int32, POINTER(kvcsa_error))),
        ("session_get_reuse", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_reuse), POINTER(kvcsa_error))),
        ("session_common_prefix", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("session_fork", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint64, POINTER(kvcsa_session_params), POINTER(POINTER(kvcsa_session)), POINTER(kvcsa_error))),
        ("session_rewind", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint64, POINTER(kvcsa_error))),
        ("session_sync", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(kvcsa_append_params), POINTER(kvcsa_reuse), POINTER(kvcsa_error))),
        ("session_erase", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_error))),
        ("model_estimate", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(kvcsa_session_params), c_uint64, c_uint64, c_uint64, POINTER(kvcsa_estimate), POINTER(kvcsa_error))),
        ("prefix_match", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("prefix_publish", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(c_uint64), POINTER(kvcsa_error))),
        ("prefix_pin", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("prefix_unpin", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(kvcsa_error))),
        ("prefix_forget", CFUNCTYPE(c_int32, POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_uint64), POINTER(kvcsa_error))),
        ("snapshot_params_default", CFUNCTYPE(None, POINTER(kvcsa_snapshot_params), c_size_t)),
        ("snapshot_size", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_snapshot_params), POINTER(c_uint64), POINTER(kvcsa_error))),
        ("snapshot_save", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error))),
        ("snapshot_load", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error))),
        ("snapshot_write", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_writer), POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error))),
        ("snapshot_read", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_reader), POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error))),
        ("snapshot_inspect", CFUNCTYPE(c_int32, c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error))),
        ("snapshot_remove", CFUNCTYPE(c_int32, c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_error))),
        ("sampler_params_default", CFUNCTYPE(None, POINTER(kvcsa_sampler_params), c_size_t)),
        ("sample_logits", CFUNCTYPE(c_int32, POINTER(c_float), c_uint32, c_uint64, POINTER(kvcsa_sampler_params), POINTER(c_int32), POINTER(kvcsa_error))),
        ("session_sample", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_sampler_params), POINTER(c_int32), POINTER(kvcsa_error))),
        ("compare_create", CFUNCTYPE(c_int32, POINTER(kvcsa_allocator), POINTER(POINTER(kvcsa_compare)), POINTER(kvcsa_error))),
        ("compare_release", CFUNCTYPE(None, POINTER(POINTER(kvcsa_compare)))),
        ("compare_begin", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), POINTER(kvcsa_error))),
        ("compare_add", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), c_uint64, c_int32, POINTER(c_float), POINTER(c_float), c_uint32, POINTER(kvcsa_error))),
        ("compare_add_greedy", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), POINTER(c_int32), POINTER(c_int32), c_size_t, POINTER(kvcsa_error))),
        ("compare_get_result", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), POINTER(kvcsa_compare_result), POINTER(kvcsa_error))),
        ("compare_get_rows", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), c_uint64, POINTER(kvcsa_compare_row), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("compare_get_greedy", CFUNCTYPE(c_int32, POINTER(kvcsa_compare), POINTER(c_uint64), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error))),
        ("setting_default", CFUNCTYPE(None, POINTER(kvcsa_setting), c_size_t)),
        ("compare_text", CFUNCTYPE(c_int32, POINTER(kvcsa_setting), POINTER(kvcsa_setting), POINTER(POINTER(kvcsa_compare)), c_size_t, POINTER(c_int32), c_size_t, c_uint64, POINTER(kvcsa_compare_progress), POINTER(kvcsa_error))),
        ("compare_greedy", CFUNCTYPE(c_int32, POINTER(kvcsa_setting), POINTER(kvcsa_setting), POINTER(POINTER(kvcsa_compare)), c_size_t, POINTER(c_int32), c_size_t, c_size_t, POINTER(c_int32), POINTER(kvcsa_compare_progress), POINTER(kvcsa_error))),
        ("serving_params_default", CFUNCTYPE(None, POINTER(kvcsa_serving_params), c_size_t)),
        ("model_serving_cost", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(kvcsa_serving_params), POINTER(kvcsa_serving_cost), POINTER(kvcsa_error))),
        ("resume_params_default", CFUNCTYPE(None, POINTER(kvcsa_resume_params), c_size_t)),
        ("model_resume_cost", CFUNCTYPE(c_int32, POINTER(kvcsa_model), POINTER(kvcsa_resume_params), POINTER(kvcsa_resume_cost), POINTER(kvcsa_error))),
        ("agent_params_default", CFUNCTYPE(None, POINTER(kvcsa_agent_params), c_size_t)),
        ("agent_get_cost", CFUNCTYPE(c_int32, POINTER(kvcsa_agent_params), POINTER(kvcsa_agent_cost), POINTER(kvcsa_error))),
        ("synth_params_default", CFUNCTYPE(None, POINTER(kvcsa_synth_params), c_size_t)),
        ("synth_checkpoint", CFUNCTYPE(c_int32, c_char_p, c_char_p, POINTER(kvcsa_synth_params), POINTER(kvcsa_synth_info), POINTER(kvcsa_error))),
        ("plan_params_default", CFUNCTYPE(None, POINTER(kvcsa_plan_params), c_size_t)),
        ("model_from_plan", CFUNCTYPE(c_int32, POINTER(kvcsa_plan_row), c_size_t, POINTER(kvcsa_plan_params), POINTER(POINTER(kvcsa_model)), POINTER(kvcsa_error))),
        ("chunk_begin", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_info), POINTER(kvcsa_error))),
        ("chunk_write", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_rows), POINTER(kvcsa_error))),
        ("chunk_select", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_queries), POINTER(kvcsa_error))),
        ("chunk_attend", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_attention), POINTER(kvcsa_error))),
        ("chunk_commit", CFUNCTYPE(c_int32, POINTER(kvcsa_session), POINTER(kvcsa_error))),
        ("chunk_abandon", CFUNCTYPE(None, POINTER(kvcsa_session))),
        ("session_read_rows", CFUNCTYPE(c_int32, POINTER(kvcsa_session), c_uint32, c_uint32, c_uint64, c_uint64, POINTER(c_float), c_size_t, POINTER(kvcsa_error))),
    ]


# name: (restype, argtypes)
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "kvcsa_status_name": (c_char_p, [c_int32]),
    "kvcsa_version_number": (c_uint32, []),
    "kvcsa_version_string": (c_char_p, []),
    "kvcsa_format_name": (c_char_p, [c_uint32]),
    "kvcsa_model_params_default": (None, [POINTER(kvcsa_model_params), c_size_t]),
    "kvcsa_model_open": (c_int32, [c_char_p, POINTER(kvcsa_model_params), POINTER(POINTER(kvcsa_model)), POINTER(kvcsa_error)]),
    "kvcsa_model_release": (None, [POINTER(POINTER(kvcsa_model))]),
    "kvcsa_model_get_info": (c_int32, [POINTER(kvcsa_model), POINTER(kvcsa_model_info), POINTER(kvcsa_error)]),
    "kvcsa_model_plan_row": (c_int32, [POINTER(kvcsa_model), c_uint32, POINTER(kvcsa_plan_row), POINTER(kvcsa_error)]),
    "kvcsa_model_cost": (c_int32, [POINTER(kvcsa_model), c_uint64, POINTER(kvcsa_cost), POINTER(kvcsa_error)]),
    "kvcsa_model_tokenize": (c_int32, [POINTER(kvcsa_model), c_char_p, c_size_t, c_uint32, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_model_token_text": (c_int32, [POINTER(kvcsa_model), c_int32, POINTER(c_void_p), POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_model_detokenize": (c_int32, [POINTER(kvcsa_model), POINTER(c_int32), c_size_t, c_char_p, c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_model_chat_prompt": (c_int32, [POINTER(kvcsa_model), POINTER(kvcsa_message), c_size_t, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_text_stream_create": (c_int32, [POINTER(kvcsa_model), POINTER(c_char_p), c_size_t, POINTER(POINTER(kvcsa_text_stream)), POINTER(kvcsa_error)]),
    "kvcsa_text_stream_push": (c_int32, [POINTER(kvcsa_text_stream), c_int32, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_int32), POINTER(kvcsa_error)]),
    "kvcsa_text_stream_finish": (c_int32, [POINTER(kvcsa_text_stream), POINTER(c_void_p), POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_text_stream_release": (None, [POINTER(POINTER(kvcsa_text_stream))]),
    "kvcsa_pool_params_default": (None, [POINTER(kvcsa_pool_params), c_size_t]),
    "kvcsa_pool_create": (c_int32, [POINTER(kvcsa_pool_params), POINTER(POINTER(kvcsa_pool)), POINTER(kvcsa_error)]),
    "kvcsa_pool_release": (None, [POINTER(POINTER(kvcsa_pool))]),
    "kvcsa_pool_get_stats": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_pool_stats), POINTER(kvcsa_error)]),
    "kvcsa_pool_get_cpu": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_cpu_info), POINTER(kvcsa_error)]),
    "kvcsa_pool_get_backend": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_backend_info), POINTER(kvcsa_error)]),
    "kvcsa_pool_check": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_error)]),
    "kvcsa_pool_resize": (c_int32, [POINTER(kvcsa_pool), c_uint64, POINTER(kvcsa_error)]),
    "kvcsa_pool_trim": (c_int32, [POINTER(kvcsa_pool), c_uint64, POINTER(c_uint64), POINTER(kvcsa_error)]),
    "kvcsa_session_params_default": (None, [POINTER(kvcsa_session_params), c_size_t]),
    "kvcsa_session_create": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_model), POINTER(kvcsa_session_params), POINTER(POINTER(kvcsa_session)), POINTER(kvcsa_error)]),
    "kvcsa_session_release": (None, [POINTER(POINTER(kvcsa_session))]),
    "kvcsa_append_params_default": (None, [POINTER(kvcsa_append_params), c_size_t]),
    "kvcsa_session_append": (c_int32, [POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(kvcsa_append_params), POINTER(c_uint64), POINTER(kvcsa_error)]),
    "kvcsa_step_params_default": (None, [POINTER(kvcsa_step_params), c_size_t]),
    "kvcsa_pool_step": (c_int32, [POINTER(kvcsa_pool), POINTER(POINTER(kvcsa_session)), c_size_t, POINTER(kvcsa_step_params), POINTER(kvcsa_step_result), POINTER(kvcsa_error)]),
    "kvcsa_session_cancel": (None, [POINTER(kvcsa_session)]),
    "kvcsa_session_get_logits": (c_int32, [POINTER(kvcsa_session), POINTER(c_float), c_uint32, POINTER(kvcsa_error)]),
    "kvcsa_session_length": (c_uint64, [POINTER(kvcsa_session)]),
    "kvcsa_session_get_tokens": (c_int32, [POINTER(kvcsa_session), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_session_get_stats": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_session_stats), POINTER(kvcsa_error)]),
    "kvcsa_session_layer_work": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_work), POINTER(kvcsa_work), POINTER(kvcsa_error)]),
    "kvcsa_session_hide": (c_int32, [POINTER(kvcsa_session), c_uint64, c_uint64, c_int32, POINTER(kvcsa_error)]),
    "kvcsa_session_get_mass": (c_int32, [POINTER(kvcsa_session), POINTER(c_double), c_size_t, POINTER(c_size_t), c_int32, POINTER(kvcsa_error)]),
    "kvcsa_session_get_reuse": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_reuse), POINTER(kvcsa_error)]),
    "kvcsa_session_common_prefix": (c_int32, [POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_session_fork": (c_int32, [POINTER(kvcsa_session), c_uint64, POINTER(kvcsa_session_params), POINTER(POINTER(kvcsa_session)), POINTER(kvcsa_error)]),
    "kvcsa_session_rewind": (c_int32, [POINTER(kvcsa_session), c_uint64, POINTER(kvcsa_error)]),
    "kvcsa_session_sync": (c_int32, [POINTER(kvcsa_session), POINTER(c_int32), c_size_t, POINTER(kvcsa_append_params), POINTER(kvcsa_reuse), POINTER(kvcsa_error)]),
    "kvcsa_session_erase": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_error)]),
    "kvcsa_model_estimate": (c_int32, [POINTER(kvcsa_model), POINTER(kvcsa_session_params), c_uint64, c_uint64, c_uint64, POINTER(kvcsa_estimate), POINTER(kvcsa_error)]),
    "kvcsa_prefix_match": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_prefix_publish": (c_int32, [POINTER(kvcsa_session), POINTER(c_uint64), POINTER(kvcsa_error)]),
    "kvcsa_prefix_pin": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_prefix_unpin": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(kvcsa_error)]),
    "kvcsa_prefix_forget": (c_int32, [POINTER(kvcsa_pool), POINTER(kvcsa_model), c_uint64, POINTER(c_int32), c_size_t, POINTER(c_uint64), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_params_default": (None, [POINTER(kvcsa_snapshot_params), c_size_t]),
    "kvcsa_snapshot_size": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_snapshot_params), POINTER(c_uint64), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_save": (c_int32, [POINTER(kvcsa_session), c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_load": (c_int32, [POINTER(kvcsa_session), c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_write": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_writer), POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_read": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_reader), POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_inspect": (c_int32, [c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_snapshot_info), POINTER(kvcsa_error)]),
    "kvcsa_snapshot_remove": (c_int32, [c_char_p, POINTER(kvcsa_snapshot_params), POINTER(kvcsa_error)]),
    "kvcsa_sampler_params_default": (None, [POINTER(kvcsa_sampler_params), c_size_t]),
    "kvcsa_sample_logits": (c_int32, [POINTER(c_float), c_uint32, c_uint64, POINTER(kvcsa_sampler_params), POINTER(c_int32), POINTER(kvcsa_error)]),
    "kvcsa_session_sample": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_sampler_params), POINTER(c_int32), POINTER(kvcsa_error)]),
    "kvcsa_compare_create": (c_int32, [POINTER(kvcsa_allocator), POINTER(POINTER(kvcsa_compare)), POINTER(kvcsa_error)]),
    "kvcsa_compare_release": (None, [POINTER(POINTER(kvcsa_compare))]),
    "kvcsa_compare_begin": (c_int32, [POINTER(kvcsa_compare), POINTER(kvcsa_error)]),
    "kvcsa_compare_add": (c_int32, [POINTER(kvcsa_compare), c_uint64, c_int32, POINTER(c_float), POINTER(c_float), c_uint32, POINTER(kvcsa_error)]),
    "kvcsa_compare_add_greedy": (c_int32, [POINTER(kvcsa_compare), POINTER(c_int32), POINTER(c_int32), c_size_t, POINTER(kvcsa_error)]),
    "kvcsa_compare_get_result": (c_int32, [POINTER(kvcsa_compare), POINTER(kvcsa_compare_result), POINTER(kvcsa_error)]),
    "kvcsa_compare_get_rows": (c_int32, [POINTER(kvcsa_compare), c_uint64, POINTER(kvcsa_compare_row), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_compare_get_greedy": (c_int32, [POINTER(kvcsa_compare), POINTER(c_uint64), c_size_t, POINTER(c_size_t), POINTER(kvcsa_error)]),
    "kvcsa_setting_default": (None, [POINTER(kvcsa_setting), c_size_t]),
    "kvcsa_compare_text": (c_int32, [POINTER(kvcsa_setting), POINTER(kvcsa_setting), POINTER(POINTER(kvcsa_compare)), c_size_t, POINTER(c_int32), c_size_t, c_uint64, POINTER(kvcsa_compare_progress), POINTER(kvcsa_error)]),
    "kvcsa_compare_greedy": (c_int32, [POINTER(kvcsa_setting), POINTER(kvcsa_setting), POINTER(POINTER(kvcsa_compare)), c_size_t, POINTER(c_int32), c_size_t, c_size_t, POINTER(c_int32), POINTER(kvcsa_compare_progress), POINTER(kvcsa_error)]),
    "kvcsa_serving_params_default": (None, [POINTER(kvcsa_serving_params), c_size_t]),
    "kvcsa_model_serving_cost": (c_int32, [POINTER(kvcsa_model), POINTER(kvcsa_serving_params), POINTER(kvcsa_serving_cost), POINTER(kvcsa_error)]),
    "kvcsa_resume_params_default": (None, [POINTER(kvcsa_resume_params), c_size_t]),
    "kvcsa_model_resume_cost": (c_int32, [POINTER(kvcsa_model), POINTER(kvcsa_resume_params), POINTER(kvcsa_resume_cost), POINTER(kvcsa_error)]),
    "kvcsa_agent_params_default": (None, [POINTER(kvcsa_agent_params), c_size_t]),
    "kvcsa_agent_get_cost": (c_int32, [POINTER(kvcsa_agent_params), POINTER(kvcsa_agent_cost), POINTER(kvcsa_error)]),
    "kvcsa_synth_params_default": (None, [POINTER(kvcsa_synth_params), c_size_t]),
    "kvcsa_synth_checkpoint": (c_int32, [c_char_p, c_char_p, POINTER(kvcsa_synth_params), POINTER(kvcsa_synth_info), POINTER(kvcsa_error)]),
    "kvcsa_plan_params_default": (None, [POINTER(kvcsa_plan_params), c_size_t]),
    "kvcsa_model_from_plan": (c_int32, [POINTER(kvcsa_plan_row), c_size_t, POINTER(kvcsa_plan_params), POINTER(POINTER(kvcsa_model)), POINTER(kvcsa_error)]),
    "kvcsa_chunk_begin": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_info), POINTER(kvcsa_error)]),
    "kvcsa_chunk_write": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_rows), POINTER(kvcsa_error)]),
    "kvcsa_chunk_select": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_queries), POINTER(kvcsa_error)]),
    "kvcsa_chunk_attend": (c_int32, [POINTER(kvcsa_session), c_uint32, POINTER(kvcsa_chunk_attention), POINTER(kvcsa_error)]),
    "kvcsa_chunk_commit": (c_int32, [POINTER(kvcsa_session), POINTER(kvcsa_error)]),
    "kvcsa_chunk_abandon": (None, [POINTER(kvcsa_session)]),
    "kvcsa_session_read_rows": (c_int32, [POINTER(kvcsa_session), c_uint32, c_uint32, c_uint64, c_uint64, POINTER(c_float), c_size_t, POINTER(kvcsa_error)]),
    "kvcsa_get_api": (POINTER(kvcsa_api), [c_uint32]),
}

STRUCTS: Dict[str, Any] = {
    "kvcsa_error": kvcsa_error,
    "kvcsa_allocator": kvcsa_allocator,
    "kvcsa_log": kvcsa_log,
    "kvcsa_executor": kvcsa_executor,
    "kvcsa_trace_event": kvcsa_trace_event,
    "kvcsa_trace": kvcsa_trace,
    "kvcsa_model_params": kvcsa_model_params,
    "kvcsa_model_info": kvcsa_model_info,
    "kvcsa_plan_row": kvcsa_plan_row,
    "kvcsa_cost": kvcsa_cost,
    "kvcsa_message": kvcsa_message,
    "kvcsa_pool_params": kvcsa_pool_params,
    "kvcsa_cpu_info": kvcsa_cpu_info,
    "kvcsa_backend_info": kvcsa_backend_info,
    "kvcsa_pool_stats": kvcsa_pool_stats,
    "kvcsa_session_params": kvcsa_session_params,
    "kvcsa_reuse": kvcsa_reuse,
    "kvcsa_append_params": kvcsa_append_params,
    "kvcsa_step_params": kvcsa_step_params,
    "kvcsa_step_result": kvcsa_step_result,
    "kvcsa_work": kvcsa_work,
    "kvcsa_session_stats": kvcsa_session_stats,
    "kvcsa_estimate": kvcsa_estimate,
    "kvcsa_snapshot_params": kvcsa_snapshot_params,
    "kvcsa_snapshot_info": kvcsa_snapshot_info,
    "kvcsa_writer": kvcsa_writer,
    "kvcsa_reader": kvcsa_reader,
    "kvcsa_sampler_params": kvcsa_sampler_params,
    "kvcsa_compare_row": kvcsa_compare_row,
    "kvcsa_compare_result": kvcsa_compare_result,
    "kvcsa_setting": kvcsa_setting,
    "kvcsa_compare_progress": kvcsa_compare_progress,
    "kvcsa_serving_params": kvcsa_serving_params,
    "kvcsa_serving_cost": kvcsa_serving_cost,
    "kvcsa_resume_params": kvcsa_resume_params,
    "kvcsa_resume_cost": kvcsa_resume_cost,
    "kvcsa_agent_params": kvcsa_agent_params,
    "kvcsa_agent_cost": kvcsa_agent_cost,
    "kvcsa_synth_params": kvcsa_synth_params,
    "kvcsa_synth_info": kvcsa_synth_info,
    "kvcsa_plan_params": kvcsa_plan_params,
    "kvcsa_chunk_info": kvcsa_chunk_info,
    "kvcsa_rows": kvcsa_rows,
    "kvcsa_chunk_rows": kvcsa_chunk_rows,
    "kvcsa_chunk_queries": kvcsa_chunk_queries,
    "kvcsa_chunk_attention": kvcsa_chunk_attention,
    "kvcsa_api": kvcsa_api,
}
