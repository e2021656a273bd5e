//! What computes: backend and instruction sets.

use crate::error::Result;
use crate::plan::Format;
use crate::raw::{filled, Take};
use kvcsa_sys as sys;
use std::ops::{BitOr, BitOrAssign};
use std::ptr;

c_enum! {
    /// What computes, and in whose memory blocks, windows and weights lie.
    pub enum Backend: u32 {
        /// A device, if a plug-in is there and finds one that answers, else the CPU.
        Auto = KVCSA_BACKEND_AUTO,
        /// The processor: portable C and kernels for its instruction sets.
        Cpu = KVCSA_BACKEND_CPU,
        /// libkvcsa_cuda.so, or [`Status::Backend`](crate::Status::Backend) with the reason.
        Cuda = KVCSA_BACKEND_CUDA,
    }
}

/// A set of instruction sets that kernels are written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet(u32);

impl CpuSet {
    /// None: portable C.
    pub const PORTABLE: CpuSet = CpuSet(0);
    /// AVX2 with FMA, F16C, BMI2.
    pub const AVX2: CpuSet = CpuSet(sys::KVCSA_CPU_AVX2);
    /// AVX-512 with VBMI, VBMI2, VNNI (Ice Lake, Zen 4); implies AVX2.
    pub const AVX512: CpuSet = CpuSet(sys::KVCSA_CPU_AVX512);
    /// Armv8-A.
    pub const NEON: CpuSet = CpuSet(sys::KVCSA_CPU_NEON);
    /// Armv8.2-A; implies NEON.
    pub const DOTPROD: CpuSet = CpuSet(sys::KVCSA_CPU_DOTPROD);

    /// The bits of the C interface.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// From the bits of the C interface; unknown ones are kept.
    pub fn from_raw(bits: u32) -> Self {
        CpuSet(bits)
    }

    /// Whether all of `other` are in it.
    pub fn contains(self, other: CpuSet) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for CpuSet {
    type Output = CpuSet;
    fn bitor(self, other: CpuSet) -> CpuSet {
        CpuSet(self.0 | other.0)
    }
}

impl BitOrAssign for CpuSet {
    fn bitor_assign(&mut self, other: CpuSet) {
        self.0 |= other.0;
    }
}

impl Take<u32> for CpuSet {
    fn take(raw: u32) -> Self {
        CpuSet(raw)
    }
}

record! {
    /// What the processor has and what is used of it.
    pub struct CpuInfo from kvcsa_cpu_info {
        /// What processor and operating system have.
        detected: CpuSet,
        /// What the kernels of the pool use.
        used: CpuSet,
        /// Id of order and rounding of sums: equal ids, equal bits. All sets that fuse multiply and
        /// add have one id.
        numerics: u64,
        /// As it names itself, "" if it does not.
        processor: String,
        /// The widest set that is used, "AVX-512" for example.
        kernels: String,
        /// Why these and no others.
        why: String,
    }
}

impl CpuInfo {
    /// As a pool made with default parameters would have it.
    pub fn of_defaults() -> Result<Self> {
        // SAFETY: NULL asks for that.
        filled(|info, err| unsafe { sys::kvcsa_pool_get_cpu(ptr::null(), info, err) })
            .map(|info| CpuInfo::from_raw(&info))
    }
}

record! {
    /// What computes in a pool.
    pub struct BackendInfo from kvcsa_backend_info {
        /// Which, never `Auto`.
        backend: Backend,
        /// It is the CPU: the oracle of the others.
        reference: bool,
        /// Id of order and rounding of sums.
        numerics: u64,
        /// The device's own memory, 0 = it uses the host's.
        memory_bytes: u64,
        /// Of it, now.
        memory_free_bytes: u64,
        /// Formats of entries that its sparse attention reads, see [`BackendInfo::reads_entries`].
        entry_formats: u64,
        /// Formats of keys and values that its ordinary attention reads.
        paged_formats: u64,
        /// "cpu", "cuda".
        name: String,
        /// As it names itself.
        device: String,
        /// "AVX-512", "sm_90" for example.
        kernels: String,
        /// Families, formats and sizes that it has kernels for, to be shown.
        features: String,
        /// Why this one: what other plug-ins said.
        why: String,
    }
}

impl BackendInfo {
    /// As a pool made with default parameters would have it; one is made for the call.
    pub fn of_defaults() -> Result<Self> {
        // SAFETY: NULL asks for that.
        filled(|info, err| unsafe { sys::kvcsa_pool_get_backend(ptr::null(), info, err) })
            .map(|info| BackendInfo::from_raw(&info))
    }

    /// Whether sparse attention reads entries of a format.
    pub fn reads_entries(&self, format: Format) -> bool {
        has_bit(self.entry_formats, format)
    }

    /// Whether ordinary attention reads keys and values of a format.
    pub fn reads_paged(&self, format: Format) -> bool {
        has_bit(self.paged_formats, format)
    }
}

fn has_bit(bits: u64, format: Format) -> bool {
    bits.checked_shr(format.raw()).map_or(false, |b| b & 1 == 1)
}
