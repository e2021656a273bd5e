"""What the library answers, as values of Python's own, and parameters without pointers.

Fields are described in include/kvcsa.h at the struct that each docstring names. Written by generate.py; do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from . import _abi


@dataclass(frozen=True)
class TraceEvent:
    """kvcsa_trace_event"""

    position: int
    n_tokens: int
    n_bytes: int
    kind: int
    reason: int


@dataclass(frozen=True)
class ModelInfo:
    """kvcsa_model_info"""

    architecture: str
    skipped_names: str
    max_context_tokens: int
    weight_bytes: int
    skipped_bytes: int
    fingerprint: int
    n_tensors: int
    n_skipped_tensors: int
    vocab_tokens: int
    n_layers: int
    hidden_size: int
    block_tokens: int
    bos_token: int
    eos_token: int
    pad_token: int
    image_token: int
    expert_bytes: int
    n_experts: int
    n_experts_per_token: int
    n_moe_layers: int
    cost_only: int
    span_tokens: int


@dataclass(frozen=True)
class PlanRowFields:
    """kvcsa_plan_row"""

    layer: int = -1
    kv_owner: int = -1
    select_owner: int = -1
    select: int = 0
    candidates: int = 0
    ratio: int = 0
    entry_width: int = 0
    entry_format: int = 0
    entry_bytes: int = 0
    index_heads: int = 0
    index_width: int = 0
    index_format: int = 0
    index_bytes: int = 0
    select_entries: int = 0
    candidate_blocks: int = 0
    candidate_block_entries: int = 0
    window_tokens: int = 0
    window_format: int = 0
    window_bytes: int = 0
    pending_bytes: int = 0
    kv_heads: int = 0
    value_width: int = 0
    value_kind: int = 0
    value_format: int = 0
    pool_kind: int = 0
    state_heads: int = 0
    state_bytes: int = 0
    index_owner: int = -1
    cost_only: int = 0


@dataclass(frozen=True)
class Cost:
    """kvcsa_cost"""

    n_tokens: int
    const_bytes: int
    resident_bytes: int
    read_bytes: int
    persist_bytes: int
    pending_bytes: int
    block_tokens: int
    block_bytes: int
    index_part_bytes: int
    main_part_bytes: int
    rate_bytes_per_token: float
    n_kv_layers: int
    rate: float
    entry_bytes: float
    sequence_factor: float
    written_bytes: float
    state_bytes: int
    index_read_bytes: int
    window_read_bytes: int


@dataclass(frozen=True)
class CpuInfo:
    """kvcsa_cpu_info"""

    detected: int
    used: int
    numerics: int
    processor: str
    kernels: str
    why: str


@dataclass(frozen=True)
class BackendInfo:
    """kvcsa_backend_info"""

    backend: int
    reference: int
    numerics: int
    memory_bytes: int
    memory_free_bytes: int
    entry_formats: int
    paged_formats: int
    name: str
    device: str
    kernels: str
    features: str
    why: str


@dataclass(frozen=True)
class PoolStats:
    """kvcsa_pool_stats"""

    budget_bytes: int
    used_bytes: int
    reserved_bytes: int
    window_bytes: int
    slab_bytes: int
    n_open_blocks: int
    n_sealed_blocks: int
    n_free_blocks: int
    n_sessions: int
    n_acquired: int
    n_released: int
    evictable_bytes: int
    record_bytes: int
    n_published_blocks: int
    n_pinned_blocks: int
    n_window_pages: int
    n_copied_blocks: int
    n_copied_pages: int
    n_evicted_blocks: int
    n_lookups: int
    n_probes: int
    n_hit_tokens: int
    n_saved_bytes: int
    n_saved_records: int
    n_loaded_bytes: int
    n_loaded_records: int
    host_budget_bytes: int
    host_used_bytes: int
    host_slab_bytes: int
    n_host_blocks: int
    n_host_pages: int
    n_moved_out_blocks: int
    n_moved_in_blocks: int


@dataclass(frozen=True)
class ReuseInfo:
    """kvcsa_reuse"""

    n_kept: int
    n_adopted: int
    n_replay: int
    n_compute: int
    how: int
    reason: int


@dataclass(frozen=True)
class Work:
    """kvcsa_work"""

    n_rows: int
    n_replayed_rows: int
    n_selections: int
    n_keys_scored: int
    n_candidate_blocks: int
    n_entries_read: int
    n_window_rows_read: int
    n_entries_written: int
    n_window_rows_written: int
    n_blocks_touched: int
    n_experts: int
    read_bytes: int
    index_read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class SessionStats:
    """kvcsa_session_stats"""

    n_tokens: int
    n_queued: int
    n_entries: int
    entry_bytes: int
    n_blocks: int
    block_bytes: int
    window_bytes: int
    workspace_bytes: int
    n_computed_rows: int
    shared_bytes: int
    n_replayed_rows: int
    n_adopted_tokens: int
    n_replay: int
    n_exact_tokens: int
    step: Tuple[Work, ...]
    total: Tuple[Work, ...]


@dataclass(frozen=True)
class Estimate:
    """kvcsa_estimate"""

    block_bytes: int
    window_bytes: int
    used_bytes: int
    slab_bytes: int
    record_bytes: int
    n_blocks: int


@dataclass(frozen=True)
class SnapshotInfo:
    """kvcsa_snapshot_info"""

    n_tokens: int
    fingerprint: int
    numerics: int
    salt: int
    total_bytes: int
    n_records: int
    written_bytes: int
    n_written_records: int
    n_shared_records: int
    version: int
    sections: int
    block_tokens: int
    exact: int


@dataclass(frozen=True)
class CompareRow:
    """kvcsa_compare_row"""

    position: int
    kl: float
    margin: float
    max_difference: float
    ref_log_prob: float
    test_log_prob: float
    ref_top: int
    test_top: int
    run: int
    equal: int


@dataclass(frozen=True)
class CompareResult:
    """kvcsa_compare_result"""

    n_rows: int
    n_equal_rows: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_p999: float
    kl_max: float
    kl_max_position: int
    kl_max_run: int
    max_difference: float
    n_flips: int
    n_margin_01: int
    n_flips_01: int
    n_margin_10: int
    n_flips_10: int
    n_text_rows: int
    ref_nll: float
    test_nll: float
    n_greedy: int
    n_diverged: int
    n_greedy_same: int
    n_greedy_tokens: int
    first_divergence: int


@dataclass(frozen=True)
class ServingCost:
    """kvcsa_serving_cost"""

    resident_bytes: int
    device_resident_bytes: int
    read_bytes: int
    device_read_bytes: int
    parked_bytes: int
    max_users: int
    written_bytes: float
    distinct_experts: float
    weight_bytes: float
    read_bytes_per_second: float
    device_rate: float


@dataclass(frozen=True)
class ResumeCost:
    """kvcsa_resume_cost"""

    n_bytes: int
    load_seconds: float
    replay_seconds: float
    recompute_seconds: float
    ratio: float
    break_even_bytes_per_second: float
    n_parked: float


@dataclass(frozen=True)
class AgentCost:
    """kvcsa_agent_cost"""

    n_hit_tokens: int
    n_miss_tokens: int
    n_output_tokens: int
    hit_cost: float
    miss_cost: float
    output_cost: float
    cost: float
    uncached_cost: float


@dataclass(frozen=True)
class SynthInfo:
    """kvcsa_synth_info"""

    total_bytes: int
    n_tensors: int
    n_shards: int


@dataclass
class SessionParams:
    """kvcsa_session_params; None is the library's default."""

    chunk_tokens: Optional[int] = None
    flags: Optional[int] = None
    salt: Optional[int] = None
    mode: Optional[int] = None
    reuse: Optional[int] = None
    decoder_replay: Optional[int] = None
    decoder_cut_layer: Optional[int] = None
    window_slack_tokens: Optional[int] = None
    window_store_tokens: Optional[int] = None
    select_entries: Optional[int] = None
    candidate_blocks: Optional[int] = None


