//! Calls across the border: errors, records, lists, strings.

use crate::error::{Error, Result, Status};
use kvcsa_sys as sys;
use std::ffi::{CStr, CString};
use std::mem::{size_of, MaybeUninit};
use std::os::raw::c_char;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Conversion of a field of a C struct.
pub(crate) trait Take<R> {
    fn take(raw: R) -> Self;
}

macro_rules! take_as_is {
    ($($t:ty),*) => {
        $(impl Take<$t> for $t {
            fn take(raw: $t) -> Self {
                raw
            }
        })*
    };
}
take_as_is!(u32, u64, i32, f32, f64);

impl Take<u32> for bool {
    fn take(raw: u32) -> Self {
        raw != 0
    }
}

/// Ids of tokens and layers, where -1 stands for none.
impl Take<i32> for Option<i32> {
    fn take(raw: i32) -> Self {
        if raw < 0 {
            None
        } else {
            Some(raw)
        }
    }
}

impl<const N: usize> Take<[c_char; N]> for String {
    fn take(raw: [c_char; N]) -> Self {
        let bytes: Vec<u8> = raw
            .iter()
            .map(|&c| c as u8)
            .take_while(|&b| b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Terminated strings that live at least as long as the call that gave them.
impl Take<*const c_char> for String {
    fn take(raw: *const c_char) -> Self {
        if raw.is_null() {
            return String::new();
        }
        // SAFETY: the header says that it is terminated, and the record was filled just now.
        unsafe { CStr::from_ptr(raw) }
            .to_string_lossy()
            .into_owned()
    }
}

impl<R, T: Take<R>, const N: usize> Take<[R; N]> for [T; N] {
    fn take(raw: [R; N]) -> Self {
        raw.map(T::take)
    }
}

/// A struct of the C interface that begins with its size: zeros but for that.
pub(crate) trait Tagged: Copy {
    fn tagged() -> Self;
}

tagged!(
    kvcsa_model_info,
    kvcsa_plan_row,
    kvcsa_chunk_info,
    kvcsa_cost,
    kvcsa_estimate,
    kvcsa_cpu_info,
    kvcsa_backend_info,
    kvcsa_pool_stats,
    kvcsa_session_stats,
    kvcsa_reuse,
    kvcsa_snapshot_info,
    kvcsa_compare_result,
    kvcsa_serving_cost,
    kvcsa_resume_cost,
    kvcsa_agent_cost,
    kvcsa_synth_info,
);

/// Call a function that answers with a status and fills an error record.
pub(crate) fn call(f: impl FnOnce(*mut sys::kvcsa_error) -> sys::kvcsa_status) -> Result<()> {
    let mut err = no_error();
    match f(&mut err) {
        sys::KVCSA_OK => Ok(()),
        status => Err(Error::from_raw(status, &err)),
    }
}

pub(crate) fn no_error() -> sys::kvcsa_error {
    sys::kvcsa_error {
        status: sys::KVCSA_OK,
        detail: 0,
        text: [0; 248],
    }
}

/// Call a function that fills a record.
pub(crate) fn filled<R: Tagged>(
    f: impl FnOnce(*mut R, *mut sys::kvcsa_error) -> sys::kvcsa_status,
) -> Result<R> {
    let mut record = R::tagged();
    call(|err| f(&mut record, err))?;
    Ok(record)
}

/// Parameters as their `_default` function fills them.
///
/// # Safety
///
/// `fill` is such a function, and zero bytes are a value of `T`.
pub(crate) unsafe fn defaults<T: Copy>(fill: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut params = MaybeUninit::<T>::zeroed();
    // SAFETY: it writes no more than the size that it is told.
    unsafe {
        fill(params.as_mut_ptr(), size_of::<T>());
        params.assume_init()
    }
}

/// Call a function that fills an array of `cap` and says how many there are; again if that was too
/// small.
pub(crate) fn list<T: Copy>(
    guess: usize,
    mut f: impl FnMut(*mut T, usize, *mut usize, *mut sys::kvcsa_error) -> sys::kvcsa_status,
) -> Result<Vec<T>> {
    let mut items: Vec<T> = Vec::new();
    let mut cap = guess;
    loop {
        let mut n = 0;
        items.reserve_exact(cap);
        let place = if cap == 0 {
            ptr::null_mut()
        } else {
            items.as_mut_ptr()
        };
        call(|err| f(place, cap, &mut n, err))?;
        if n <= cap {
            // SAFETY: the function has written the first n.
            unsafe { items.set_len(n) };
            return Ok(items);
        }
        cap = n;
    }
}

/// A handle that a function gave together with `KVCSA_OK`.
pub(crate) fn handle<T>(raw: *mut T) -> Result<ptr::NonNull<T>> {
    ptr::NonNull::new(raw).ok_or_else(|| Error::new(Status::Internal, "the library gave no handle"))
}

pub(crate) fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(Status::Arg, &format!("{what} holds a NUL byte")))
}

pub(crate) fn c_path(path: &Path) -> Result<CString> {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    #[cfg(not(unix))]
    let bytes = path
        .to_str()
        .ok_or_else(|| Error::new(Status::Arg, "the path is not UTF-8"))?
        .as_bytes();
    CString::new(bytes).map_err(|_| Error::new(Status::Arg, "the path holds a NUL byte"))
}

/// A length as the C interface counts rows of logits.
pub(crate) fn n_u32(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::new(Status::Arg, &format!("{n} {what} are too many")))
}

/// A panic inside a lock leaves nothing half done here, so a poisoned one is as good as another.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
