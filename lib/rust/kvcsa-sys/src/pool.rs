//! Pools: one byte budget for the caches of any number of sessions.

use crate::hooks::{kvcsa_allocator, kvcsa_executor, kvcsa_log, kvcsa_trace};
use crate::status::{kvcsa_error, kvcsa_status};
use std::marker::{PhantomData, PhantomPinned};
use std::os::raw::c_char;

/// A pool: one budget of bytes.
#[repr(C)]
pub struct kvcsa_pool {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Parameters of [`kvcsa_pool_create`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_pool_params {
    /// `size_of` this struct, as the caller knows it.
    pub struct_size: usize,
    /// NULL = libc; blocks and sessions come from here.
    pub allocator: *const kvcsa_allocator,
    /// NULL = silent.
    pub log: *const kvcsa_log,
    /// NULL = threads of our own.
    pub executor: *const kvcsa_executor,
    /// Blocks and windows of all sessions; 0 = no limit of its own.
    pub budget_bytes: u64,
    /// Threads of our own, the caller included; 0 = one per core; ignored with an executor.
    pub n_threads: u32,
    /// KVCSA_POOL_\*.
    pub flags: u32,
    /// NULL = none.
    pub trace: *const kvcsa_trace,
    /// KVCSA_EVICT_\*: which prefix goes first.
    pub evict: u32,
    /// KVCSA_CPU_\* that must not be used though the machine has them. Bits of results are the same
    /// with all that fuse multiply and add (any of them), and others with none: within a pool they
    /// never change. Without effect where a device computes. Since 0.4 (0 before).
    pub cpu_avoid: u32,
    /// KVCSA_BACKEND_\*: what computes.
    pub backend: u32,
    /// Of the device among those that the backend sees; the CPU does not look at it.
    pub ordinal: u32,
    /// Absolute path of the folder with the plug-ins; NULL = the folder of this library, or of the
    /// program that it is linked into. Neither environment nor current folder are looked at.
    pub backend_dir: *const c_char,
    /// Memory of the host for prefixes that a device has no room for: evicted blocks go there,
    /// pinned, and come back when a session's tokens begin like them. Beside budget_bytes; counted
    /// in blocks, what is free in slabs comes on top. 0 = none, such prefixes are lost. Ignored
    /// where blocks lie in the host's memory anyway.
    pub host_bytes: u64,
}

/// A device, if a plug-in is there and finds one that answers, else the CPU.
pub const KVCSA_BACKEND_AUTO: u32 = 0;
/// The processor: portable C and kernels for its instruction sets.
pub const KVCSA_BACKEND_CPU: u32 = 1;
/// libkvcsa_cuda.so, or ERR_BACKEND with the reason.
pub const KVCSA_BACKEND_CUDA: u32 = 2;

/// With FMA, F16C, BMI2.
pub const KVCSA_CPU_AVX2: u32 = 1;
/// With VBMI, VBMI2, VNNI (Ice Lake, Zen 4); implies AVX2.
pub const KVCSA_CPU_AVX512: u32 = 2;
/// Armv8-A.
pub const KVCSA_CPU_NEON: u32 = 4;
/// Armv8.2-A; implies NEON.
pub const KVCSA_CPU_DOTPROD: u32 = 8;

/// What the processor has and what is used of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_cpu_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// KVCSA_CPU_\* that processor and operating system have.
    pub detected: u32,
    /// KVCSA_CPU_\* that the kernels of the pool use; 0 = portable C.
    pub used: u32,
    /// Id of order and rounding of sums, as in kvcsa_snapshot_info: equal ids, equal bits. All sets
    /// that fuse multiply and add have one id.
    pub numerics: u64,
    /// As it names itself, "" if it does not.
    pub processor: [c_char; 64],
    /// The widest set that is used, "AVX-512" for example.
    pub kernels: [c_char; 32],
    /// Why these and no others.
    pub why: [c_char; 160],
}

/// What computes in a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_backend_info {
    /// Set by the caller.
    pub struct_size: usize,
    /// KVCSA_BACKEND_\*, never AUTO.
    pub backend: u32,
    /// 1 = it is the CPU: the oracle of the others.
    pub reference: u32,
    /// Id of order and rounding of sums, as in kvcsa_snapshot_info.
    pub numerics: u64,
    /// The device's own memory, 0 = it uses the host's.
    pub memory_bytes: u64,
    /// Of it, now.
    pub memory_free_bytes: u64,
    /// Bit KVCSA_FORMAT_\*: entries that its sparse attention reads.
    pub entry_formats: u64,
    /// Likewise, keys and values of ordinary attention.
    pub paged_formats: u64,
    /// "cpu", "cuda".
    pub name: [c_char; 16],
    /// As it names itself.
    pub device: [c_char; 64],
    /// "AVX-512", "sm_90" for example.
    pub kernels: [c_char; 32],
    /// Families, formats and sizes that it has kernels for, to be shown.
    pub features: [c_char; 768],
    /// Why this one: what other plug-ins said.
    pub why: [c_char; 320],
}