@dataclass
class ServingParams:
    """kvcsa_serving_params; None is the library's default."""

    n_tokens: Optional[int] = None
    n_users: Optional[int] = None
    n_shared_tokens: Optional[int] = None
    n_devices: Optional[int] = None
    attention: Optional[int] = None
    device_bytes: Optional[int] = None
    tokens_per_second: Optional[float] = None
    dense_bytes: Optional[int] = None
    expert_bytes: Optional[int] = None
    n_experts: Optional[int] = None
    n_experts_per_token: Optional[int] = None
    n_moe_layers: Optional[int] = None


@dataclass
class ResumeParams:
    """kvcsa_resume_params; None is the library's default."""

    n_tokens: Optional[int] = None
    tier_bytes_per_second: Optional[float] = None
    tier_bytes: Optional[float] = None
    flops_per_token: Optional[float] = None
    flops_per_second: Optional[float] = None
    n_replay_tokens: Optional[int] = None


@dataclass
class AgentParams:
    """kvcsa_agent_params; None is the library's default."""

    n_calls: Optional[int] = None
    context_tokens: Optional[int] = None
    tool_tokens: Optional[int] = None
    generated_tokens: Optional[int] = None
    reread_generated: Optional[int] = None
    hit_price: Optional[float] = None
    miss_price: Optional[float] = None
    output_price: Optional[float] = None


# By their C struct.
RESULTS: Dict[Any, Any] = {
    _abi.kvcsa_trace_event: TraceEvent,
    _abi.kvcsa_model_info: ModelInfo,
    _abi.kvcsa_plan_row: PlanRowFields,
    _abi.kvcsa_cost: Cost,
    _abi.kvcsa_cpu_info: CpuInfo,
    _abi.kvcsa_backend_info: BackendInfo,
    _abi.kvcsa_pool_stats: PoolStats,
    _abi.kvcsa_reuse: ReuseInfo,
    _abi.kvcsa_work: Work,
    _abi.kvcsa_session_stats: SessionStats,
    _abi.kvcsa_estimate: Estimate,
    _abi.kvcsa_snapshot_info: SnapshotInfo,
    _abi.kvcsa_compare_row: CompareRow,
    _abi.kvcsa_compare_result: CompareResult,
    _abi.kvcsa_serving_cost: ServingCost,
    _abi.kvcsa_resume_cost: ResumeCost,
    _abi.kvcsa_agent_cost: AgentCost,
    _abi.kvcsa_synth_info: SynthInfo,
}