/// Overwrite a freed block with 0xA5 (for tests of your own).
pub const KVCSA_POOL_FILL_FREED: u32 = 1;
/// Overwrite a freed block with zeros.
pub const KVCSA_POOL_ZERO_FREED: u32 = 2;
/// Products of many rows with BF16 and F32 weights by the vendor's library (cuBLASLt), where a
/// device has one; the log says whether. kvcsa_backend_info.numerics then is another, and bits of
/// results depend on how many rows are computed together: on the length of appends, on other
/// sessions, on what was reused. Without effect on the CPU. Since 0.4.
pub const KVCSA_POOL_FAST_DENSE: u32 = 4;

/// The one that was reused least, aged by what went before: a shared prefix outlives prompts that
/// were used once.
pub const KVCSA_EVICT_COST: u32 = 0;
/// The one that was used longest ago.
pub const KVCSA_EVICT_LRU: u32 = 1;

/// Figures of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvcsa_pool_stats {
    /// Set by the caller.
    pub struct_size: usize,
    /// The budget; 0 = none of its own.
    pub budget_bytes: u64,
    /// Blocks in use + windows; never above budget_bytes. A block that several sessions share
    /// counts once.
    pub used_bytes: u64,
    /// Promised to queued tokens.
    pub reserved_bytes: u64,
    /// Window and pending rows; part of used_bytes.
    pub window_bytes: u64,
    /// Memory taken from the allocator for blocks and window pages, free ones included.
    pub slab_bytes: u64,
    /// Of the cache; window pages are not counted.
    pub n_open_blocks: u64,
    /// Full blocks, which never change.
    pub n_sealed_blocks: u64,
    /// Blocks in slabs that nobody uses.
    pub n_free_blocks: u64,
    /// Sessions that are alive.
    pub n_sessions: u64,
    /// Blocks and pages since creation.
    pub n_acquired: u64,
    /// Blocks and pages given back since creation.
    pub n_released: u64,
    /// Published blocks that nothing but the prefix tree holds; part of used_bytes.
    pub evictable_bytes: u64,
    /// Memory for what describes blocks: token ids, keys, counts.
    pub record_bytes: u64,
    /// Can be found by prefix.
    pub n_published_blocks: u64,
    /// Named by kvcsa_prefix_pin.
    pub n_pinned_blocks: u64,
    /// In use.
    pub n_window_pages: u64,
    /// Copied because somebody else reads them; since creation, as all below.
    pub n_copied_blocks: u64,
    /// Window pages, likewise.
    pub n_copied_pages: u64,
    /// Published blocks that went for want of room.
    pub n_evicted_blocks: u64,
    /// Searches for a prefix.
    pub n_lookups: u64,
    /// Look-ups of a block by its key, of all searches.
    pub n_probes: u64,
    /// Tokens adopted by sessions.
    pub n_hit_tokens: u64,
    /// Written by snapshots.
    pub n_saved_bytes: u64,
    /// Records written by snapshots.
    pub n_saved_records: u64,
    /// Bytes read by snapshots.
    pub n_loaded_bytes: u64,
    /// Records read by snapshots.
    pub n_loaded_records: u64,
    /// kvcsa_pool_params.host_bytes; 0 where it is ignored. All else in this record but
    /// record_bytes, n_published_blocks and n_evicted_blocks leaves out what lies there.
    pub host_budget_bytes: u64,
    /// Blocks and window pages there; never above the budget.
    pub host_used_bytes: u64,
    /// Pinned memory for them, free ones included.
    pub host_slab_bytes: u64,
    /// Blocks that lie in the host's memory.
    pub n_host_blocks: u64,
    /// Of windows stored beside these blocks.
    pub n_host_pages: u64,
    /// Copied there, one transfer each; since creation.
    pub n_moved_out_blocks: u64,
    /// Copied back, likewise.
    pub n_moved_in_blocks: u64,
}

extern "C" {
    /// Fill params with defaults.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_pool_params_default(params: *mut kvcsa_pool_params, struct_size: usize);

    /// Create a pool: a budget of bytes shared by the caches of any number of sessions of any number of
    /// models, and the threads that compute them.
    ///
    /// * **Status**: ERR_ARG (backend_dir is no absolute path); ERR_UNSUPPORTED unknown flags or
    ///   values; ERR_NOMEM (also when a thread cannot be started, or the device is full); ERR_BACKEND the
    ///   backend or device that was asked for is not there.
    /// * **Thread**: any.
    /// * **Owner**: the caller owns \*out.
    /// * **Since**: 0.1
    pub fn kvcsa_pool_create(
        params: *const kvcsa_pool_params,
        out: *mut *mut kvcsa_pool,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Drop the caller's reference; the pool lives until its last session is gone.
    ///
    /// * **Thread**: any.
    /// * **Since**: 0.1
    pub fn kvcsa_pool_release(pool: *mut *mut kvcsa_pool);

    /// Figures of the pool, consistent with each other.
    ///
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.1
    pub fn kvcsa_pool_get_stats(
        pool: *mut kvcsa_pool,
        stats: *mut kvcsa_pool_stats,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// What the processor has, what the pool uses of it, and why.
    ///
    /// * `pool`: NULL = as a pool made with default parameters would.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.4
    pub fn kvcsa_pool_get_cpu(
        pool: *const kvcsa_pool,
        info: *mut kvcsa_cpu_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// What computes in the pool, what it has kernels for, and why it was chosen. A model whose sizes
    /// or formats are not among them is refused when a session is made (ERR_UNSUPPORTED with the list).
    ///
    /// * `pool`: NULL = as a pool made with default parameters would; one is made for the call.
    /// * **Status**: ERR_ARG; with NULL as kvcsa_pool_create().
    /// * **Thread**: shared.
    /// * **Since**: 0.4
    pub fn kvcsa_pool_get_backend(
        pool: *const kvcsa_pool,
        info: *mut kvcsa_backend_info,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Walk every block and every count and compare (see the numbered invariants in src/pool). For
    /// tests and bug reports.
    ///
    /// * **Status**: ERR_INTERNAL with the first invariant that does not hold.
    /// * **Thread**: shared.
    /// * **Since**: 0.1
    pub fn kvcsa_pool_check(pool: *mut kvcsa_pool, err: *mut kvcsa_error) -> kvcsa_status;

    /// Change the budget. A smaller one evicts prefixes until what is left fits.
    ///
    /// * `budget_bytes`: 0 = no limit of its own.
    /// * **Status**: ERR_FULL what sessions hold and what is pinned is more: nothing was evicted, the
    ///   budget is as before.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_pool_resize(
        pool: *mut kvcsa_pool,
        budget_bytes: u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;

    /// Evict prefixes that no session uses and nobody pinned until used_bytes is at most
    /// `max_used_bytes` or there are none left, and give free memory back to the allocator. With
    /// host_bytes they go there as far as there is room; what is there stays until it is forgotten.
    ///
    /// * `freed_bytes`: what the allocator got back. May be NULL.
    /// * **Status**: ERR_ARG.
    /// * **Thread**: shared.
    /// * **Since**: 0.2
    pub fn kvcsa_pool_trim(
        pool: *mut kvcsa_pool,
        max_used_bytes: u64,
        freed_bytes: *mut u64,
        err: *mut kvcsa_error,
    ) -> kvcsa_status;
}
